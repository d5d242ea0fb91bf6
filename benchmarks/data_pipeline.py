"""Batches a second of the in-memory pipeline, against the published one, side by side in one run.

    python benchmarks/data_pipeline.py [--samples 20000] [--batch 256] [--rounds 5] [--workers 0 2 4] [--json FILE]

Ours: `ChunkedDataModule` on a TensorDataset of uint8 images, from the order of an epoch to normalised floats
(`on_after_batch_transfer`). Published: a DataLoader over a data set that makes a PIL image of each sample, then
`ToTensor` and `Normalize`; without worker processes, as the authors have it, and with some, which persist and have been
started before. An epoch on images of the size of CIFAR-10 and of Fashion-MNIST, in batches of the same samples: that
both give the same tensors, bit for bit, is checked first.

A ratio is the time of an epoch by that of ours, of medians over the repetitions; in brackets the smallest and largest.
Each number of workers is paired with ours in separate repetitions.
"""

import statistics
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from machine import parser_of, publish
from paired import in_turn, ratio, seconds
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms import Compose, Normalize, ToTensor

from lightning_fire.data import ChunkedDataModule, Continual

SHAPES = {"cifar-10": (3, 32, 32), "fashion-mnist": (1, 28, 28)}
CHANNELS = {
    "cifar-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
}
EPOCH = 1
Way = Callable[[], Iterator[list[Tensor]]]  # gives the batches of an epoch


class OneByOne(Dataset):
    """The published way: a PIL image of each sample, made a tensor and normalised.

    Args:
        images: uint8 (N, C, H, W).
        labels: int64 (N,).
        mean: Of each channel.
        std: Of each channel.
    """

    def __init__(self, images: Tensor, labels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]):
        self.pixels = images.permute(0, 2, 3, 1).contiguous().squeeze(-1).numpy()  # (N, H, W, 3) or (N, H, W)
        self.labels = labels.tolist()
        self.transform = Compose([ToTensor(), Normalize(mean, std)])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def ways(name: str, samples: int, batch: int) -> tuple[Way, Callable[[int], Way]]:
    """Return our way, and what makes the published one with a number of workers, to the batches of one epoch."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (samples, *SHAPES[name]), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (samples,), generator=generator)
    mean, std = CHANNELS[name]
    tensors = TensorDataset(images, labels)
    data = ChunkedDataModule(tensors, tensors, Continual(1, epochs=1), batch, mean=mean, std=std)

    def ours() -> Iterator[list[Tensor]]:
        loader = data.train_dataloader()
        loader.sampler.set_epoch(EPOCH)
        return (data.on_after_batch_transfer(batch, 0) for batch in loader)

    sampler = data.train_dataloader().sampler
    sampler.set_epoch(EPOCH)
    order = data.train_indices(0)[sampler.order()].tolist()

    def published(workers: int) -> Way:
        dataset = OneByOne(images, labels, mean, std)
        loader = DataLoader(dataset, batch, sampler=order, num_workers=workers, persistent_workers=workers > 0)
        return partial(iter, loader)

    return ours, published


def check_equal(ours: Way, other: Way) -> None:
    """Go through an epoch both ways at once; worker processes stay started."""
    for index, (one, two) in enumerate(zip(ours(), other(), strict=True)):
        if not all(map(torch.equal, one, two)):
            raise SystemExit(f"batch {index} is not the same both ways")


def epoch_seconds(way: Way, repeats: int = 1) -> float:
    """Return the seconds of an epoch, a mean over some."""

    def go_through() -> None:
        for _ in range(repeats):
            for _ in way():
                pass

    return seconds(go_through) / repeats


def row(epochs: list[float], ours: list[float], samples: int, batch: int) -> dict[str, float | list[float]]:
    """Report of a way of loading, from the seconds of its epochs and of those of ours."""
    middle, least, most = ratio(epochs, ours)
    return {
        "batches_a_second": round(-(-samples // batch) / statistics.median(epochs), 1),
        "samples_a_second": round(samples / statistics.median(epochs)),
        "times_ours": round(middle, 2),
        "range": [round(least, 2), round(most, 2)],
    }


def table(name: str, samples: int, batch: int, workers: list[int], rounds: int) -> dict[str, dict]:
    """Time one shape of images; print and return a row for each way."""
    ours, published = ways(name, samples, batch)
    rows = {}
    for number in workers:  # pair by pair: worker processes share the memory of this one, and would slow ours
        other = published(number)
        check_equal(ours, other)
        pair = {"ours": partial(epoch_seconds, ours, repeats=10), "published": partial(epoch_seconds, other)}
        times = in_turn(pair, rounds)
        new = {f"published, {number} workers": row(times["published"], times["ours"], samples, batch)}
        if not rows:
            new = {"ours": row(times["ours"], times["ours"], samples, batch), **new}
        for way, values in new.items():
            print(
                f"{name:14s} {way:22s} {values['batches_a_second']:9.1f} batches a second"
                f" {values['samples_a_second']:9d} samples a second"
                f"   × {values['times_ours']:6.2f} ({values['range'][0]:.2f} – {values['range'][1]:.2f})",
                flush=True,
            )
        rows |= new
    return rows


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=20_000, help="images of an epoch")
    parser.add_argument("--batch", type=int, default=256, help="images in a batch")
    parser.add_argument("--rounds", type=int, default=5, help="epochs timed of each way, in turn")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4], help="worker processes of the published")
    parser.add_argument("--only", choices=SHAPES, nargs="+", default=list(SHAPES), metavar="SHAPE")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    what = options.samples, options.batch, options.workers, options.rounds
    publish({"shapes": {name: table(name, *what) for name in options.only}, "samples": options.samples}, options.json)


if __name__ == "__main__":
    main()
