"""The sequences of tasks of the studies: packaged Fashion-MNIST at 14×14 pixels, small enough for seconds a run."""

from functools import cache
from typing import NamedTuple

from torch.nn.functional import avg_pool2d
from torch.utils.data import TensorDataset

from lightning_fire.data import PermutedInputs, PermutedLabels, RandomLabels, SmallFashionMNISTDataModule, WarmStart
from lightning_fire.data.protocols import Protocol

PIXELS, CLASSES = 14 * 14, 10


class Stream(NamedTuple):
    """A sequence of tasks, and how a network is trained on it.

    Attributes:
        title: For tables.
        protocol: The tasks.
        batch_size: Samples in a batch.
        rate: Learning rate of Adam.
    """

    title: str
    protocol: Protocol
    batch_size: int
    rate: float


STREAMS = {
    "random_labels": Stream("random labels", RandomLabels(15, 600, 25, labels="drawn"), 50, 3e-3),
    "permuted_labels": Stream("permuted labels", PermutedLabels(40, 1000, 1), 10, 3e-3),
    "permuted_inputs": Stream("permuted inputs", PermutedInputs(15, 600, 10), 20, 1e-2),
    "warm_start": Stream("warm start", WarmStart(0.1, (150, 8)), 50, 3e-3),
}


class SmallImages(SmallFashionMNISTDataModule):
    """Packaged Fashion-MNIST, 10,000 training and 2,000 test images, averaged over 2×2 pixels: uint8 (1, 14, 14)."""

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """Return the training set and the test set."""
        return _small_images()


def data_of(stream: Stream, seed: int) -> SmallImages:
    """Return the data of a stream, a pure function of the seed."""
    return SmallImages(protocol=stream.protocol, batch_size=stream.batch_size, seed=seed)


@cache
def _small_images() -> tuple[TensorDataset, TensorDataset]:
    train, test = SmallFashionMNISTDataModule().load()
    return _halved(train), _halved(test)


def _halved(dataset: TensorDataset) -> TensorDataset:
    images, labels = dataset.tensors
    return TensorDataset(avg_pool2d(images.float(), 2).round().byte(), labels)
