"""The language task of the board: it runs over its chunks with each method, and logs the number of the board."""

import pytest
from recipe_files import ROOT, acting, methods_of

from lightning_fire.cli import main

PATH = ROOT / "board" / "language.yaml"
WITHOUT = ("vanilla", "weight_decay", "infinite_schedule", "l2_er", "normalize_and_project")
EVENTS = {**dict.fromkeys(WITHOUT, 0), "small_reset": 2}  # callbacks that act at each change; others have one


@pytest.fixture
def short(tmp_path, monkeypatch):
    """The recipe with a probe of 2 steps instead of 80, and a text for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "text").mkdir(parents=True)
    (tmp_path / "data" / "text" / "kjv.txt").write_bytes(bytes(range(32, 127)) * 5000)
    whole = PATH.read_text()
    (tmp_path / "short.yaml").write_text(whole.replace("{steps: 80, ", "{steps: 2, "))
    assert whole.count("{steps: 80, ") == 1
    return tmp_path / "short.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("method", methods_of(PATH))
def test_two_steps_of_each_chunk(short, method):
    small = "--data.init_args.steps_per_epoch 2 --data.init_args.val_blocks 2 --data.init_args.batch_size 2"
    small += " --trainer.enable_progress_bar false --trainer.enable_model_summary false"
    small += " --trainer.enable_checkpointing false --trainer.logger false"
    trainer = main(["fit", str(short), "--method", method, *small.split()]).trainer
    assert trainer.global_step == 16
    acted = {name: callback.num_events for name, callback in acting(trainer).items() if hasattr(callback, "num_events")}
    assert acted.pop("OptimizerReset") == 7
    assert sorted(filter(None, acted.values())) == [7] * EVENTS.get(method, 1)
    assert 0 < trainer.callback_metrics["probe/loss"] < 100
    assert 0 < trainer.callback_metrics["val/loss"] < 100


def test_without_the_text_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"kjv\.txt does not exist: put the King James text there, or any"):
        main(["fit", str(PATH), "--trainer.logger", "false"])
