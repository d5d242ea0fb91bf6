"""Text as token ids: arrays in memory, or files of nanoGPT's `prepare` scripts or `lightning-fire prepare-text`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DTYPES = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4"}


class Tokens:
    """Sequence of token ids; a file is read on demand and not copied to workers.

    Args:
        source: The file, or an array of unsigned integers, shape `(tokens,)`.
        dtype: Type of the tokens in the file: `uint8`, `uint16` or `uint32`, little-endian.
        vocab_size: Upper bound of the tokens, exclusive; None: unknown.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If its size is not a multiple of the token size, or `dtype` is unknown.
    """

    def __init__(self, source: Path | np.ndarray, dtype: str = "uint16", vocab_size: int | None = None):
        if dtype not in _DTYPES:
            raise ValueError(f"`dtype` must be one of {list(_DTYPES)}, got {dtype!r}")
        self.vocab_size = vocab_size
        self._source, self._dtype = source, np.dtype(_DTYPES[dtype])
        self._array: np.ndarray | None = None
        if isinstance(source, np.ndarray):
            self._size = len(source)
            return
        size = source.stat().st_size
        self._size, rest = divmod(size, self._dtype.itemsize)
        if rest:
            multiple = f"its {size} bytes are not a multiple of {self._dtype.itemsize}"
            raise ValueError(f"{source} is truncated, or not of {dtype}: {multiple}")

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return "an array" if isinstance(self._source, np.ndarray) else str(self._source)

    def __len__(self) -> int:
        return self._size

    def blocks(self, starts: np.ndarray, length: int) -> Tensor:
        """Return `length` tokens from each start, int64 `(n,)`: int64 `(n, length)`, below `vocab_size`."""
        if self._array is None:
            source = self._source
            self._array = source if isinstance(source, np.ndarray) else np.memmap(source, self._dtype, mode="r")
        found = np.stack([self._array[start : start + length] for start in starts.tolist()]).astype(np.int64)
        if self.vocab_size is not None and (largest := int(found.max())) >= self.vocab_size:
            row, column = np.argwhere(found == largest)[0]
            raise ValueError(
                f"token {starts[row] + column} of {self.name} is {largest}, but the vocabulary has"
                f" {self.vocab_size}: another tokenizer, or another dtype"
            )
        return torch.from_numpy(found)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the memory map: each process maps the file itself."""
        return {**vars(self), "_array": None}


@dataclass(frozen=True)
class TokenSource:
    """A text, split into training and validation.

    Attributes:
        train: Tokens to train on.
        val: Tokens to validate on.
        vocab_size: Upper bound of the tokens, exclusive; None: unknown.
        tokenizer: The tokenizer that made them; None: unknown.
    """

    train: Tokens
    val: Tokens
    vocab_size: int | None = None
    tokenizer: str | None = None


def open_source(folder: Path, dtype: str = "uint16") -> TokenSource:
    """Open a folder with `train.bin`, `val.bin`, and `meta.json` (of `prepare-text`) or a given `dtype`."""
    for name in ("train.bin", "val.bin"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} does not exist; `lightning-fire prepare-text {folder} FILES` makes it"
            )
    file = folder / "meta.json"
    meta = json.loads(file.read_text()) if file.is_file() else {}
    dtype, vocab_size = meta.get("dtype", dtype), meta.get("vocab_size")
    tokens = {split: Tokens(folder / f"{split}.bin", dtype, vocab_size) for split in ("train", "val")}
    for split, found in tokens.items():
        expected = meta["splits"][split]["tokens"] if meta else len(found)
        if expected != len(found):
            raise ValueError(f"{found.name} is truncated: it has {len(found)} tokens, meta.json says {expected}")
    return TokenSource(tokens["train"], tokens["val"], vocab_size, meta.get("tokenizer"))
