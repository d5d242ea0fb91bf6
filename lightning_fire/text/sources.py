"""Texts as documents in pieces: long ones are never in memory as a whole, and cuts do not change the tokens."""

import codecs
import glob
import hashlib
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

PIECE = 1 << 18  # length of the longest piece: bytes of a file, characters of a row of a data set
SPLITS = ("train", "val")


class Piece(NamedTuple):
    """A part of a document; `following` is the position after it: file or split, bytes or rows, characters of a row."""

    text: str
    split: str
    ends: bool
    following: tuple[int, int, int]


class TextFiles:
    """Files of UTF-8 text, each a document. Of a single file the last lines are held out. Empty files are skipped."""

    unit = "B"

    def __init__(self, names: Sequence[str], seed: int, val_share: float):
        self._found = {path: path.stat() for name in names for path in _files(name)}
        sizes = {path: stat.st_size for path, stat in self._found.items() if stat.st_size}
        if not sizes:
            raise ValueError(f"no text in {', '.join(names)}: {len(self._found)} files, all empty")
        if len(sizes) == 1:
            ((path, size),) = sizes.items()
            cut_at = _start_of_last_lines(path, size, val_share)
            self._parts = [(path, 0, cut_at, "train"), (path, cut_at, size, "val")]
        else:
            require_both(len(sizes), seed, val_share)
            splits = [SPLITS[held_out(seed, number, val_share)] for number in range(len(sizes))]
            self._parts = [(path, 0, size, split) for (path, size), split in zip(sizes.items(), splits, strict=True)]
        self.before = [0, *accumulate(end - begin for _, begin, end, _ in self._parts)]
        self.total = self.before[-1]
        listing = "".join(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n" for path, stat in self._found.items())
        digest = hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()
        self.identity = {"files": f"{len(self._found)} files of {self.total} bytes, {digest[:16]}"}

    def pieces(self, start: Sequence[int]) -> Iterator[Piece]:
        """Yield the pieces from a position on; they depend on nothing but their position."""
        first, done, _ = start
        for number, (path, begin, end, split) in enumerate(self._parts[first:], first):
            at = begin + done
            with path.open("rb") as file:
                while at < end:
                    file.seek(at)
                    raw, now, before = file.read(min(PIECE, end - at)), path.stat(), self._found[path]
                    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                        raise RuntimeError(f"{path} has changed while the text was prepared")
                    last = at + len(raw) == end
                    try:
                        text = codecs.getincrementaldecoder("utf-8")().decode(raw, final=last)
                    except UnicodeDecodeError as error:
                        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {at + error.start}") from None
                    text = text if last else text[: cut(text)]
                    at += len(text.encode())
                    yield Piece(text, split, last, (number, at - begin, 0))
            done = 0


class HubDataset:
    """A text column of a Hugging Face data set, streamed, each row a document. Rows without text are skipped."""

    unit = " documents"

    def __init__(self, name: str, column: str, split: str, val_split: str | None, seed: int, val_share: float):
        self._name, self._column, self._seed, self._val_share = name, column, seed, val_share
        splits = [split] if val_split is None else [split, val_split]
        self._streams = [self._open(split) for split in splits]
        infos = [(stream.info.splits or {}).get(split) for stream, split in zip(self._streams, splits, strict=True)]
        rows = [getattr(info, "num_examples", None) or None for info in infos]
        self.before = [0, rows[0] or 0]  # where that is not known, the bar counts the rows of a split
        self.total = None if None in rows else sum(rows)
        if val_split is None and self.total is not None:
            require_both(self.total, seed, val_share)
        self.identity = {"dataset": name, "column": column, "splits": ", ".join(splits)}

    def pieces(self, start: Sequence[int]) -> Iterator[Piece]:
        """Yield the pieces from a position on; they depend on nothing but their position."""
        first, done, at = start
        for number, stream in enumerate(self._streams[first:], first):
            for row, text in enumerate(self._texts(stream.skip(done) if done else stream), done):
                val = number if len(self._streams) == 2 else held_out(self._seed, row, self._val_share)
                while at < len(text):
                    window = text[at : at + PIECE]
                    if at + len(window) < len(text):
                        window = window[: cut(window)]
                    at += len(window)
                    ends = at == len(text)
                    yield Piece(window, SPLITS[val], ends, (number, row + 1, 0) if ends else (number, row, at))
                at = 0
            done = 0

    def _texts(self, stream: Any) -> Iterator[str]:
        for row in self._rows(stream):
            if self._column not in row:
                raise ValueError(f"{self._name} has no column {self._column!r}, but {', '.join(row)}: --column NAME")
            text = row[self._column]
            if not isinstance(text, str | None):
                raise ValueError(f"column {self._column!r} of {self._name} holds no text, but {type(text).__name__}")
            yield text or ""

    def _rows(self, stream: Any) -> Iterator[dict[str, Any]]:
        with _named(f"{self._name} cannot be read any further"):
            yield from stream

    def _open(self, split: str) -> Any:
        try:
            from datasets import load_dataset  # takes seconds
        except ImportError as error:
            raise ImportError(f"--dataset needs `datasets`: pip install 'lightning-fire[text]' ({error})") from error
        name, _, config = self._name.partition(":")
        with _named(f"{self._name}, split {split!r}, cannot be opened"):
            return load_dataset(name, config or None, split=split, streaming=True)


def cut(text: str) -> int:
    """Return the position to end a piece at: one where a tokenizer that splits words at spaces splits anyway.

    That is after the last single line end, or without one before the last white space. With the byte pair encodings of
    GPT-2 and its successors, the pieces then have the same tokens as the whole text.

    Example:
        >>> text = "one two\\nthree four"
        >>> text[: cut(text)], "no lines"[: cut("no lines")], cut("oneword")
        ('one two\\n', 'no', 7)
    """
    at = len(text) - 1
    while (at := text.rfind("\n", 1, at)) > 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
    for at in range(len(text) - 1, 0, -1):
        if text[at].isspace() and not text[at - 1].isspace():
            return at
    return len(text)


def held_out(seed: int, document: int, share: float) -> bool:
    """Return whether a document is for validation: a pure function of seed and number."""
    return draw(seed, document) < share


def draw(seed: int, document: int) -> float:
    """Return a uniform random number in [0, 1): documents with one below `share` are held out."""
    digest = hashlib.blake2b(f"{seed}:{document}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def require_both(documents: int, seed: int, share: float) -> None:
    """Raise an error if a split has no document."""
    first = held_out(seed, 0, share)
    if any(held_out(seed, number, share) != first for number in range(1, documents)):
        return
    advice = ""
    if documents > 1 and not first:
        least = min(draw(seed, number) for number in range(documents))
        advice = f": --val-share {least * 1.01 + 1e-6:.2g} holds one out"
    raise ValueError(
        f"no document is left for {'training' if first else 'validation'}, of {documents} with --val-share"
        f" {share:g} and --seed {seed}{advice}"
    )


def _files(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        found, problem = sorted(path.rglob("*.txt")), "has no .txt files"
    elif path.exists():
        found, problem = [path], "is neither a file nor a folder"
    else:
        found, problem = [Path(file) for file in sorted(glob.glob(name, recursive=True))], "does not exist"
    if files := [file for file in found if file.is_file()]:
        return files
    raise FileNotFoundError(f"{name} {problem}")


def _start_of_last_lines(path: Path, size: int, share: float) -> int:
    """Return the byte after the first line end in the last fraction of a file, or else after the last one before."""
    target = size - max(1, round(size * share))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = text.find(b"\n", target) + 1
        if not 0 < start < size:
            start = text.rfind(b"\n", 0, target) + 1
    if not start:
        raise ValueError(f"no document is left for validation: {path} is the only one, and has a single line")
    return start


@contextmanager
def _named(problem: str) -> Iterator[None]:
    """Turn any error, of any of the libraries that use the network, into one of one line."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{problem}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}") from error
