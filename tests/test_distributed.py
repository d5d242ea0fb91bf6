"""Two processes on the CPU: an event leaves the same weights on both, and those of one process."""

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
from lightning_fire import AtEpochs, FIRECallback, FullReset
from small_training import PlainData, PlainModule, trainer


class Save(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        torch.save(pl_module.state_dict(), Path({folder!r}, f"{{trainer.world_size}}-{{trainer.global_rank}}.pt"))


if __name__ == "__main__":
    torch.manual_seed(0)
    callbacks = [FIRECallback(AtEpochs([1])), FullReset(AtEpochs([2]), target="fresh"), Save()]
    options = dict(strategy="ddp_spawn", devices={devices}) if {devices} > 1 else {{}}
    trainer(*callbacks, max_epochs=3, folder={folder!r}, **options).fit(PlainModule(), datamodule=PlainData())
"""


def run(folder: Path, devices: int) -> None:
    script = folder / f"train{devices}.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), folder=str(folder), devices=devices))
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


def test_events_are_the_same_on_every_rank(tmp_path):
    run(tmp_path, devices=2)
    first, second = (torch.load(tmp_path / f"2-{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in first:
        if "running" not in name:  # BatchNorm's statistics are each rank's own
            assert torch.equal(first[name], second[name]), name
