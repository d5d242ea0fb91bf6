"""Tiny ImageNet, read directly from the original zip file: nothing is extracted, moved or renamed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets.utils import check_integrity, download_url

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.file_errors import damaged, require_file

_TOP = "tiny-imagenet-200"


class TinyImageNetDataModule(ChunkedDataModule):
    """Tiny ImageNet: 100,000 training and 10,000 test images (its validation set), uint8 (3, 64, 64), 200 classes.

    Classes are numbered by sorted WordNet ids, as in torchvision's `ImageFolder`. Grey images become RGB. All images
    are decoded into memory (1.4 GB) when training starts.

    Args:
        root: Folder of `tiny-imagenet-200.zip`.
        download: Download the file if it is missing.
        **options: `protocol`, `batch_size`, `seed`, `num_workers` and `transform` of `ChunkedDataModule`.
    """

    url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5 = "90528d7ca1a48142e341f4ef8d21d0de"

    def __init__(self, root: str = "data", download: bool = False, **options: Any):
        mean, std = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
        super().__init__(train=None, test=None, mean=mean, std=std, num_classes=200, **options)
        self.root, self.download, self.path = root, download, Path(root) / f"{_TOP}.zip"

    def prepare_data(self) -> None:
        """Download the file if asked to, unless it is there; a `RuntimeError` if it is not the published one."""
        if self.download:
            download_url(self.url, self.root, self.path.name, md5=self.md5)

    def load(self) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set.

        Raises:
            FileNotFoundError: If the zip file is missing.
            RuntimeError: If it is not the published one.
        """
        require_file(self.path, type(self).__name__)
        if not check_integrity(self.path, self.md5):
            raise damaged(self.path, f"its MD5 sum is not {self.md5}")
        with ZipFile(self.path) as archive:
            train, val = _listed(archive)
            return _decode(archive, train), _decode(archive, val)


def _listed(archive: ZipFile) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the member and class of each training image and of each validation image, from the archive's lists."""

    def lines(member: str) -> list[list[str]]:
        return [line.split() for line in archive.read(f"{_TOP}/{member}").decode().splitlines() if line.strip()]

    number = {wnid: i for i, wnid in enumerate(sorted(words[0] for words in lines("wnids.txt")))}
    train = [
        (f"{_TOP}/train/{wnid}/images/{words[0]}", number[wnid])
        for wnid in number
        for words in lines(f"train/{wnid}/{wnid}_boxes.txt")
    ]
    return train, [(f"{_TOP}/val/images/{words[0]}", number[words[1]]) for words in lines("val/val_annotations.txt")]


def _decode(archive: ZipFile, entries: Sequence[tuple[str, int]]) -> TensorDataset:
    images = np.empty((len(entries), 3, 64, 64), dtype=np.uint8)

    def decode(i: int) -> None:
        with Image.open(BytesIO(archive.read(entries[i][0]))) as image:
            images[i] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)  # (64, 64, 3) to (3, 64, 64)

    with ThreadPoolExecutor() as pool:
        list(pool.map(decode, range(len(entries))))  # raises the first error
    return TensorDataset(torch.from_numpy(images), torch.tensor([label for _, label in entries], dtype=torch.int64))
