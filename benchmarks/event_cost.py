"""What an event of each reinitialiser costs: seconds and memory, side by side in one run.

    python benchmarks/event_cost.py [--batch 256] [--batches 1] [--rounds 3]

VGG-16 of the paper (Tiny ImageNet, 64 × 64) on random images, through a Trainer. Prints, for each method, the median
seconds of an event and the memory it takes beyond that before the event: on a GPU what PyTorch allocated at the peak,
on a CPU the peak of the process's resident memory (Linux). Each measurement is in a process of its own. DASH looks at
`--batches` batches here; its seconds grow with them, and a paper-sized event has 26 (α = 0.3) or 88 (α = 0.1).
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import DASH, AtEpochs, FIRECallback, FullReset, ShrinkAndPerturb
from lightning_fire.modules import Classifier
from lightning_fire.nets import VGG

METHODS = {
    "fire": lambda when, batches: FIRECallback(when, steps=10, curvature=False),
    "fire, exact": lambda when, batches: FIRECallback(when, steps="exact", curvature=False),
    "shrink_and_perturb": lambda when, batches: ShrinkAndPerturb(when, curvature=False),
    "full_reset": lambda when, batches: FullReset(when, curvature=False),
    "dash": lambda when, batches: DASH(when, num_batches=batches, curvature=False),
}


def forget_peak() -> None:
    """Begin to look for the peak anew."""
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


def measured(name: str, batch: int, batches: int) -> dict[str, float]:
    """Build everything, let one event happen, and return its seconds and bytes."""
    when = AtEpochs([1])
    method, result = METHODS[name](when, batches), {}
    act = method.act

    def timed(trainer, module):
        forget_peak()
        held, _ = held_bytes()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        values = act(trainer, module)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        result.update(seconds=time.perf_counter() - start, bytes=held_bytes()[1] - held)
        return values

    method.act = timed
    torch.manual_seed(0)
    size = batch * batches
    data = TensorDataset(torch.randn(size, 3, 64, 64), torch.randint(0, 200, (size,)))
    trainer = Trainer(
        max_epochs=2,
        callbacks=[method],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NoTraining(VGG(), num_classes=200, warmup=0, channels_last=True), DataLoader(data, batch_size=batch))
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256, help="images in a batch of DASH")
    parser.add_argument("--batches", type=int, default=1, help="batches that DASH looks at")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each method, alternating")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    if options.only:
        print(json.dumps(measured(options.only, options.batch, options.batches)))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for _ in range(options.rounds):
        for name, values in found.items():
            words = [sys.executable, __file__, "--only", name, "--batch", str(options.batch)]
            words += ["--batches", str(options.batches)]
            output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            values.append(json.loads(output.strip().splitlines()[-1]))
    medians = {name: {k: statistics.median(v[k] for v in values) for k in values[0]} for name, values in found.items()}
    for name, median in medians.items():
        ratio = median["seconds"] / medians["fire"]["seconds"]
        print(f"{name:20s} {median['seconds']:9.3f} s   × {ratio:7.2f}   {median['bytes'] / 2**20:8.0f} MiB")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    print(json.dumps({"medians": medians, "batch": options.batch, "batches": options.batches, "device": device}))


if __name__ == "__main__":
    main()
