"""Cost of an event of each reinitialiser: seconds and memory, side by side in one run.

    python benchmarks/event_cost.py [--batch 256] [--batches 1] [--rounds 3] [--methods fire dash …] [--json FILE]
    python benchmarks/event_cost.py --net resnet-18 --size 32 --batch 128 --methods step fire "fire, λ_max"

VGG-16 of the paper (Tiny ImageNet, 64 × 64) on random images, through a Trainer. Prints, for each method, the median
seconds of an event and the memory it takes beyond that before the event: on a GPU what PyTorch allocated at the peak,
on a CPU the peak of the process's resident memory (Linux). On a CPU each measurement is in a process of its own; on a
GPU an event before the measured one loads what it needs. DASH looks at
`--batches` batches here; its seconds grow with them, and a paper-sized event has 26 (α = 0.3) or 88 (α = 0.1).

λ_max is left out but in `fire, λ_max`. `step` is a training step on a batch, to compare with; ratios are to the first
method.
"""

import argparse
import json
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from machine import parser_of, publish
from networks import NETS
from paired import in_turn, seconds
from quiet_trainer import quiet_trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import (
    DASH,
    AtEpochs,
    FIRECallback,
    FullReset,
    Log,
    OptimizerReset,
    PlasticityCallback,
    ShrinkAndPerturb,
)
from lightning_fire.modules import Classifier


class Step(PlasticityCallback):
    """A second training step instead of an event."""

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.act(trainer, pl_module)  # the first step takes longer

    def act(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> dict[str, float]:
        images, labels = next(iter(trainer.train_dataloader))
        optimizer = trainer.optimizers[0]
        optimizer.zero_grad()
        cross_entropy(pl_module(images), labels).backward()
        optimizer.step()
        return {}


METHODS = {
    "step": lambda when, batches: Step(OptimizerReset(), when),
    "fire, λ_max": lambda when, batches: FIRECallback(when, steps=10),
    "fire": lambda when, batches: FIRECallback(when, steps=10, log=Log(curvature=False)),
    "fire, exact": lambda when, batches: FIRECallback(when, steps="exact", log=Log(curvature=False)),
    "shrink_and_perturb": lambda when, batches: PlasticityCallback(ShrinkAndPerturb(), when, log=Log(curvature=False)),
    "full_reset": lambda when, batches: PlasticityCallback(FullReset(), when, log=Log(curvature=False)),
    "dash": lambda when, batches: PlasticityCallback(DASH(num_batches=batches), when, log=Log(curvature=False)),
}


def forget_peak() -> None:
    """Reset the peak of memory."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def held_bytes() -> tuple[int, int]:
    """The memory that is held now, and the most that was held since `forget_peak`."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, most = (1024 * int(lines[key].split()[0]) for key in ("VmRSS", "VmHWM"))
    return now, most


class NoTraining(Classifier):
    """Leaves out the batches, so that only the event takes memory."""

    def on_train_batch_start(self, *args):
        return -1


def measured(name: str, net: str, size: int, batch: int, batches: int) -> dict[str, float]:
    """Build everything, run one event, and return its seconds and bytes."""
    warm = int(torch.cuda.is_available())
    when = AtEpochs(range(1, 2 + warm))
    method, result = METHODS[name](when, batches), {}
    act = method.act

    def timed(*now):
        forget_peak()
        held, _ = held_bytes()
        values = {}
        taken = seconds(lambda: values.update(act(*now)))
        result.update(seconds=taken, bytes=held_bytes()[1] - held)
        return values

    method.act = timed
    torch.manual_seed(0)
    images = batch * batches
    data = TensorDataset(torch.randn(images, 3, size, size), torch.randint(0, 200, (images,)))
    module = NoTraining(NETS[net](num_classes=200), num_classes=200, warmup=0, channels_last=True)
    quiet_trainer(method, max_epochs=2 + warm).fit(module, DataLoader(data, batch_size=batch))
    return result


def in_a_process(name: str, net: str, size: int, batch: int, batches: int) -> dict[str, float]:
    """Like `measured`, in a new process where that measures the memory."""
    if torch.cuda.is_available():
        return measured(name, net, size, batch, batches)
    words = ["--one", name, "--net", net, "--size", str(size), "--batch", str(batch), "--batches", str(batches)]
    run = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.strip().splitlines()[-1])


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--batch", type=int, default=256, help="images in a batch of DASH")
    parser.add_argument("--batches", type=int, default=1, help="batches that DASH looks at")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each method, alternating")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[2:], metavar="METHOD")
    parser.add_argument("--net", choices=NETS, default="vgg-16")
    parser.add_argument("--size", type=int, default=64, help="height and width of an image")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    what = options.net, options.size, options.batch, options.batches
    if options.one:
        print(json.dumps(measured(options.one, *what)))
        return
    found = in_turn({name: partial(in_a_process, name, *what) for name in options.methods}, options.rounds)
    medians = {name: {k: statistics.median(v[k] for v in values) for k in values[0]} for name, values in found.items()}
    for name, median in medians.items():
        ratio = median["seconds"] / medians[options.methods[0]]["seconds"]
        print(f"{name:20s} {median['seconds']:9.3f} s   × {ratio:7.2f}   {median['bytes'] / 2**20:8.0f} MiB")
    publish({"medians": medians, "batch": options.batch, "batches": options.batches}, options.json)


if __name__ == "__main__":
    main()
