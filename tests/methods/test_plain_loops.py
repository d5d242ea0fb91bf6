"""Every method in a plain PyTorch loop, without lightning: the weights that its callback gives."""

import copy
import os
import subprocess
import sys

import lightning.pytorch as pl
import plain_loops
import pytest
import torch
from plain_loops import CHUNK, EPOCHS, METHODS, Loop, batches, network
from small_training import trainer
from torch.utils._pytree import tree_flatten

import lightning_fire as lf


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


CALLBACKS = {
    "fire": lambda: lf.FIRECallback(where=lf.Weights(preset="cnn")),
    "shrink_and_perturb": lambda: lf.PlasticityCallback(lf.ShrinkAndPerturb()),
    "shrink_and_perturb_fresh": lambda: lf.PlasticityCallback(
        lf.ShrinkAndPerturb(strength=0.6, perturb=0.1, fresh_seed=3)
    ),
    "full_reset": lambda: lf.PlasticityCallback(lf.FullReset()),
    "reset_of_the_head": lambda: lf.PlasticityCallback(lf.FullReset(where=lf.Parameters(include=[r"net\.5"]))),
    "optimizer_reset": lambda: lf.PlasticityCallback(lf.OptimizerReset()),
    "dash": lambda: lf.PlasticityCallback(lf.DASH(num_batches=4)),
    "plasticity_injection": lambda: lf.PlasticityCallback(lf.PlasticityInjection("net.5", seed=7)),
    "redo": lambda: lf.PlasticityCallback(lf.ReDo(threshold=0.5, num_batches=2, seed=5)),
    "redo_pre_activation": lambda: lf.PlasticityCallback(
        lf.ReDo(threshold=0.5, num_batches=2, seed=5, score="pre_activation")
    ),
    "redo_gradient": lambda: lf.PlasticityCallback(lf.ReDo(threshold=0.5, seed=5, score="gradient")),
    "continual_backprop": lambda: lf.PlasticityCallback(
        lf.ContinualBackprop(replacement_rate=0.05, maturity=3, seed=5)
    ),
    "snr": lambda: lf.PlasticityCallback(
        lf.SelfNormalizedReset(rejection=0.2, refresh_every=3, max_silence=40, seed=5)
    ),
    "continual_backprop_pre_activation": lambda: lf.PlasticityCallback(
        lf.ContinualBackprop(0.05, maturity=3, seed=5, score="pre_activation")
    ),
    "snr_pre_activation": lambda: lf.PlasticityCallback(
        lf.SelfNormalizedReset(0.2, 3, max_silence=40, seed=5, score="pre_activation")
    ),
    "hare_and_tortoise": lambda: lf.HareAndTortoise(lf.AtNewData(), momentum=0.9),
    "weight_projection": lambda: lf.PlasticityCallback(lf.WeightProjection()),
    "parseval": lambda: lf.PlasticityCallback(lf.Parseval(1e-2, norms=True)),
    "spectral": lambda: lf.PlasticityCallback(lf.SpectralRegularization(1e-2)),
    "isometry_decay": lambda: lf.PlasticityCallback(lf.IsometryDecay(1.0)),
    "feature_rank": lambda: lf.FeatureRank(1e-2, every_n_batches=3),
    "l2_init": lambda: lf.PlasticityCallback(lf.L2Init(1e-1)),
}


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
    assert set(CALLBACKS) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_plain_loop_gives_the_weights_of_the_callback(name, plain):
    module = Module()
    trainer(CALLBACKS[name](), max_epochs=EPOCHS).fit(module, datamodule=Data())
    for key, expected in module.net.state_dict().items():
        assert torch.equal(plain[name][key], expected), key


def test_the_methods_make_a_difference(plain):
    vanilla = Loop().run()
    for name, weights in plain.items():
        assert any(not torch.equal(weights[key], vanilla[key]) for key in vanilla if key in weights), name


def loop_and_methods(name, monkeypatch):
    """A loop with a method, and what of it has a state: what is attached, the loops that count events, the objects."""
    made = []

    def noting(function):
        def noted(*args, **options):
            made.append(function(*args, **options))
            return made[-1]

        return noted

    with monkeypatch.context() as patch:
        patch.setattr(lf.methods.StepMethod, "attach", noting(lf.methods.StepMethod.attach))
        for kind in ("RankAscent", "Tortoise", "Loop"):
            patch.setattr(plain_loops.methods, kind, noting(getattr(lf.methods, kind)))
        loop = Loop()
        METHODS[name](loop)
    return loop, made


OF_ANOTHER_STRUCTURE = {"plasticity_injection"}  # the model with an injection has more parameters


@pytest.mark.parametrize("name", sorted(METHODS.keys() - OF_ANOTHER_STRUCTURE))
def test_a_plain_loop_resumes_to_equal_weights(name, monkeypatch):
    """Statistics, draws and weights from their state_dicts, in the middle of a training, between two events."""
    whole = plain_loops.trained(name)
    first, made = loop_and_methods(name, monkeypatch)
    first.run(until=3)
    second, restored = loop_and_methods(name, monkeypatch)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    for method, other in zip(made, restored, strict=True):
        if hasattr(method, "state_dict"):
            state = copy.deepcopy(method.state_dict())
            other.load_state_dict(state)
            if state:
                assert_equal(other.state_dict(), state)
        if isinstance(method, lf.methods.Loop):
            other.event = method.event
    second.epoch, second.event = first.epoch, first.event
    resumed = second.run()
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)


def assert_equal(one, other):
    """Compare two states, tensor by tensor."""
    (leaves, structure), (others, other_structure) = tree_flatten(one), tree_flatten(other)
    assert structure == other_structure and leaves
    for a, b in zip(leaves, others, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
