"""Misspelt names in a recipe: the error is one line that names what was meant."""

from pathlib import Path

import pytest
from tiny_recipe import error_of, tiny_recipe


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method.class_path", "Fire"], "unknown class Fire; did you mean FIRE?"),
        (["--method.class_path", "FIRE", "--method.step", "3"], "FIRE has no argument step; did you mean steps?"),
        (["--method.class_path", "FIRE", "--when", "AtEpoch"], "AtEpoch; did you mean AtEpochs?"),
        (
            ["--method.class_path", "FIRECallback", "--method.scale", "procrustess"],
            "or 'auto', got procrustess; did you",
        ),
        (["--method.class_path", "FIRE", "--method.steps", "0"], "at least 1, or 'exact', got 0"),
        (["-c", "absent.yaml"], "absent.yaml"),
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


OWN = """
from lightning_fire.methods import FullReset
from lightning_fire.data import SmallFashionMNISTDataModule

class Own(FullReset):
    def __init__(self, strength: float = 1.0):
        super().__init__()

class Data(SmallFashionMNISTDataModule):
    def __init__(self, extra: int = 0, **options):
        super().__init__(**options)
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--method.class_path", "own_hints.Own", "--method.strenght", "3"],
            "method: Own has no argument strenght; did",
        ),
        (["--method.class_path", "own_hints.Owm"], "own_hints has no class Owm; did you mean Own?"),
        (
            ["--method.class_path", "own_hnits.Own"],
            "there is no module own_hnits, installed or in the current folder; did you mean",
        ),
        # of a base class
        (
            ["--data.class_path", "own_hints.Data", "--data.batch_sise", "3"],
            "argument batch_sise; did you mean batch_size?",
        ),
        (["--data.class_path", "own_hints.Data", "--data.extr", "3"], "Data has no argument extr; did you mean extra?"),
    ],
)
def test_names_of_ones_own_classes_are_found(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_hints.py").write_text(OWN)
    (line,) = error_of(["fit", str(tiny_recipe(tmp_path, {})), *words], capsys).partition("error: ")[2].splitlines()
    assert message in line
