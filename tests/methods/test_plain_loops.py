"""Every method in a plain PyTorch loop, without lightning: the weights that its callback gives."""

import copy
import os
import subprocess
import sys
from dataclasses import replace

import lightning.pytorch as pl
import plain_loops
import pytest
import torch
from plain_loops import CHUNK, EPOCHS, METHODS, NAMES, Loop, batches, network
from small_training import trainer
from torch.utils._pytree import tree_flatten

from lightning_fire import METHODS as EVERY
from lightning_fire import AtNewData, FeatureRank, HareAndTortoise, PlasticityCallback, methods


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Data(pl.LightningDataModule):
    num_chunks = EPOCHS // CHUNK

    @property
    def chunk(self) -> int:
        return self.trainer.current_epoch // CHUNK

    def train_dataloader(self):
        return torch.utils.data.DataLoader(batches(self.trainer.current_epoch), batch_size=None)


def callback_of(name):
    if name == "hare_and_tortoise":
        return HareAndTortoise(AtNewData(), momentum=0.9)
    if name == "feature_rank":
        return FeatureRank(1e-2, every_n_batches=3)
    method = METHODS[name]
    return PlasticityCallback(replace(method, head="net.5") if name == "plasticity_injection" else method)


@pytest.fixture
def accelerate():
    library = pytest.importorskip("accelerate")
    yield library
    library.state.AcceleratorState._reset_state(reset_partial_state=True)
    library.state.GradientState._reset_state()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> dict[str, dict[str, torch.Tensor]]:
    """The weights of all methods, from a process in which lightning and torchvision cannot be imported."""
    path = tmp_path_factory.mktemp("plain") / "weights.pt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, plain_loops.__file__, str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return torch.load(path, weights_only=True)


def test_every_method_is_here():
    assert {type(method) for method in METHODS.values()} == set(EVERY)


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_loop_gives_the_weights_of_the_callback(name, plain):
    module = Module()
    trainer(callback_of(name), max_epochs=EPOCHS).fit(module, datamodule=Data())
    vanilla = Loop().run()
    for key, expected in module.net.state_dict().items():
        assert torch.equal(plain[name][key], expected), key
    assert any(not torch.equal(plain[name][key], vanilla[key]) for key in vanilla if key in plain[name])


OF_ANOTHER_STRUCTURE = {"plasticity_injection"}  # the model with an injection has more parameters


@pytest.mark.parametrize("name", sorted({*NAMES} - OF_ANOTHER_STRUCTURE))
def test_a_plain_loop_resumes_to_equal_weights(name, plain):
    """Statistics, draws and weights from their state_dicts, in the middle of a training, between two events."""
    first, second = Loop(name), Loop(name)
    first.run(until=3)
    states = copy.deepcopy(first.states())
    second.load(states)
    (leaves, structure), (others, other_structure) = tree_flatten(states), tree_flatten(second.states())
    assert structure == other_structure
    for a, b in zip(leaves, others, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    second.epoch = first.epoch
    resumed = second.run()
    assert all(torch.equal(resumed[key], value) for key, value in plain[name].items())


def accumulated(accelerate, name, parts):
    """The weights after a training by accelerate whose batches arrive in a number of parts."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=parts)
    model = network()
    initial, optimizer = methods.initial_values(model), torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    loop = methods.Loop(optimizer, lambda: model(batches(0)[0][0]), initial=initial)
    attached = METHODS[name].attach(model, loop)
    for whole in [*batches(0), *batches(CHUNK)]:
        for x, y in zip(*(tensor.chunk(parts) for tensor in whole), strict=True):
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
                attached.before_step(optimizer)
                optimizer.step()
                optimizer.zero_grad()
                attached.after_step()
    return model.state_dict()


@pytest.mark.parametrize(
    "name",  # without SNR, whose thresholds may hang on the rounding of a sum in parts
    [name for name, method in METHODS.items() if isinstance(method, methods.StepMethod) and name != "snr"],
)
def test_batches_that_accelerate_accumulates_are_one_step(name, accelerate):
    once, in_parts = (accumulated(accelerate, name, parts) for parts in (1, 3))
    for key, expected in once.items():
        torch.testing.assert_close(in_parts[key], expected, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("in_hook", [False, True])
def test_a_step_that_accelerate_skips_is_none(in_hook, accelerate):
    accelerate.Accelerator(cpu=True)
    model = network()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = accelerate.optimizer.AcceleratedOptimizer(plain, scaler=torch.amp.GradScaler("cpu"))
    attached = methods.SelectiveWeightReinit(0.1, 1, "magnitude").attach(model, methods.Loop(optimizer))
    if in_hook:
        plain.register_step_post_hook(lambda *_: attached.after_step())
    for finite in (False, True, False, True):
        loss = model(batches(0)[0][0]).sum() * (1.0 if finite else torch.inf)
        optimizer.scaler.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer.step_was_skipped is not finite
        if not in_hook:
            attached.after_step()
    assert attached.state_dict()["steps"] == 2
