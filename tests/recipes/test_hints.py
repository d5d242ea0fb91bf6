"""Misspelt names in a recipe: the error is one line that names what was meant."""

from pathlib import Path

import pytest
from tiny_recipe import error_of, tiny_recipe


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method.class_path", "FireCallback"], "unknown class FireCallback; did you mean FIRECallback?"),
        (["--method.class_path", "FIRECallback", "--method.step", "3"], "has no argument step; did you mean steps?"),
        (["--method.class_path", "FIRECallback", "--method.when", "AtEpoch"], "AtEpoch; did you mean AtEpochs?"),
        (
            ["--method.class_path", "FIRECallback", "--method.scale", "procrustess"],
            "or 'auto', got procrustess; did you",
        ),
        (["--trainer.max_epochs", "x"], "trainer.max_epochs must be int or null, got x"),
        (["--trainer.max_epoch", "3"], "unknown key trainer.max_epoch; did you mean trainer.max_epochs?"),
        (["-c", "odd.yaml"], "unknown key trainer.:; did you mean trainer?"),
        (["--method.class_path", "FIRECallback", "--method.stops", "3"], "method: FIRECallback has no argument stops"),
        (["-c", "typo.yaml"], "unknown key trainer.max_epoch; did you mean trainer.max_epochs?"),
        (["-c", "flat.yaml"], "method: the arguments of a class belong under init_args, beside its class_path"),
        (["--model.class_path", "small_training.PlainModul"], "has no class PlainModul; did you mean PlainModule?"),
        (["--ckpt_path", "."], "ckpt_path: . is not a checkpoint"),
        (["--ckpt_path", "/dev/zero"], "ckpt_path: /dev/zero is not a checkpoint"),
    ],
)
def test_a_mistake_is_one_line_that_names_what_was_meant(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    Path("typo.yaml").write_text("trainer: {max_epoch: 3}")
    Path("odd.yaml").write_text("trainer: {':': 3}")
    Path("flat.yaml").write_text("method: {class_path: FIRECallback, steps: 3, when: {class_path: AtNewData, at: 1}}")
    (line,) = error_of(["fit", str(tiny_recipe(tmp_path, {})), *words], capsys).partition("error: ")[2].splitlines()
    assert message in line
