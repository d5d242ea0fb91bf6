"""The language task of the board: it runs over its chunks with each method, and logs the number of the board."""

import pytest
from jsonargparse import Namespace
from recipe_files import ROOT, Unbuilt, acting, methods_of
from small_training import trainer
from two_texts import data

from lightning_fire.board.suite import read_suite
from lightning_fire.cli import main
from lightning_fire.recipe.parser import METHOD_KEYS, callbacks_of
from lightning_fire.when import Never

PATH = ROOT / "board" / "language.yaml"
WITHOUT = ("vanilla", "weight_decay", "infinite_schedule")
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


SUITE = read_suite()
RECIPE = SUITE.recipe_of(SUITE.tasks["language"])
TINY = ["--model.init_args.net.init_args", "{vocab_size: 16, block_size: 8, depth: 1, heads: 2, dim: 8}"]
TINY += ["--model.init_args.warmup", "0"]  # the rate of its first step is 0


@pytest.fixture(scope="module")
def parser():
    return Unbuilt(RECIPE.words("vanilla"), run=False).parser


@pytest.mark.parametrize("method", RECIPE.methods)
def test_every_method_of_the_board_acts_on_a_tiny_gpt(parser, method):
    """A step, new data, and one more."""
    parsed = parser.parse_args([*RECIPE.words(method), *TINY])
    built = parser.instantiate(Namespace({key: parsed[key] for key in ("model", *METHOD_KEYS)}))
    callbacks = callbacks_of(*(built[key] for key in METHOD_KEYS))
    training = trainer(*callbacks, max_epochs=2, limit_val_batches=0)
    training.fit(built.model, datamodule=data(epochs=1, steps_per_epoch=1, batch_size=2))
    assert training.global_step == 2 and all(p.isfinite().all() for p in built.model.parameters())
    with_events = [c for c in callbacks if hasattr(c, "num_events") and not isinstance(c.when, Never)]
    assert [callback.num_events for callback in with_events] == [1] * len(with_events)
    assert built.model.net.lm_head.weight is built.model.net.transformer.wte.weight


def test_without_the_text_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"kjv\.txt does not exist: put the King James text there, or any"):
        main(["fit", str(PATH), "--trainer.logger", "false"])
