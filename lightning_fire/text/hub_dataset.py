"""A data set of Hugging Face as documents, as they come over the network."""

from collections.abc import Iterator
from typing import Any

from lightning_fire.text.pieces import PIECE, Piece, Position, cut, held_out
from lightning_fire.text.text_files import require_both


class HubDataset:
    """A text column, each row a document. Rows without text are left out."""

    unit = " documents"
    start: Position = (0, 0, 0)

    def __init__(self, name: str, column: str, split: str, val_split: str | None, seed: int, val_share: float):
        self._name, self._column, self._seed, self._val_share = name, column, seed, val_share
        self._splits = [split] if val_split is None else [split, val_split]
        self._streams = [self._open(split) for split in self._splits]
        rows = [_rows(stream, split) for stream, split in zip(self._streams, self._splits, strict=True)]
        self.total = None if None in rows else sum(rows)
        self._before = [0, *rows[:1]]
        if val_split is None and self.total is not None:
            require_both(self.total, seed, val_share)

    @property
    def identity(self) -> dict[str, str]:
        """What tells this text from others."""
        return {"dataset": self._name, "column": self._column, "splits": ", ".join(self._splits)}

    def done(self, position: Position) -> int:
        """Return the rows before a position, of the current split where those of the first are not known."""
        split, row, _ = position
        return sum(filter(None, self._before[: split + 1])) + row

    def pieces(self, start: Position) -> Iterator[Piece]:
        """Read from a position on.

        Yields:
            The pieces, which depend on nothing but their position.
        """
        first_split, first_row, character = start
        for number, stream in enumerate(self._streams[first_split:], first_split):
            for row, text in enumerate(self._texts(stream, first_row), first_row):
                while character < len(text):
                    window = text[character : character + PIECE]
                    ends = character + len(window) == len(text)
                    window = window if ends else window[: cut(window)]
                    character += len(window)
                    following = (number, row + 1, 0) if ends else (number, row, character)
                    yield Piece(window, self._split_of(number, row), ends, following)
                character = 0
            first_row = 0

    def _split_of(self, number: int, row: int) -> str:
        if len(self._splits) == 2:
            return ("train", "val")[number]
        return "val" if held_out(self._seed, row, self._val_share) else "train"

    def _texts(self, stream: Any, first: int) -> Iterator[str]:
        rows = iter(stream.skip(first) if first else stream)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except Exception as error:  # of any of the libraries that reach for the network
                raise RuntimeError(f"{self._name} cannot be read any further: {_brief(error)}") from error
            if self._column not in row:
                raise ValueError(f"{self._name} has no column {self._column!r}, but {', '.join(row)}: --column NAME")
            text = row[self._column]
            if not isinstance(text, str | None):
                raise ValueError(f"column {self._column!r} of {self._name} holds no text, but {type(text).__name__}")
            yield text or ""

    def _open(self, split: str) -> Any:
        try:
            from datasets import load_dataset  # takes seconds
        except ImportError as error:
            raise ImportError(f"--dataset needs `datasets`: pip install 'lightning-fire[text]' ({error})") from error
        name, _, config = self._name.partition(":")
        try:
            return load_dataset(name, config or None, split=split, streaming=True)
        except Exception as error:  # of any of the libraries that reach for the network
            raise RuntimeError(f"{self._name}, split {split!r}, cannot be opened: {_brief(error)}") from error


def _rows(stream: Any, split: str) -> int | None:
    """Return what the data set says of itself."""
    splits = getattr(getattr(stream, "info", None), "splits", None) or {}
    return getattr(splits.get(split), "num_examples", None) or None


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
