"""What the default logging costs: λ_max and histograms at an event, `PlasticityMonitor` at the end of epochs.

    python benchmarks/logging_cost.py                          # the quick start's run with FIRE, timed as it is
    python benchmarks/logging_cost.py --resnet18 [--steps 5]   # the paper's ResNet-18, batch 256, for its 100 epochs

Both parts are timed inside one training. The first prints shares of the training time of the chunk they belong to. The
second times a few steps, one event and one look at data, and prints shares of 100 epochs of 196 steps.
"""

import argparse
import functools
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import lightning
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import AtEpochs, FIRECallback, PlasticityMonitor
from lightning_fire.callbacks import base, upcoming_batch
from lightning_fire.cli import main as command_line
from lightning_fire.modules import Classifier
from lightning_fire.nets import ResNet

SECONDS: dict[str, list[float]] = defaultdict(list)
PAPER_STEPS = 100 * 196


def timed(owner: object, name: str, label: str) -> None:
    """Let a function note the seconds of each call."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def timing(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            SECONDS[label].append(time.perf_counter() - start)

    setattr(owner, name, timing)


def time_everything() -> None:
    """Time the parts of an event and of the monitor."""
    timed(FIRECallback, "act", "event: FIRE, DfI and SFE")
    timed(upcoming_batch.UpcomingBatch, "lambda_max", "event: λ_max, twice")
    timed(base, "spectra", "event: histograms, twice")
    timed(base, "log_histograms_now", "event: histograms, twice")
    timed(PlasticityMonitor, "on_train_epoch_end", "epoch: PlasticityMonitor")
    timed(PlasticityMonitor, "_look", "of that, looking at data")


class Stopwatch(Callback):
    """Times epochs and steps, each from its first hook to its last."""

    def __init__(self):
        self.epochs, self.steps = [], []

    def on_train_epoch_start(self, *args):
        self.began = time.perf_counter()

    def on_train_batch_start(self, *args):
        self.step_began = time.perf_counter()

    def on_train_batch_end(self, *args):
        self.steps.append(time.perf_counter() - self.step_began)

    def on_train_epoch_end(self, *args):
        self.epochs.append(time.perf_counter() - self.began)


def quick_start() -> dict[str, float]:
    """Run the quick start with FIRE; return shares of the time of its second chunk, and of a mean epoch."""
    recipe, watch = Path("recipes/quick_start"), Stopwatch()
    setup = Classifier.configure_callbacks
    Classifier.configure_callbacks = lambda self: [watch]
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "fit",
            "-c",
            f"{recipe}/base.yaml",
            "-c",
            f"{recipe}/fire.yaml",
            "--trainer.logger",
            "TensorBoardLogger",
        ]
        words += [f"--trainer.logger.save_dir={folder}", "--trainer.enable_progress_bar=false"]
        cli = command_line([*words, "--trainer.enable_checkpointing=false"])
    Classifier.configure_callbacks = setup
    chunk = sum(watch.epochs[cli.datamodule.epochs_per_chunk[0] :])
    epoch = statistics.mean(watch.epochs)
    number = len(watch.epochs)
    print(f"quick start: {number} epochs of {epoch:.2f} s on average; the second chunk took {chunk:.1f} s")
    shares = {}
    for label, seconds in SECONDS.items():
        whole, what = (chunk, "of its chunk") if label.startswith("event") else (number * epoch, "of all epochs")
        shares[label] = sum(seconds) / whole
        print(f"{label:28s} {sum(seconds):8.3f} s in {len(seconds):3d} calls   {shares[label]:8.3%} {what}")
    return shares


def resnet18(batch: int, steps: int) -> dict[str, float]:
    """Train ResNet-18 for two short epochs, an event between them; return shares of a chunk of the paper."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(batch * steps, 3, 32, 32), torch.randint(0, 10, (batch * steps,)))
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=2,
            callbacks=[PlasticityMonitor(data_every_n_steps=2 * steps), FIRECallback(AtEpochs([1])), watch],
            logger=TensorBoardLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            gradient_clip_val=0.5,
        )
        trainer.fit(Classifier(ResNet(), num_classes=10, channels_last=True), DataLoader(data, batch_size=batch))
    step = statistics.median(watch.steps)
    print(f"ResNet-18, batch {batch}: {step:.3f} s a step, so {PAPER_STEPS * step / 3600:.1f} h for 100 epochs of 196")
    looks = PAPER_STEPS // 100  # data_every_n_steps
    (look,) = SECONDS["of that, looking at data"]
    first, second = SECONDS["epoch: PlasticityMonitor"]
    costs = {label: sum(seconds) for label, seconds in SECONDS.items() if label.startswith("event")}
    costs["monitor: weights, 100 epochs"] = 100 * (first + second - look) / 2
    costs[f"monitor: data, {looks} looks"] = looks * look
    shares = {label: seconds / (PAPER_STEPS * step) for label, seconds in costs.items()}
    for label, seconds in costs.items():
        print(f"{label:32s} {seconds:9.2f} s  = {seconds / step:7.1f} steps   {shares[label]:8.4%} of the chunk")
    return shares


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resnet18", action="store_true", help="the paper's network in the place of the quick start")
    parser.add_argument("--batch", type=int, default=256, help="images in a batch")
    parser.add_argument("--steps", type=int, default=5, help="steps of each of the two short epochs")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    time_everything()
    shares = resnet18(options.batch, options.steps) if options.resnet18 else quick_start()
    cpu = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    versions = {"torch": torch.__version__, "lightning": lightning.__version__}
    print(json.dumps({"shares": {k: round(v, 6) for k, v in shares.items()}, "device": device, **versions}))


if __name__ == "__main__":
    main()
