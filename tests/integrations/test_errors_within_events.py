"""An error at any operation of an event leaves a training as it was; after a resume the event is made.

In Lightning, Hugging Face and Stable-Baselines3: weights, averages, optimizer state, gradients, modes, random states,
and the states of callbacks.
"""

import contextlib
import copy
import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, callbacks
from raising import RaisesAt, spread
from small_training import GrowingData, PlainModule, trainer
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_fire import DASH, FIRE, EveryNEpochs, EveryNSteps, FullReset, Log, PlasticityCallback, ReDo

pytestmark = pytest.mark.filterwarnings("ignore:after an event the next steps of")  # where a trial of them fails
METHODS = {"fire": FIRE(), "dash": DASH(), "redo": ReDo(threshold=0.9), "full_reset": FullReset(fresh_seed=0)}


class Event:
    """The first event of a training under a mode, with the state before it and after the training."""

    def __init__(self, mode):
        self.mode, self.before, self.raised = mode, None, False

    def run(self, state, act):
        if self.before is not None:
            return act()
        self.state, self.before = state, copy.deepcopy(state())
        try:
            with self.mode:
                return act()
        except MemoryError:
            self.raised = True
            raise


def state_of(model, optimizers, **others):
    flags = [(part.training, [p.requires_grad for p in part.parameters(recurse=False)]) for part in model.modules()]
    steps = [(o.state_dict()["state"], [{**group, "params": ()} for group in o.param_groups]) for o in optimizers]
    values = dict(model.state_dict()), [p.grad for p in model.parameters()], steps
    return [*values, flags, torch.get_rng_state(), np.random.get_state()[1], random.getstate(), others]


def differ(one, other):
    if isinstance(one, torch.Tensor | np.ndarray):
        return type(one) is not type(other) or not np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, dict):
        return one.keys() != other.keys() or any(differ(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) != len(other) or any(map(differ, one, other))
    return one != other


class Validated(PlainModule):
    def validation_step(self, batch, batch_idx):
        self.log("loss", self.training_step(batch, batch_idx))


class WithValidation(GrowingData):
    def val_dataloader(self):
        return self.train_dataloader()


class SavesOnFailure(Callback):
    def __init__(self, file):
        self.file = file

    def on_exception(self, trainer, pl_module, exception):
        trainer.save_checkpoint(self.file)


def lightning(method, event, folder, resume=False):
    stopping, average = callbacks.EarlyStopping("loss", patience=9), callbacks.EMAWeightAveraging(decay=0.9)

    class Watched(PlasticityCallback):
        def act(self, trainer, pl_module, clock):
            def state():
                kept = {"own": self.state_dict(), "patience": stopping.state_dict()}
                return state_of(pl_module, trainer.optimizers, average=average._average_model.state_dict(), **kept)

            return event.run(state, lambda: super(Watched, self).act(trainer, pl_module, clock))

    torch.manual_seed(0)
    module, acting = Validated(), Watched(method, EveryNEpochs(2), log=Log(curvature=False))
    fit = trainer(acting, stopping, average, SavesOnFailure(folder / "now.ckpt"), max_epochs=4)
    with contextlib.suppress(MemoryError):
        fit.fit(module, datamodule=WithValidation(), ckpt_path=folder / "now.ckpt" if resume else None)
    return acting.num_events, module


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        )

    def forward(self, x, labels=None):
        return {"loss": nn.functional.cross_entropy(self.net(x), labels)}


def watched(callback, event, kept):
    """Let the event of a callback run under a mode."""

    class Watched(type(callback)):
        def _act(self, *args, **options):
            def state():
                return state_of(self._network, self._loop.optimizers, own=self._state(), **kept(self))

            return event.run(state, lambda: super(Watched, self)._act(*args, **options))

    callback.__class__ = Watched


def huggingface(method, event, folder, resume=False):
    transformers = pytest.importorskip("transformers")
    from lightning_fire.integrations import huggingface as adapter

    torch.manual_seed(0)
    model = Body()
    average = AveragedModel(model)
    callback = adapter.PlasticityCallback(method, EveryNSteps(2), averages=average)
    watched(callback, event, lambda own: {"average": average.state_dict(), "last": own._last_event})
    options = {"max_steps": 3, "save_steps": 1, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    x = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
    data = [{"x": row, "labels": index % 3} for index, row in enumerate(x)]
    arguments = transformers.TrainingArguments(str(folder), learning_rate=1e-2, **options)
    with contextlib.suppress(MemoryError):
        fit = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        fit.train(resume_from_checkpoint=resume or None)
    return callback._event - 1, model


def stable_baselines3(method, event, folder, resume=False):
    sb3 = pytest.importorskip("stable_baselines3")
    from lightning_fire.integrations import stable_baselines3 as adapter

    options = {"n_steps": 32, "batch_size": 16, "n_epochs": 1, "policy_kwargs": {"net_arch": [8, 8]}, "seed": 0}
    model = sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu", **options)
    if resume:
        model = sb3.PPO.load(folder / "now", env=model.env)
    callback = adapter.PlasticityCallback(method, EveryNSteps(64))
    watched(callback, event, lambda own: {"asked": own._asked, "log": own.logger.name_to_value})
    with contextlib.suppress(MemoryError):
        model.learn(128 - model.num_timesteps, callback, reset_num_timesteps=not resume)
    model.save(folder / "now")
    return callback._event - 1, None  # environments are not saved


def check(library, method, folder, most):
    (folder / "whole").mkdir()
    events, whole = library(method, counted := Event(RaisesAt()), folder / "whole")
    assert events == 1 and differ(counted.before, counted.state()) and counted.mode.count > 50
    raised = 0
    for number in spread(counted.mode.count, most):
        event, own = Event(RaisesAt(number)), folder / str(number)
        own.mkdir()
        events, _ = library(method, event, own)
        raised += event.raised
        if not event.raised:
            continue  # a trial of an optimizer may fail, and is made once
        assert events or not differ(event.before, event.state()), f"operation {number} of {counted.mode.count}"
        events, resumed = library(method, Event(contextlib.nullcontext()), own, resume=True)
        assert events == 1
        assert whole is None or not differ(dict(whole.state_dict()), dict(resumed.state_dict()))
    assert raised


LIBRARIES = [
    pytest.param(
        lightning, marks=pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="of Lightning 2.6")
    ),
    huggingface,
    stable_baselines3,
]


@pytest.mark.slow(3)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["fire", "redo"])
def test_at_some_operations(tmp_path, library, name):
    check(library, METHODS[name], tmp_path, 4)


@pytest.mark.crash
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of torch's loader, half made
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", METHODS)
def test_at_all_operations(tmp_path, library, name):
    check(library, METHODS[name], tmp_path, 10**6)
