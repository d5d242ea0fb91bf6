"""Documents of a text: files, or rows of a data set of Hugging Face, and those that are held out for validation."""

import codecs
import hashlib
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WINDOW = 1 << 18  # bytes of a file, or characters of a row, that are read at once


class Documents(NamedTuple):
    """The documents of each split, each in windows, so that a long one is never in memory as a whole.

    Attributes:
        train: Documents to train on.
        val: Documents to validate with.
        size: Bytes of both; of a data set, about.
        settings: Distinguishes these documents from others.
    """

    train: Iterable[Iterator[str]]
    val: Iterable[Iterator[str]]
    size: int
    settings: dict[str, Any]


def text_files(names: Sequence[str], share: float, seed: int) -> Documents:
    """Return files of UTF-8 text, a document each; of a single file the last lines are held out."""
    found = {path: path.stat() for name in names for path in _files(name)}
    sizes = {path: stat.st_size for path, stat in found.items()}
    if len(sizes) == 1:
        ((path, size),) = sizes.items()
        cut_at = _start_of_last_lines(path, size, share)
        train, val = [(path, 0, cut_at)], [(path, cut_at, size)]
    else:
        parts = [(path, 0, size) for path, size in sizes.items()]
        train, val = ([parts[number] for number in numbers] for numbers in _drawn(len(parts), share, seed))
    listing = "".join(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n" for path, stat in found.items())
    digest = hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()[:16]
    size = sum(sizes.values())
    settings = {"files": f"{len(sizes)} of {size} bytes, {digest}", "val_share": share, "seed": seed}
    return Documents((_windows(*part) for part in train), (_windows(*part) for part in val), size, settings)


def rows(name: str, column: str, split: str, val_split: str | None, share: float, seed: int) -> Documents:
    """Return the rows of a text column of a Hugging Face data set, a document each."""
    try:
        from datasets import load_dataset  # takes seconds
    except ImportError as error:
        raise ImportError(f"--dataset needs `datasets`: pip install 'lightning-fire[text]' ({error})") from error
    path, _, config = name.partition(":")
    settings = {"dataset": name, "column": column, "split": split, "val_split": val_split}
    try:
        found = [load_dataset(path, config or None, split=part) for part in (split, val_split) if part]
    except Exception as error:  # of any of the libraries that use the network
        brief = next(iter(str(error).splitlines()), "")
        raise RuntimeError(f"{name} cannot be loaded: {type(error).__name__}: {brief}") from error
    if column not in found[0].column_names:
        raise ValueError(f"{name} has no column {column!r}, but {', '.join(found[0].column_names)}: --column NAME")
    found = [part.select_columns([column]) for part in found]
    size = sum(part.data.nbytes for part in found)
    if val_split is None:
        found = [found[0].select(numbers) for numbers in _drawn(len(found[0]), share, seed)]
        settings |= {"val_share": share, "seed": seed}
    train, val = ((_windows_of(text) for batch in part.iter(100) for text in batch[column]) for part in found)
    return Documents(train, val, size, {**settings, "rows": sum(map(len, found))})


def pieces(windows: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Cut a document where tokenizers cut it anyway; yield each piece, and whether it is the last."""
    piece = next(windows, "")
    for window in windows:
        at = cut(piece)
        yield piece[:at], False
        piece = piece[at:] + window
    yield piece, True


def cut(text: str) -> int:
    """Return the position to end a piece at: one where a tokenizer that splits words at spaces splits anyway.

    That is after the last single line end, or without one before the last white space. With the byte pair encodings of
    GPT-2 and its successors, the pieces then have the same tokens as the whole text.

    Example:
        >>> text = "one two\\nthree four"
        >>> text[: cut(text)], "no lines"[: cut("no lines")], cut("oneword")
        ('one two\\n', 'no', 7)
    """
    found = re.match(r".*\S\n(?=\S)", text, re.S) or re.match(r".*\S(?=\s)", text, re.S)
    return found.end() if found else len(text)


def _drawn(documents: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the documents to train on, and those to validate with, as `datasets` and nanoGPT do."""
    order, held_out = np.random.default_rng(seed).permutation(documents), ceil(documents * share)
    if held_out == documents:
        raise ValueError(f"no document is left for training, of {documents} with --val-share {share:g}")
    return order[held_out:], order[:held_out]


def _files(name: str) -> list[Path]:
    path = Path(name)
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise FileNotFoundError(f"{name} is neither a file nor a folder with .txt files")
    return files


def _start_of_last_lines(path: Path, size: int, share: float) -> int:
    """Return the byte after the first line end in the last fraction of a file, or else after the last one before."""
    if not size:
        raise ValueError(f"no text in {path}")
    target = size - max(1, round(size * share))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = text.find(b"\n", target) + 1
        if not 0 < start < size:
            start = text.rfind(b"\n", 0, target) + 1
    if not start:
        raise ValueError(f"no document is left for validation: {path} is the only one, and has a single line")
    return start


def _windows(path: Path, begin: int, end: int) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    with path.open("rb") as file:
        file.seek(begin)
        for at in range(begin, end, WINDOW):
            raw = file.read(min(WINDOW, end - at))
            try:
                yield decode(raw, final=at + WINDOW >= end)
            except UnicodeDecodeError as error:
                place = at + len(raw) - len(error.object) + error.start
                raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {place}") from None


def _windows_of(text: str | None) -> Iterator[str]:
    return (text[at : at + WINDOW] for at in range(0, len(text or ""), WINDOW))
