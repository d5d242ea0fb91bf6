"""Cost of the default logging: λ_max and histograms at an event, `PlasticityMonitor` at the end of epochs.

    python benchmarks/logging_cost.py --root data              # the small warm start with FIRE, timed as it is
    python benchmarks/logging_cost.py --net resnet-18 [--steps 5]   # the paper's, batch 256, for its 100 epochs

Both parts are timed inside one training. The first prints fractions of the training time of the chunk they belong to.
The second times a few steps, one event and one look at data, and prints fractions of 100 epochs of 196 steps.
"""

import functools
import statistics
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from unittest.mock import patch

import torch
from lightning.pytorch.loggers import TensorBoardLogger
from machine import parser_of, publish
from networks import NETS
from paired import seconds
from quiet_trainer import quiet_trainer
from stopwatch import Stopwatch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

from lightning_fire import AtEpochs, FIRECallback, PlasticityMonitor
from lightning_fire.callbacks import observers
from lightning_fire.callbacks.probing import curvature
from lightning_fire.cli import main as command_line
from lightning_fire.modules import Classifier

SECONDS: dict[str, list[float]] = defaultdict(list)
PAPER_STEPS = 100 * 196


def timed(owner: object, name: str, label: str) -> patch:
    """Return a context in which a function notes the seconds of each call."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def timing(*args, **kwargs):
        returned = []
        SECONDS[label].append(seconds(lambda: returned.append(function(*args, **kwargs))))
        return returned[0]

    return patch.object(owner, name, timing)


def everything_timed() -> ExitStack:
    """Return a context in which the parts of an event and of the monitor are timed."""
    stack = ExitStack()
    for owner, name, label in (
        (FIRECallback, "event", "event: FIRE, DfI and SFE"),
        (curvature, "lambda_max", "event: λ_max, twice"),
        (observers, "_spectra", "event: histograms, twice"),
        (SummaryWriter, "add_histogram", "event: histograms, twice"),
        (PlasticityMonitor, "on_train_epoch_end", "epoch: PlasticityMonitor"),
        (PlasticityMonitor, "_look", "epoch: looking at data"),
    ):
        stack.enter_context(timed(owner, name, label))
    return stack


def small_warm_start(root: str) -> dict[str, float]:
    """Run the small warm start with FIRE; return fractions of the time of its second chunk, and of a mean epoch."""
    watch = Stopwatch("on_train_epoch_start", "on_train_epoch_end")
    watched = patch.object(Classifier, "configure_callbacks", lambda self: [watch])
    with tempfile.TemporaryDirectory() as folder, watched:
        words = [
            "fit",
            "vision/warm_start/fashion_mnist_small_resnet",
            "--method",
            "fire",
            f"--data.init_args.root={root}",
            "--trainer.logger",
            "TensorBoardLogger",
        ]
        words += [f"--trainer.logger.save_dir={folder}", "--trainer.enable_progress_bar=false"]
        cli = command_line([*words, "--trainer.enable_checkpointing=false"])
    epochs = watch.between("on_train_epoch_start", "on_train_epoch_end")
    chunk = sum(epochs[cli.datamodule.epochs_per_chunk[0] :])
    epoch = statistics.mean(epochs)
    number = len(epochs)
    print(f"small warm start: {number} epochs of {epoch:.2f} s on average; the second chunk took {chunk:.1f} s")
    shares = {}
    for label, taken in SECONDS.items():
        whole, what = (chunk, "of its chunk") if label.startswith("event") else (number * epoch, "of all epochs")
        shares[label] = sum(taken) / whole
        print(f"{label:28s} {sum(taken):8.3f} s in {len(taken):3d} calls   {shares[label]:8.3%} {what}")
    return shares


def short(net: str, batch: int, steps: int) -> dict[str, float]:
    """Train a network for two short epochs, an event between them; return fractions of a chunk of the paper."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(batch * steps, 3, 32, 32), torch.randint(0, 10, (batch * steps,)))
    watch = Stopwatch("on_train_batch_start", "on_train_batch_end")
    with tempfile.TemporaryDirectory() as folder:
        trainer = quiet_trainer(
            PlasticityMonitor(data_every_n_steps=2 * steps),
            FIRECallback(AtEpochs([1])),
            watch,
            max_epochs=2,
            logger=TensorBoardLogger(folder),
            log_every_n_steps=1,
            gradient_clip_val=0.5,
        )
        module = Classifier(NETS[net](num_classes=10), num_classes=10, channels_last=True)
        trainer.fit(module, DataLoader(data, batch_size=batch))
    step = statistics.median(watch.between("on_train_batch_start", "on_train_batch_end"))
    print(f"{net}, batch {batch}: {step:.3f} s a step, so {PAPER_STEPS * step / 3600:.1f} h for 100 epochs of 196")
    looks = PAPER_STEPS // 100  # data_every_n_steps
    (look,) = SECONDS["epoch: looking at data"]
    first, second = SECONDS["epoch: PlasticityMonitor"]
    costs = {label: sum(taken) for label, taken in SECONDS.items() if label.startswith("event")}
    costs["monitor: weights, 100 epochs"] = 100 * (first + second) / 2
    costs[f"monitor: data, {looks} looks"] = looks * look
    shares = {label: cost / (PAPER_STEPS * step) for label, cost in costs.items()}
    for label, cost in costs.items():
        print(f"{label:32s} {cost:9.2f} s  = {cost / step:7.1f} steps   {shares[label]:8.4%} of the chunk")
    return shares


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--net", choices=("resnet-18", "small"), help="a few steps of it, not the small warm start")
    parser.add_argument("--root", default="data", help="folder that holds FashionMNIST/raw")
    parser.add_argument("--batch", type=int, default=256, help="images in a batch")
    parser.add_argument("--steps", type=int, default=5, help="steps of each of the two short epochs")
    options = parser.parse_args()
    with everything_timed():
        shares = short(options.net, options.batch, options.steps) if options.net else small_warm_start(options.root)
    publish({"shares": {label: round(share, 6) for label, share in shares.items()}}, options.json)


if __name__ == "__main__":
    main()
