"""In a fit on a GPU, which is pretended, callbacks wait for it a few times, whatever the number of layers."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Callback
from methods_table import EVENTS, callback_of
from pretended_fit import BATCHES, waits_of_fit
from small_training import PlainModule, fitted
from token_files import write_tokens
from torch import nn

import lightning_fire
from lightning_fire import EveryNSteps, FeatureRank, FIRECallback, Log, PlasticityMonitor
from lightning_fire.data import TextDataModule
from lightning_fire.modules import LanguageModel
from lightning_fire.nets import GPT

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
WITHOUT = Log(curvature=False)


def test_an_event_of_fire_waits_twice():
    looked_at = 1  # once, before the second step after it
    assert waits_of_fit(FIRECallback(EveryNSteps(BATCHES), log=WITHOUT)) == [0, 0, 0, 2, looked_at, 0]


def test_lambda_max_waits_once_for_each_product():
    waits = waits_of_fit(FIRECallback(EveryNSteps(BATCHES)))[BATCHES]
    assert 2 + 2 * 2 < waits <= 2 + 2 * (1 + 5)


@pytest.mark.parametrize("name", [name for name in EVENTS if name not in ("plasticity_injection", "dash")])
def test_events_wait_less_than_once_for_each_layer(name):
    callback = callback_of(name, EveryNSteps(BATCHES))
    callback.observers = []
    assert max(waits_of_fit(callback)) <= 3


def test_a_step_of_feature_rank_waits_once():
    assert waits_of_fit(FeatureRank(0.01, every_n_batches=1)) == [1] * 2 * BATCHES


def test_the_monitor_waits_at_the_end_of_an_epoch_alone():
    waits = waits_of_fit(PlasticityMonitor(data_every_n_steps=None))
    assert waits == [0, 0, 2, 0, 0, 2]  # the norm of the gradient, and those of the weights


def test_a_language_model_waits_at_the_end_of_an_epoch_alone(monkeypatch, tmp_path):
    """Not to show its loss, which Lightning would read after each batch."""
    clock = itertools.count(1.0)
    monkeypatch.setattr(LanguageModel, "_now", lambda self: next(clock))

    def make():
        folder = write_tokens(tmp_path / "text", np.arange(200) % 8, np.arange(50) % 8)
        data = TextDataModule({"text": str(folder)}, [{"text": 1.0}], 2, BATCHES, 2, 4)
        return LanguageModel(GPT(vocab_size=256, block_size=4, depth=1, heads=1, dim=4), warmup=0.0), data

    waits = waits_of_fit(make=make)
    assert waits[:2] == waits[3:5] == [0, 0]


def calls_of_a_fit(layers):
    """Count the calls by this package in the hooks around each batch, but for the first and the last of each epoch."""
    package, found = str(Path(lightning_fire.__file__).parent), []

    class Counts(Callback):
        def count(self, trainer, pl_module, *args):
            if trainer.num_training_batches - 1 > args[-1] > 0:
                sys.setprofile(
                    lambda frame, *_: found.append(frame.f_code) if package in frame.f_code.co_filename else None
                )

        on_train_batch_start = on_train_batch_end = count

    class Stops(Callback):
        def on_train_batch_start(self, *_):
            sys.setprofile(None)

        on_train_batch_end = on_train_batch_start

    module = PlainModule()
    module.net.extend([nn.Linear(3, 3) for _ in range(layers)])
    fitted(Counts(), FIRECallback(), PlasticityMonitor(data_every_n_steps=None), Stops(), module=module, max_epochs=4)
    return len(found)


def test_what_an_idle_callback_does_around_a_batch_does_not_grow_with_the_layers():
    assert calls_of_a_fit(1) == calls_of_a_fit(30) > 0
