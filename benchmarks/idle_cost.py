"""Cost of an idle `FIRECallback`: microseconds a step, and as a fraction of a training step.

    python benchmarks/idle_cost.py [--steps 2000] [--net resnet-18] [--json FILE]

A Trainer fits one small layer for many steps with `FIRECallback(AtNewData())`, whose data never changes. All of its
hooks are timed from outside, so that the noise of the training itself does not count. The fraction is that of a step of
the smallest network of the paper on this machine: ResNet-18, batch 16 (the paper's 256 takes many times as long).
"""

import statistics
import time
from functools import partial

import torch
from machine import parser_of, publish
from quiet_trainer import quiet_trainer
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
    module = Classifier(nn.Sequential(nn.Linear(4, 2)), num_classes=2, warmup=0)
    quiet_trainer(callback, max_epochs=1).fit(module, DataLoader(data, batch_size=8))
    return [sum(parts) for parts in zip(*spent.values(), strict=True)]


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--net", choices=("resnet-18", "small"), default="resnet-18", help="whose step it is compared with"
    )
    options = parser.parse_args()
    idle = statistics.median(hook_times(options.steps))
    step = statistics.median(step_times([], options.net, 16, 5))
    result = {
        "microseconds_a_step": round(1e6 * idle, 1),
        f"{options.net.replace('-', '_')}_batch_16_seconds_a_step": round(step, 4),
        "share_percent": round(100 * idle / step, 4),
    }
    share = f"{result['share_percent']:.4f} % of a step of batch 16"
    print(f"{options.net:12s}  {result['microseconds_a_step']:.1f} µs a step   = {share}")
    publish(result, options.json)


if __name__ == "__main__":
    main()
