"""Speed of a Lightning epoch as a fraction of a bare PyTorch loop's, side by side in one run.

    python benchmarks/epoch_speed.py [--only resnet-18 small] [--rounds 5] [--epochs 2] [--json FILE]
    python benchmarks/epoch_speed.py --only small --batches 79   # the small warm start's second chunk
    python benchmarks/epoch_speed.py --only resnet-18 --batch 256 --batches 100 --precision bf16-mixed --channels-last

The loop indexes uint8 images, normalises them, and does what training takes: Adam, clipping at 0.5, warm-up. Against
it a Trainer with our `Classifier` and `ChunkedDataModule`: alone; with an idle `FIRECallback` and a TensorBoard
logger; and with what recipes and command line add, `OptimizerReset`, the monitor of the learning rate and the
progress bar. Left out are validation and checkpoints, which the loop does not have either, and `PlasticityMonitor`,
whose cost is measured by `logging_cost.py`. That all end with the same weights, bit for bit, is checked in each
repetition.

ResNet-18 as for CIFAR-10 with batches of 32, and the small ResNet with its 8 batches of 128, on random images.
The first epoch of each training warms up; an epoch lasts until the next one starts. A fraction is the time of the loop
by that of another, of medians over the repetitions; in brackets the smallest and largest.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor
from machine import parser_of, refuse, wait_for_device
from networks import NETS
from paired import in_turn, publish_each, share_of_loop
from timed_fit import timed_fit
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from lightning_fire import FIRECallback, OptimizerReset, PlasticityCallback
from lightning_fire.callbacks import ChunkProgressBar
from lightning_fire.data import ChunkedDataModule, Continual
from lightning_fire.modules import Classifier
from lightning_fire.modules.chunk_schedule import learning_rate_factors

WARMUP, CLIP = 0.1, 0.5


class Setting(NamedTuple):
    """The network and its data: channels, height and width of an image, and the batches of an epoch."""

    net: str
    shape: tuple[int, int, int]
    batch: int
    batches: int
    epochs: int
    channels_last: bool
    precision: str = "32-true"


SETTINGS = {
    "resnet-18": Setting("resnet-18", (3, 32, 32), 32, 4, 2, False),
    "small": Setting("small", (1, 28, 28), 128, 8, 2, True),
}
Trained = tuple[list[float], dict[str, Tensor]]  # seconds of each epoch but the first, and the state of the network


def data_of(setting: Setting) -> ChunkedDataModule:
    """Return random images, in memory from the start."""
    generator = torch.Generator().manual_seed(0)
    size = setting.batch * setting.batches
    images = torch.randint(0, 256, (size, *setting.shape), dtype=torch.uint8, generator=generator)
    train = TensorDataset(images, torch.randint(0, 10, (size,), generator=generator))
    mean, std = [0.5] * setting.shape[0], [0.25] * setting.shape[0]
    protocol = Continual(1, epochs=1 + setting.epochs)
    return ChunkedDataModule(train, train, protocol, setting.batch, mean=mean, std=std, num_classes=10)


def net_of(setting: Setting) -> nn.Module:
    torch.manual_seed(0)
    return NETS[setting.net](num_classes=10, in_channels=setting.shape[0])


def loop(setting: Setting) -> Trained:
    """Train without Lightning."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layout = torch.channels_last if setting.channels_last else torch.contiguous_format
    data, net = data_of(setting), net_of(setting).to(device, memory_format=layout)
    images, labels = data.train_set.tensors
    sampler = data.train_dataloader().sampler
    numbers = data.train_indices(0)
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (data.mean, data.std))
    optimizer = Adam(net.parameters(), lr=1e-3)
    schedule = LambdaLR(optimizer, learning_rate_factors(data.steps_per_chunk(), [WARMUP]))
    starts = []
    for epoch in range(1 + setting.epochs):
        wait_for_device()
        starts.append(time.perf_counter())
        sampler.set_epoch(epoch)
        for rows in numbers[sampler.order()].split(setting.batch):
            x = (images[rows].to(device).float() / 255 - mean) / std
            with torch.autocast(device, torch.bfloat16, enabled=setting.precision == "bf16-mixed"):
                loss = cross_entropy(net(x.contiguous(memory_format=layout)), labels[rows].to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            schedule.step()
    wait_for_device()
    starts.append(time.perf_counter())
    return [end - start for start, end in pairwise(starts[1:])], net.state_dict()


def lightning(setting: Setting, callbacks: Callable[[], list[Callback]]) -> Trained:
    """Train with Lightning."""
    module = Classifier(net_of(setting), 10, warmup=WARMUP, channels_last=setting.channels_last)
    options = {"gradient_clip_val": CLIP, "precision": setting.precision}
    times = timed_fit(module, data_of(setting), callbacks(), 1 + setting.epochs, **options)
    return times, module.net.state_dict()


WAYS: dict[str, Callable[[Setting], Trained]] = {
    "loop": loop,
    "Lightning": partial(lightning, callbacks=list),
    "with FIRE and TensorBoard": partial(lightning, callbacks=lambda: [FIRECallback()]),
    "as the recipes": partial(
        lightning,
        callbacks=lambda: [
            PlasticityCallback(OptimizerReset()),
            FIRECallback(),
            LearningRateMonitor(),
            ChunkProgressBar(),
        ],
    ),
}


def table(setting: Setting, rounds: int) -> dict[str, dict]:
    """Measure one network; print and return a row for each way."""
    found = in_turn({name: partial(way, setting) for name, way in WAYS.items()}, rounds)
    expected = found["loop"][0][1]
    for name, trainings in found.items():
        for _, state in trainings:
            if any(not torch.equal(value.cpu(), expected[key].cpu()) for key, value in state.items()):
                refuse(f"{name!r} ends with other weights than the loop: it is not the same work")
    medians = {name: [statistics.median(epochs) for epochs, _ in trainings] for name, trainings in found.items()}
    rows = {}
    for name, epochs in medians.items():
        row, share = share_of_loop(medians["loop"], epochs)
        epoch = statistics.median(epochs)
        speed, step = setting.batch * setting.batches / epoch, 1e3 * epoch / setting.batches
        rows[name] = {"images_a_second": round(speed, 1), **row, "milliseconds_a_step": round(step, 3)}
        print(
            f"{setting.net:10s} {name:26s} {speed:9.1f} images a second   {share}   {step:9.3f} ms a step", flush=True
        )
    return rows


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=SETTINGS, nargs="+", default=list(SETTINGS), metavar="NET")
    parser.add_argument("--rounds", type=int, default=5, help="trainings timed of each way, in turn")
    parser.add_argument("--epochs", type=int, default=2, help="epochs timed of each training")
    parser.add_argument("--batch", type=int, help="images in a batch")
    parser.add_argument("--batches", type=int, help="batches of an epoch")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), help="of the computations")
    parser.add_argument("--channels-last", action="store_true", help="store images with the channels innermost")
    torch.backends.cudnn.deterministic = True  # so that weights can be compared
    publish_each(table, SETTINGS, parser.parse_args())


if __name__ == "__main__":
    main()
