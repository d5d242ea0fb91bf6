"""What a regulariser or a unit resetter adds to a training step: ratios to plain training, alternating in one run.

    python benchmarks/step_cost.py [--batch 256] [--steps 5] [--rounds 2]

ResNet-18 (the paper's, for CIFAR-10) on random images. Prints the median time of a step for each method, and its ratio
to plain training.
"""

import argparse
import json
import platform
import statistics
import time
import warnings

import lightning
import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import ContinualBackprop, L2Init, Parseval, ReDo, SelfNormalizedReset
from lightning_fire.modules import Classifier
from lightning_fire.nets import ResNet
from lightning_fire.when import EveryNSteps

METHODS = {
    "plain": list,
    "l2_init": lambda: [L2Init(5e-4)],
    "parseval": lambda: [Parseval(1e-3)],
    "continual_backprop": lambda: [ContinualBackprop(1e-4, maturity=1)],
    "snr": lambda: [SelfNormalizedReset(refresh_every=2)],
    "redo, idle": lambda: [ReDo(EveryNSteps(1000))],
}


class Stopwatch(Callback):
    """Times whole steps, the work of other callbacks included: from one batch's end to the next one's."""

    def __init__(self):
        self.ends = []

    def on_train_batch_end(self, *args):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def step_times(methods: list[Callback], batch: int, steps: int) -> list[float]:
    """Train for a few steps; return the seconds of each but the first."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(batch * (steps + 1), 3, 32, 32), torch.randint(0, 10, (batch * (steps + 1),)))
    watch = Stopwatch()
    trainer = Trainer(
        max_epochs=1,
        callbacks=[*methods, watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
    )
    trainer.fit(Classifier(ResNet(), num_classes=10, channels_last=True), DataLoader(data, batch_size=batch))
    return [end - start for start, end in zip(watch.ends[:-1], watch.ends[1:], strict=True)]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256, help="images in a batch")
    parser.add_argument("--steps", type=int, default=5, help="steps timed in each round")
    parser.add_argument("--rounds", type=int, default=2, help="rounds, all methods in each")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(options.rounds):
        for name, build in METHODS.items():
            times[name] += step_times(build(), options.batch, options.steps)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: round(median / medians["plain"], 3) for name, median in medians.items()}
    for name, median in medians.items():
        print(f"{name:20s} {median:8.3f} s a step   × {ratios[name]:.2f}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    versions = {"torch": torch.__version__, "lightning": lightning.__version__}
    print(json.dumps({"ratios": ratios, "batch": options.batch, "device": device, **versions}))


if __name__ == "__main__":
    main()
