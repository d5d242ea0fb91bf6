"""Each probe, called in the middle of a fit, leaves the Trainer, the module and other callbacks as they were."""

import copy

import pytest
import torch
from lightning.pytorch import Callback
from small_training import GrowingData, PlainModule, assert_same_weights, dataset, fitted
from torch import nn
from torch.utils.data import DataLoader

from lightning_fire import ContinualBackprop, Loop, PlasticityCallback, SelfNormalizedReset, module_curvature
from lightning_fire.callbacks.probing.batches import BatchInHand, evaluating, without_side_effects
from lightning_fire.callbacks.probing.curvature import lambda_max
from lightning_fire.callbacks.probing.validation import validation_metrics


class Validated(PlainModule):
    """Its validation fails if told so."""

    fails = False

    def validation_step(self, batch, batch_idx):
        assert self.trainer.validating and not self.training
        if self.fails:
            raise RuntimeError("cannot validate")
        self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))


class Data(GrowingData):
    def val_dataloader(self):
        return DataLoader(dataset(12, seed=3), batch_size=6)


def failing(trainer, module, batch):
    module.fails = True
    with pytest.raises(RuntimeError, match="cannot validate"):
        validation_metrics(trainer, module, 2)
    module.fails = False


def runs(trainer, module, batch):
    with without_side_effects(module), evaluating(module):
        module.net(torch.randn(4, 6))


PROBES = {
    "validation": lambda trainer, module, batch: validation_metrics(trainer, module, 2),
    "a validation that fails": failing,
    "curvature": lambda trainer, module, batch: module_curvature(module, batch),
    "curvature of the batch in hand": lambda *given: lambda_max(BatchInHand(*given)),
    "the batch in hand": lambda *given: BatchInHand(*given).forward(),
    "the batch in hand, and the next": lambda *given: BatchInHand(*given).forward(2),
    "gradients": lambda trainer, module, batch: list(
        BatchInHand(trainer, module, batch).gradients(list(module.parameters()))
    ),
    "any run": runs,
}


class Probing(Callback):
    """Calls a probe before the first two batches of an epoch, and compares what it finds afterwards."""

    def __init__(self, name):
        self.probe, self.calls = PROBES[name], 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx > 1:
            return
        before = self.state(trainer, module)
        self.probe(trainer, module, batch)
        assert self.state(trainer, module) == before
        self.calls += 1

    @staticmethod
    def state(trainer, module):
        flags = trainer.training, trainer.validating, trainer.sanity_checking, trainer.state.stage, trainer.state.fn
        modes = [part.training for part in module.modules()]
        logged = sorted(trainer.callback_metrics)
        tensors = [tensor.tolist() for tensor in module.state_dict().values()]
        gradients = [parameter.grad is None for parameter in module.parameters()]
        hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()]
        return flags, modes, logged, tensors, gradients, hooks, torch.is_grad_enabled(), torch.get_rng_state().tolist()


def method():
    return PlasticityCallback(SelfNormalizedReset(rejection=0.3, refresh_every=3, max_silence=24))


@pytest.fixture(scope="module")
def without_probes():
    callback, module = method(), seeded()
    fitted(callback, module=module, data=Data(), max_epochs=3, num_sanity_val_steps=0)
    assert callback._state["num_reset"]
    return module


def seeded():
    torch.manual_seed(0)
    return Validated()


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_changes_nothing_in_a_training_with_a_method_that_watches_the_units(name, without_probes):
    """Passes of probes do not count for its statistics."""
    probing, module = Probing(name), seeded()
    fitted(method(), probing, module=module, data=Data(), max_epochs=3, num_sanity_val_steps=0)
    assert probing.calls == 6
    assert_same_weights(module, without_probes)


@pytest.mark.parametrize("kind", [ContinualBackprop, SelfNormalizedReset])
def test_passes_without_side_effects_do_not_count_in_a_plain_loop(kind):
    """Of the model that is watched, also as a part of another; passes before and after them count."""
    states = []
    for looks in (0, 2):
        module = seeded()
        method = kind().attach(module.net, Loop(forward=lambda net=module.net: net(torch.ones(2, 6))))
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
        for step in range(3):
            module.net(x[:3]).sum().backward()
            for _ in range(looks):
                with without_side_effects(module):
                    module.net(100 * x)
            module.net(x[3 + step :]).sum().backward()
            method.after_step()
        states.append(copy.deepcopy(method.state_dict()))
    assert str(states[0]) == str(states[1])


class Transforms:
    """Scales, shifts and turns a batch around its transfer to the device."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [2 * batch[0], *batch[1:]]

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return [batch[0] + 1, *batch[1:]]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0].flip(1), *batch[1:]]


class Keeping(PlainModule):
    def __init__(self):
        super().__init__()
        self.got = []

    def training_step(self, batch, batch_idx):
        self.got.append(batch)
        return super().training_step(batch, batch_idx)


class TransformingModule(Transforms, Keeping):
    pass


class TransformingData(Transforms, GrowingData):
    pass


@pytest.mark.filterwarnings("ignore:You have overridden")
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
@pytest.mark.parametrize(("module", "data"), [(Keeping, TransformingData), (TransformingModule, GrowingData)])
def test_the_batches_of_a_probe_are_those_that_training_gets(module, data, precision):
    class Looks(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 0:
                self.upcoming = []
                BatchInHand(trainer, pl_module, batch).forward(9, lambda _, batch: self.upcoming.append(batch))

        def on_train_epoch_end(self, trainer, pl_module):
            got, pl_module.got = pl_module.got, []
            assert len(got) == len(self.upcoming) == 2
            for one, other in zip(got, self.upcoming, strict=True):
                assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))

    fitted(Looks(), module=module(), data=data(), max_epochs=1, precision=precision)
