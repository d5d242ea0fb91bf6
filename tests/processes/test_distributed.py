"""Processes on the CPU: an event leaves the same weights on all of them, and those that one process gets."""

import json
from pathlib import Path

import pytest
import torch
from processes import run
from small_training import PlainModule, dataset
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader

from lightning_fire.functional import critical_sharpness, loss_curvature, optimization_readiness

pytestmark = pytest.mark.slow(10)

SCRIPT = """
import json
import os
from pathlib import Path

import torch
from lightning.pytorch import Callback
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader
from lightning_fire import *
from small_training import GrowingData, PlainModule, dataset, trainer

class Save(Callback):
    def __init__(self, rank):
        self.path = Path({folder!r}, f"{devices}-{{rank}}.pt")
        self.states = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:  # right after the event
            self.states.append({{name: tensor.clone() for name, tensor in pl_module.state_dict().items()}})

    def on_train_epoch_end(self, trainer, pl_module):
        torch.save(self.states, self.path)


class Data(GrowingData):
    def train_dataloader(self):  # seed 0 for all ranks: the gradient is that of one process
        return DataLoader(dataset(size=12 * (self.chunk + 1), seed={own_data} * rank), batch_size=6)


class FailsOnRankOne(PlainModule):
    def training_step(self, batch, batch_idx):
        if not self.training and int(os.environ.get("LOCAL_RANK", 0)):
            raise RuntimeError("out of memory, on this rank only")
        return super().training_step(batch, batch_idx)


class Shares(PlainModule):
    def configure_optimizers(self):
        if {devices} == 1:
            return super().configure_optimizers()
        return ZeroRedundancyOptimizer(self.parameters(), torch.optim.Adam, lr=1e-2)  # each rank: state of some


if __name__ == "__main__":
    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.manual_seed(rank if {unseeded} else 0)
    options = dict(strategy="ddp", devices={devices}, use_distributed_sampler=False) if {devices} > 1 else {{}}
    module = {module}()
    methods = [{methods}]
    folder = Path({folder!r}, "log{devices}")
    trainer(*methods, Save(rank), max_epochs=6, folder=folder, **options).fit(module, datamodule=Data())
    if rank == 0:
        Path({folder!r}, "resets").write_text(json.dumps([method._state.get("num_reset", 1) for method in methods]))
"""
REWRITES = """
        FIRECallback(AtEpochs([1, 4])),
        PlasticityCallback(FullReset(), AtEpochs([2])),
        PlasticityCallback(FullReset(fresh_seed=3), AtEpochs([3]), log=Log(name="fresh")),
        PlasticityCallback(ShrinkAndPerturb(strength=0.5), AtEpochs([4])),
        PlasticityCallback(DASH(), AtEpochs([5])),
"""
UNITS = """
        PlasticityCallback(ReDo(threshold=0.5), EveryNEpochs(2)),
        PlasticityCallback(ContinualBackprop(0.1, maturity=2)),
"""
SHARED = """
        FIRECallback(AtEpochs([1])),
        PlasticityCallback(OptimizerReset(), AtEpochs([3])),
        PlasticityCallback(ReDo(threshold=0.5), AtEpochs([4])),
"""


def states(
    folder: Path,
    devices: int,
    methods: str = REWRITES,
    unseeded: bool = False,
    own_data: bool = False,
    module: str = "PlainModule",
    launched_by_lightning: bool = False,
) -> list[list[dict[str, torch.Tensor]]]:
    """Train; return for each rank its states at the first batch of each epoch."""
    names = {"folder": str(folder), "devices": devices, "methods": methods, "module": module}
    source = SCRIPT.format(**names, unseeded=unseeded, own_data=int(own_data))
    run(source, folder, ranks=1 if launched_by_lightning else devices)
    return [torch.load(folder / f"{devices}-{rank}.pt", weights_only=True) for rank in range(devices)]


def assert_ranks_agree(first, second):
    assert len(first) == len(second) == 6
    for epoch in range(6):
        for name in first[epoch]:
            if "running" not in name:  # BatchNorm's statistics are each rank's own
                assert torch.equal(first[epoch][name], second[epoch][name]), (epoch, name)


@pytest.mark.parametrize(
    ("methods", "devices", "module"),
    [
        (REWRITES, 2, "PlainModule"),
        pytest.param(REWRITES, 4, "PlainModule", marks=pytest.mark.crash),
        (UNITS, 2, "PlainModule"),
        (SHARED, 2, "Shares"),
    ],
)
def test_processes_get_the_weights_of_one(tmp_path, methods, devices, module):
    (one,) = states(tmp_path, 1, methods, module=module)
    first, *others = states(tmp_path, devices, methods, module=module)
    assert len(others) == devices - 1
    for other in others:
        assert_ranks_agree(first, other)
    for epoch in range(6):
        for name in one[epoch]:
            torch.testing.assert_close(first[epoch][name], one[epoch][name], rtol=1e-4, atol=1e-5)


