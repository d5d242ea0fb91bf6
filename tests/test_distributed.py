"""Processes on the CPU: an event leaves the same weights on all of them, and those that one process gets."""

import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, {tests!r})
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader
from lightning_fire import AtEpochs, FIRECallback, FullReset
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


class WholeBatch(GrowingData):  # each process sees all of the data: the gradient is that of one process
    def train_dataloader(self):
        return DataLoader(dataset(size=12 * (self.chunk + 1)), batch_size=6)


if __name__ == "__main__":
    import os

    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.manual_seed(rank if {unseeded} else 0)
    options = dict(strategy="ddp", devices={devices}, use_distributed_sampler=False) if {devices} > 1 else {{}}
    module = PlainModule()
    methods = [
        FIRECallback(AtEpochs([1, 4])),
        FullReset(AtEpochs([2])),
        FullReset(AtEpochs([3]), target="fresh", seed=3, name="fresh"),
    ]
    trainer(*methods, Save(rank), max_epochs=6, folder={folder!r}, **options).fit(module, datamodule=WholeBatch())
"""


def states(folder: Path, devices: int, unseeded: bool = False) -> list[list[dict[str, torch.Tensor]]]:
    """Train; return for each rank its states at the first batch of each epoch."""
    script = folder / f"train{devices}.py"
    tests = str(Path(__file__).parent)
    script.write_text(SCRIPT.format(tests=tests, folder=str(folder), devices=devices, unseeded=unseeded))
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return [torch.load(folder / f"{devices}-{rank}.pt", weights_only=True) for rank in range(devices)]


def test_two_processes_get_the_weights_of_one(tmp_path):
    (one,) = states(tmp_path, devices=1)
    first, second = states(tmp_path, devices=2)
    assert len(one) == len(first) == 6
    for epoch in range(6):
        for name in one[epoch]:
            if "running" not in name:  # BatchNorm's statistics are each rank's own
                assert torch.equal(first[epoch][name], second[epoch][name]), (epoch, name)
            torch.testing.assert_close(first[epoch][name], one[epoch][name], rtol=1e-4, atol=1e-5)


def test_ranks_that_were_built_differently_are_reset_to_the_same_values(tmp_path):
    """Without `seed_everything` DDP makes them equal, and a reset keeps them so."""
    first, second = states(tmp_path, devices=2, unseeded=True)
    for name in first[0]:
        assert torch.equal(first[2][name], first[0][name]), name
        assert torch.equal(second[2][name], first[0][name]), name
