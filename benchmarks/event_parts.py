"""Time of the parts of one event of FIRECallback, beside a training step and the published loop.

    python benchmarks/event_parts.py [--net resnet-18] [--size 32] [--batch 128] [--rounds 5] [--json FILE]

The event is the default one on random images: ten steps, all metrics, λ_max before and after, logged to TensorBoard.
Its parts are timed by their calls within it; what is left of the whole is `other`. Each repetition makes a training
step, the published loop over the same weights, and the event, on `--threads` threads, by default one.
"""

import pkgutil
import statistics
import tempfile
from collections import defaultdict
from functools import wraps
from unittest import mock

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from machine import parser_of, publish
from networks import NETS
from paired import seconds
from projection_cost import published
from quiet_trainer import quiet_trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import EveryNSteps, FIRECallback, Weights
from lightning_fire.modules import Classifier

_CALLBACKS, _METHODS = "lightning_fire.callbacks", "lightning_fire.methods"
PARTS = {
    "select": "lightning_fire.where.Weights.select",
    "read": "lightning_fire.where.WeightView.read",
    "project": f"{_METHODS}.fire.fire_of_finite",
    "measure": f"{_METHODS}.base.change.differences",
    "write": f"{_METHODS}.base.change.Change.make",
    "λ_max": f"{_CALLBACKS}.observers.measured_lambda_max",  # twice
    "histograms": f"{_CALLBACKS}.observers._spectra",  # twice
    "log": f"{_CALLBACKS}.plasticity_callback.log_now",
}


class Rounds(Callback):
    """Before each batch, times a training step and the published loop."""

    def __init__(self, found: dict[str, list[float]]):
        self.found = found

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        images, labels = batch
        optimizer = trainer.optimizers[0]

        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(pl_module(images), labels).backward()
            optimizer.step()

        weights = [view.read().contiguous() for view in Weights().select(pl_module)]
        self.found["training step"].append(seconds(step))
        self.found["published loop"].append(seconds(lambda: [published(weight, 10) for weight in weights]))


def timed(target: str, part: str, now: dict[str, float]):
    """Return a patch that adds the time of each call to `now`."""
    owner, _, name = target.rpartition(".")
    function = getattr(pkgutil.resolve_name(owner), name)

    @wraps(function)
    def wrapped(*args, **options):
        result = []
        now[part] += seconds(lambda: result.append(function(*args, **options)))
        return result[0]

    return mock.patch(target, wrapped)


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--net", choices=NETS, default="resnet-18")
    parser.add_argument("--size", type=int, default=32, help="height and width of an image")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = options.batch * (options.rounds + 2)  # no event before the first, and the first event warms up
    data = TensorDataset(torch.randn(images, 3, options.size, options.size), torch.randint(0, 200, (images,)))
    module = Classifier(NETS[options.net](num_classes=200), num_classes=200, warmup=0, channels_last=True)
    found: dict[str, list[float]] = defaultdict(list)
    fire = FIRECallback(EveryNSteps(1), steps=10)
    at = fire.at

    def whole(trainer, pl_module, clock) -> None:
        now = defaultdict(float)
        patches = [timed(target, part, now) for part, target in PARTS.items()]
        for patch in patches:
            patch.start()
        event = seconds(lambda: at(trainer, pl_module, clock))
        mock.patch.stopall()
        if fire.num_events:
            now["other"] = event - sum(now.values())
            for part, spent in {**now, "event": event}.items():
                found[part].append(spent)

    fire.at = whole
    with tempfile.TemporaryDirectory() as folder:
        logger = TensorBoardLogger(folder)
        quiet_trainer(Rounds(found), fire, max_epochs=1, logger=logger).fit(
            module, DataLoader(data, batch_size=options.batch)
        )
    medians = {part: statistics.median(values[1:]) for part, values in found.items()}
    step = medians["training step"]
    for part, median in medians.items():
        print(f"{part:15s} {median:9.4f} s   {median / step:8.2f} training steps")
    seen = sum(medians[part] for part in ("λ_max", "histograms"))
    for other in ("project", "published loop"):
        print(f"without λ_max and histograms, {(medians['event'] - seen) / medians[other]:.2f} times `{other}`")
    publish({"medians": medians, "net": options.net, "size": options.size, "batch": options.batch}, options.json)


if __name__ == "__main__":
    main()