def test_ranks_with_data_of_their_own_act_equally(tmp_path):
    """Ranks agree on what depends on data: directions, activities, inter-firing intervals."""
    snr = "PlasticityCallback(SelfNormalizedReset(0.3, refresh_every=3, max_silence=40))"
    first, second = states(tmp_path, 2, f"PlasticityCallback(DASH(), AtEpochs([1, 3])), {snr}, {UNITS}", own_data=True)
    assert_ranks_agree(first, second)
    _, *resets = json.loads((tmp_path / "resets").read_text())
    assert min(resets) > 0


def lambda_max(folder: Path, devices: int) -> list[float]:
    log = EventAccumulator(str(folder / f"log{devices}"))
    log.Reload()
    return [event.value for event in log.Scalars("fire/lambda_max_after")]


def test_the_curvature_is_that_of_the_mean_loss_of_all_ranks(tmp_path):
    """Each rank has its own data, and its own BatchNorm statistics."""
    by_rank = states(tmp_path, 2, "FIRECallback(AtEpochs([1, 4]))", own_data=True)
    nets = [PlainModule().net.eval() for _ in by_rank]
    parameters = list(nets[0].parameters())
    for epoch, logged in zip((1, 4), lambda_max(tmp_path, 2), strict=True):
        losses = []
        for rank, (net, saved) in enumerate(zip(nets, by_rank, strict=True)):
            net.load_state_dict({name.removeprefix("net."): value for name, value in saved[epoch].items()})
            x, y = next(iter(DataLoader(dataset(size=12 * (epoch // 2 + 1), seed=rank), batch_size=6)))
            shared = dict(nets[0].named_parameters())
            losses.append(nn.functional.cross_entropy(functional_call(net, shared, (x,)), y))
        assert logged == pytest.approx(loss_curvature(sum(losses) / 2, parameters).value, rel=0.02)
        assert logged != pytest.approx(loss_curvature(losses[0], parameters).value, rel=0.02)


def test_a_rank_that_cannot_compute_a_metric_does_not_block_the_others(tmp_path):
    methods = "PlasticityMonitor(data_every_n_steps=1), FIRECallback(AtEpochs([1]))"
    first, second = states(tmp_path, 2, methods, module="FailsOnRankOne")
    assert_ranks_agree(first, second)
    log = EventAccumulator(str(tmp_path / "log2"))
    log.Reload()
    tags = set(log.Tags()["scalars"])
    assert {"fire/sfe", "plasticity.raw/dfi"} <= tags
    assert not tags & {"fire/lambda_max_before", "plasticity/srank", "plasticity/dormant_fraction"}


def test_ranks_that_were_built_differently_are_reset_to_the_same_values(tmp_path):
    """Without `seed_everything` DDP makes them equal, and a reset keeps them so."""
    first, second = states(tmp_path, 2, unseeded=True, launched_by_lightning=True)
    for name in first[0]:
        assert torch.equal(first[2][name], first[0][name]), name
        assert torch.equal(second[2][name], first[0][name]), name


def test_readiness_and_critical_sharpness_are_those_of_the_samples_of_all_ranks(tmp_path):
    """Readiness of the micro-batches of both ranks together, sharpness of the mean loss; 4 of 6 samples of each."""
    first, second = states(tmp_path, 2, "PlasticityMonitor(data_every_n_steps=1, num_batches=1)", own_data=True)
    log = EventAccumulator(str(tmp_path / "log2")).Reload()
    nets = [PlainModule().net.eval() for _ in range(2)]
    names, parameters = zip(*nets[0].named_parameters(), strict=True)
    for epoch in (0, 1):  # of the weights at its end
        nets[0].load_state_dict({name.removeprefix("net."): value for name, value in first[epoch + 1].items()})
        nets[1].load_state_dict({name.removeprefix("net."): value for name, value in second[epoch + 1].items()})
        loaders = [DataLoader(dataset(size=12, seed=rank), batch_size=6) for rank in range(2)]
        samples = [(x[:4], y[:4]) for _, (x, y) in loaders]

        def loss(rank, x, y, values=parameters):
            named = dict(zip(names, values, strict=True))
            return nn.functional.cross_entropy(functional_call(nets[rank], named, x), y)

        def mean_loss(values=parameters, samples=samples):
            return sum(loss(rank, *of, values) for rank, of in enumerate(samples)) / 2

        each = [loss(rank, x[i : i + 1], y[i : i + 1]) for rank, (x, y) in enumerate(samples) for i in range(4)]
        gradients = [torch.cat([g.flatten() for g in torch.autograd.grad(one, parameters)]) for one in each]
        along = torch.autograd.grad(mean_loss(), parameters)

        @torch.no_grad()
        def after(step, along=along, mean_loss=mean_loss):
            return float(mean_loss([p - step * d for p, d in zip(parameters, along, strict=True)]))

        sharpness = critical_sharpness(after, -float(sum(part.square().sum() for part in along))).value
        logged = {key: log.Scalars(f"plasticity/{key}")[epoch].value for key in ("readiness", "critical_sharpness")}
        assert logged == {
            "readiness": pytest.approx(float(optimization_readiness(torch.stack(gradients))), rel=1e-3),
            "critical_sharpness": pytest.approx(sharpness, rel=1e-3),
        }
        of_one = float(optimization_readiness(torch.stack(gradients[:4])))
        assert logged["readiness"] != pytest.approx(of_one, rel=0.02)
