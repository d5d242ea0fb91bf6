"""What `FIRECallback` costs while it waits: microseconds a step, and as a share of a training step.

    python benchmarks/idle_cost.py [--steps 2000] [--json FILE]

A Trainer fits one small layer for many steps with `FIRECallback(AtNewData())`, whose data never changes. All of its
hooks are timed from outside, so that the noise of the training itself does not count. The share is that of a step of
the smallest network of the paper on this machine: ResNet-18, batch 16 (the paper's 256 takes many times as long).
"""

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from functools import partial
from pathlib import Path

import lightning
import torch
from lightning.pytorch import Trainer
from step_cost import step_times
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import AtNewData, FIRECallback
from lightning_fire.modules import Classifier

HOOKS = ("on_train_batch_start", "on_train_batch_end")  # all that are called at each step and do anything


def hook_times(steps: int) -> list[float]:
    """Seconds in the hooks of each step."""
    callback = FIRECallback(AtNewData())
    spent: dict[str, list[float]] = {name: [] for name in HOOKS}

    def timed(hook, seconds, *args):
        start = time.perf_counter()
        hook(*args)
        seconds.append(time.perf_counter() - start)

    for name in HOOKS:
        setattr(callback, name, partial(timed, getattr(callback, name), spent[name]))
    data = TensorDataset(torch.randn(8 * steps, 4), torch.zeros(8 * steps, dtype=torch.long))
    trainer = Trainer(
        max_epochs=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(nn.Sequential(nn.Linear(4, 2)), num_classes=2, warmup=0), DataLoader(data, batch_size=8))
    return [sum(parts) for parts in zip(*spent.values(), strict=True)]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    idle = statistics.median(hook_times(options.steps))
    step = statistics.median(step_times([], 16, 5))
    result = {
        "command": f"python benchmarks/idle_cost.py --steps {options.steps}",
        "microseconds_a_step": round(1e6 * idle, 1),
        "resnet_18_batch_16_seconds_a_step": round(step, 4),
        "share_percent": round(100 * idle / step, 4),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
