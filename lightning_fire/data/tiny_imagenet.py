"""Tiny ImageNet, read directly from the original zip file: nothing is extracted, moved or renamed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets.utils import check_integrity

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.files import damaged, require_file

_TOP = "tiny-imagenet-200"
_SIZE = (64, 64)


class TinyImageNetDataModule(ChunkedDataModule):
    """Tiny ImageNet: 100,000 training and 10,000 test images (its validation set), uint8 (3, 64, 64), 200 classes.

    Classes are numbered by sorted WordNet ids, as in torchvision's `ImageFolder`. Grey images become RGB. All images
    are decoded into memory (1.4 GB) when training starts; an incomplete or damaged file is an error.

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
        """Download the file if asked to; a `RuntimeError` if it is not the published one."""
        if self.download and not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".zip.partial")
            torch.hub.download_url_to_file(self.url, str(partial))
            if not check_integrity(str(partial), self.md5):
                raise damaged(partial, f"the MD5 sum of the file from {self.url} is not {self.md5}")
            partial.replace(self.path)  # atomic: other processes never see a partial file

    def load(self) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set.

        Raises:
            FileNotFoundError: If the zip file is missing.
            RuntimeError: If it, or anything in it, is missing, truncated or damaged.
        """
        require_file(self.path, type(self).__name__)
        try:
            with ZipFile(self.path) as archive:
                train, test = _listed(archive)
                return _decode(archive, train), _decode(archive, test)
        except (BadZipFile, ZlibError, EOFError, OSError, KeyError, ValueError) as error:
            raise damaged(self.path, error) from error


def _listed(archive: ZipFile) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the member and class of each training image and of each validation image, from the archive's lists."""

    def lines(member: str) -> list[list[str]]:
        return [line.split() for line in archive.read(f"{_TOP}/{member}").decode().splitlines() if line.strip()]

    number = {wnid: i for i, wnid in enumerate(sorted({words[0] for words in lines("wnids.txt")}))}
    if len(number) != 200:
        raise ValueError(f"wnids.txt names {len(number)} classes instead of 200")
    train = [
        (f"{_TOP}/train/{wnid}/images/{words[0]}", number[wnid])
        for wnid in number
        for words in lines(f"train/{wnid}/{wnid}_boxes.txt")
    ]
    val = [(f"{_TOP}/val/images/{words[0]}", number[words[1]]) for words in lines("val/val_annotations.txt")]
    listed = {name for name, _ in (*train, *val)}
    folders = (f"{_TOP}/train/", f"{_TOP}/val/")
    present = {name for name in archive.namelist() if name.startswith(folders) and name.endswith(".JPEG")}
    if odd := sorted(listed ^ present):
        kind = "listed but missing" if odd[0] in listed else "there but not listed"
        raise ValueError(f"{len(listed - present)} listed images are missing ({odd[0]} is {kind})")
    return train, val


def _decode(archive: ZipFile, entries: Sequence[tuple[str, int]]) -> TensorDataset:
    images = np.empty((len(entries), 3, *_SIZE), dtype=np.uint8)

    def decode(i: int) -> None:
        name = entries[i][0]
        content = archive.read(name)
        try:
            with Image.open(BytesIO(content), formats=("JPEG",)) as image:
                if image.size != _SIZE:
                    raise ValueError(f"it is {image.size} pixels large instead of {_SIZE}")
                images[i] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)  # (64, 64, 3) to (3, 64, 64)
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot decode {name}: {error}") from error

    with ThreadPoolExecutor() as pool:
        list(pool.map(decode, range(len(entries))))  # raises the first error
    return TensorDataset(torch.from_numpy(images), torch.tensor([label for _, label in entries], dtype=torch.int64))
