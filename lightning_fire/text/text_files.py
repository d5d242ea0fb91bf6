"""Text files as documents, read in pieces."""

import codecs
import glob
import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lightning_fire.text.pieces import PIECE, Piece, Position, cut, draw, held_out


class _Part(NamedTuple):
    path: Path
    begin: int  # bytes
    end: int
    split: str


class TextFiles:
    """Files of UTF-8 text, each a document. Of a single one the last lines are held out. Empty ones are left out."""

    unit = "B"
    start: Position = (0, 0)

    def __init__(self, places: Sequence[str], seed: int, val_share: float):
        self._found = {path: path.stat() for place in places for path in _files(place)}
        sizes = {path: stat.st_size for path, stat in self._found.items() if stat.st_size}
        if not sizes:
            raise ValueError(f"there is no text in {', '.join(places)}: {len(self._found)} files, all empty")
        if len(sizes) == 1:
            self._parts = _last_lines_held_out(*next(iter(sizes.items())), val_share)
        else:
            require_both(len(sizes), seed, val_share)
            self._parts = [
                _Part(path, 0, size, "val" if held_out(seed, number, val_share) else "train")
                for number, (path, size) in enumerate(sizes.items())
            ]
        self._before = [0, *accumulate(part.end - part.begin for part in self._parts)]
        self.total = self._before[-1]

    @property
    def identity(self) -> dict[str, str]:
        """What tells these files from others, and from themselves after a change."""
        listing = hashlib.sha256()
        for path, stat in self._found.items():
            listing.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
        return {"files": f"{len(self._found)} files of {self.total} bytes, {listing.hexdigest()[:16]}"}

    def done(self, position: Position) -> int:
        """Return the bytes before a position."""
        part, byte = position
        return self._before[part] + byte

    def pieces(self, start: Position) -> Iterator[Piece]:
        """Read from a position on.

        Yields:
            The pieces, which depend on nothing but their position.
        """
        first, byte = start
        for number, part in enumerate(self._parts[first:], first):
            with part.path.open("rb") as file:
                self._require_unchanged(part.path)
                while byte < part.end - part.begin:
                    text = _read(file, part, part.begin + byte)
                    byte += len(text.encode())
                    ends = byte == part.end - part.begin
                    yield Piece(text, part.split, ends, (number + 1, 0) if ends else (number, byte))
            byte = 0

    def _require_unchanged(self, path: Path) -> None:
        now, before = path.stat(), self._found[path]
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise RuntimeError(f"{path} has changed while the text was prepared")


def require_both(documents: int, seed: int, val_share: float) -> None:
    """Refuse a draw that leaves a split without a document."""
    first = held_out(seed, 0, val_share)
    if any(held_out(seed, number, val_share) != first for number in range(1, documents)):
        return
    advice = ""
    if documents > 1 and not first:
        least = min(draw(seed, number) for number in range(documents))
        advice = f": --val-share {least * 1.01 + 1e-6:.2g} holds one out"
    raise ValueError(
        f"no document is left for {'training' if first else 'validation'}, of {documents} with --val-share"
        f" {val_share:g} and --seed {seed}{advice}"
    )


def _files(place: str) -> list[Path]:
    path = Path(place)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*.txt") if file.is_file())
        if not found:
            raise FileNotFoundError(f"{place} has no .txt files")
    elif path.exists():
        if not path.is_file():
            raise ValueError(f"{place} is neither a file nor a folder")
        found = [path]
    else:
        found = [Path(file) for file in sorted(glob.glob(place, recursive=True)) if Path(file).is_file()]
        if not found:
            raise FileNotFoundError(f"{place} does not exist")
    return found


def _read(file: BinaryIO, part: _Part, begin: int) -> str:
    file.seek(begin)
    raw = file.read(min(PIECE, part.end - begin))
    last = begin + len(raw) == part.end
    if not last and len(raw) < PIECE:
        raise RuntimeError(f"{part.path} has changed while the text was prepared")
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw, final=last)
    except UnicodeDecodeError as error:
        raise ValueError(f"{part.path} is not UTF-8: {error.reason} at byte {begin + error.start}") from None
    return text if last else text[: cut(text)]


def _last_lines_held_out(path: Path, size: int, share: float) -> list[_Part]:
    """Cut a file after the first line end in its last share; where there is none, after the last one before."""
    target = size - max(1, round(size * share))
    with path.open("rb") as file:
        end = _line_end_after(file, target, size) or _line_end_before(file, target)
    if not end:
        raise ValueError(f"no document is left for validation: {path} is the only one, and has a single line")
    return [_Part(path, 0, end, "train"), _Part(path, end, size, "val")]


def _line_end_after(file: BinaryIO, begin: int, size: int) -> int:
    file.seek(begin)
    while block := file.read(PIECE):
        if (at := block.find(b"\n")) >= 0:
            return begin + at + 1 if begin + at + 1 < size else 0
        begin += len(block)
    return 0


def _line_end_before(file: BinaryIO, end: int) -> int:
    while end > 0:
        begin = max(0, end - PIECE)
        file.seek(begin)
        if (at := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + at + 1
        end = begin
    return 0
