"""Training data that arrives in chunks: the paper's protocols, its data sets, and any other data set."""

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.image_sets import (
    CIFAR10DataModule,
    CIFAR100DataModule,
    FashionMNISTDataModule,
    SmallFashionMNISTDataModule,
    TinyImageNetDataModule,
)
from lightning_fire.data.king_james_and_python import KingJamesAndPythonDataModule
from lightning_fire.data.protocols import (
    ClassIncremental,
    Continual,
    Protocol,
    WarmStart,
    class_incremental,
    continual,
    warm_start,
)
from lightning_fire.data.replay import ReplayDataModule
from lightning_fire.data.slowly_changing_regression import SlowlyChangingRegressionDataModule
from lightning_fire.data.streams import PermutedInputs, PermutedLabels, RandomLabels, SlowlyChangingRegression, Stream
from lightning_fire.data.text import TextDataModule

__all__ = [
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "ChunkedDataModule",
    "ClassIncremental",
    "Continual",
    "FashionMNISTDataModule",
    "KingJamesAndPythonDataModule",
    "PermutedInputs",
    "PermutedLabels",
    "Protocol",
    "RandomLabels",
    "ReplayDataModule",
    "SlowlyChangingRegression",
    "SlowlyChangingRegressionDataModule",
    "SmallFashionMNISTDataModule",
    "Stream",
    "TextDataModule",
    "TinyImageNetDataModule",
    "WarmStart",
    "class_incremental",
    "continual",
    "warm_start",
]
