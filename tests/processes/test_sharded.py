"""Weights sharded over processes on the CPU (FSDP2, tensor parallelism): events leave those that one process gets."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from processes import run
from small_training import GrowingData, PlainModule, dataset, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from lightning_fire import (
    AtEpochs,
    FIRECallback,
    FullReset,
    PlasticityCallback,
    PlasticityMonitor,
    ShrinkAndPerturb,
    Weights,
)
from lightning_fire.distributed import gathered

pytestmark = pytest.mark.slow(20)

EPOCHS = 6
RESUMED = 3


class Fused(nn.Module):
    """Queries, keys and values of one weight, each of which crosses the border between two ranks' parts."""

    def __init__(self):
        super().__init__()
        self.heads = 1
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        return query.tanh() * key.tanh() + value


class ShardedModule(PlainModule):
    """Its last layers belong to the root of FSDP, which stays whole after a validation step; 3 rows on 2 ranks."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), Fused(), nn.ReLU(), nn.Linear(8, 3))

    def configure_model(self):
        if not isinstance(self.trainer.strategy, ModelParallelStrategy) or isinstance(self.net[0].weight, DTensor):
            return
        if self.device_mesh["tensor_parallel"].size() > 1:
            plan = {"0": ColwiseParallel(output_layouts=Replicate()), "4": ColwiseParallel(output_layouts=Replicate())}
            parallelize_module(self.net, self.device_mesh["tensor_parallel"], plan)
        for layer in [*self.net[:3], self.net]:
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    validation_step = PlainModule.training_step


class SameDataEverywhere(GrowingData):
    """So the mean gradient of all ranks is that of one process."""

    def train_dataloader(self):
        return DataLoader(dataset(size=12 * (self.chunk + 1)), batch_size=6)

    val_dataloader = train_dataloader


class States(Callback):
    """Keeps the whole weights at the first batch of each epoch, right after the event."""

    def __init__(self, rank):
        self.rank = rank
        self.kept = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self.kept[trainer.current_epoch] = whole(pl_module)


def whole(module):
    return {name: gathered(parameter).clone() for name, parameter in module.named_parameters()}


def train(folder: str, devices: int, data_parallel: int) -> None:
    """Train, then resume from the middle; each rank saves its states. Runs in every process."""
    for checkpoint in (None, f"{folder}/checkpoints{devices}/epoch={RESUMED - 1}.ckpt"):
        torch.manual_seed(0)
        where = Weights("gpt", split={"qkv": {"q": 8, "k": 8, "v": 8}})
        methods = [
            FIRECallback(AtEpochs([1, 4]), where=where),
            PlasticityCallback(FullReset(), AtEpochs([2])),
            PlasticityCallback(ShrinkAndPerturb(strength=0.5), AtEpochs([5])),
            PlasticityMonitor(where),
        ]
        saving = ModelCheckpoint(f"{folder}/checkpoints{devices}", "{epoch}", save_top_k=-1)
        parts = ModelParallelStrategy(
            data_parallel_size=data_parallel,
            tensor_parallel_size=devices // data_parallel,
            save_distributed_checkpoint=devices > 2,
        )
        options = {"strategy": parts, "devices": devices, "use_distributed_sampler": False} if devices > 1 else {}
        name = "resumed" if checkpoint else "whole"
        fit = trainer(
            *methods,
            saving,
            states := States(0),
            max_epochs=EPOCHS,
            folder=Path(folder, f"log{devices}-{name}"),
            **options,
        )
        module = ShardedModule()
        fit.fit(module, datamodule=SameDataEverywhere(), ckpt_path=checkpoint)
        if not checkpoint and devices > 1:
            assert isinstance(module.net[4].weight, DTensor)
            assert module.net[4].weight.to_local().numel() < 24
        torch.save(states.kept, Path(folder, f"{name}{devices}-{fit.global_rank}.pt"))


def trained(folder: Path, devices: int, data_parallel: int) -> tuple[list[dict], list[dict]]:
    """Return the states of the whole and of the resumed training, for each rank."""
    run(f"from test_sharded import train\ntrain({str(folder)!r}, {devices}, {data_parallel})\n", folder, devices)
    return tuple(
        [torch.load(folder / f"{name}{devices}-{rank}.pt", weights_only=True) for rank in range(devices)]
        for name in ("whole", "resumed")
    )


def scalars(folder: Path, devices: int) -> dict[str, list[float]]:
    log = EventAccumulator(str(folder / f"log{devices}-whole"))
    log.Reload()
    return {tag: [event.value for event in log.Scalars(tag)] for tag in log.Tags()["scalars"]}


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="torch 2.6 shards on GPUs alone")
@pytest.mark.parametrize(("devices", "data_parallel"), [(2, 2), (4, 2)], ids=["fsdp", "fsdp and tensor parallel"])
def test_sharded_processes_get_the_weights_of_one(tmp_path, devices, data_parallel):
    (one,), _ = trained(tmp_path, 1, 1)
    by_rank, resumed = trained(tmp_path, devices, data_parallel)
    assert list(one) == list(range(EPOCHS))
    assert list(resumed[0]) == list(range(RESUMED, EPOCHS))
    for states in by_rank:
        for epoch, state in one.items():
            for name, value in state.items():
                torch.testing.assert_close(states[epoch][name], value, rtol=1e-4, atol=1e-5)
    for states, again in zip(by_rank, resumed, strict=True):
        for epoch, state in again.items():
            assert all(torch.equal(value, states[epoch][name]) for name, value in state.items()), epoch
    logged, expected = scalars(tmp_path, devices), scalars(tmp_path, 1)
    for tag in ("fire/sfe", "fire.raw/dfi_after", "plasticity.raw/dfi", "plasticity/gradient_norm"):
        assert logged[tag] == pytest.approx(expected[tag], rel=1e-3), tag
    assert "fire/lambda_max_after" in expected
    assert "fire/lambda_max_after" not in logged
