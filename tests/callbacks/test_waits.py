"""In a fit on a GPU, which is pretended, callbacks wait for it a few times, whatever the number of layers."""

import itertools

import numpy as np
import pytest
from methods_table import EVENTS, callback_of
from pretended_fit import BATCHES, waits_of_fit
from token_files import write_tokens

from lightning_fire import EveryNSteps, FeatureRank, FIRECallback, Log, PlasticityMonitor
from lightning_fire.data import TextDataModule
from lightning_fire.modules import LanguageModel
from lightning_fire.nets import GPT

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
WITHOUT = Log(curvature=False)


def test_an_event_of_fire_waits_twice():
    verified = 1  # at each of the next two steps
    assert waits_of_fit(FIRECallback(EveryNSteps(BATCHES), log=WITHOUT)) == [0, 0, 0, 2 + verified, verified, 0]


def test_lambda_max_waits_once_for_each_product():
    waits = waits_of_fit(FIRECallback(EveryNSteps(BATCHES)))[BATCHES]
    assert 2 + 1 + 2 * 2 < waits <= 2 + 1 + 2 * (1 + 5)


@pytest.mark.parametrize("name", [name for name in EVENTS if name not in ("plasticity_injection", "dash")])
def test_events_wait_less_than_once_for_each_layer(name):
    callback = callback_of(name, EveryNSteps(BATCHES))
    callback.curvature = False
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
