"""A folder of token files that is complete or says that it is not, and that a killed process leaves fit to go on."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_fire.checkpoints.atomic import flush
from lightning_fire.text.pieces import Position

SECONDS_BETWEEN_SAVES = 5.0
_SPLITS = ("train", "val")
_PROGRESS = "progress.json"


class _Reached(NamedTuple):
    position: Position
    splits: dict[str, dict[str, int]]


class TokenFolder:
    """Writes `train.bin`, `val.bin` and `meta.json`, which bear their names when all is there, `meta.json` last.

    Until then the tokens are in `train.bin.part` and `val.bin.part`, and `progress.json` says how many of them count
    and which text comes next. What a killed process has written after that is cut off.

    Attributes:
        meta: What `meta.json` says if the folder is complete, and was made with these settings; else None.
        finished: Whether all tokens are written, and only names are to be given.
    """

    def __init__(
        self, folder: Path, about: dict[str, Any], settings: dict[str, Any], start: Position, force: bool = False
    ):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file: name a folder")
        self.folder, self._about, self._settings = folder, about, settings
        self._itemsize = np.dtype(about["dtype"]).itemsize
        self.meta: dict[str, Any] | None = None
        self._start = _Reached(start, {split: {"tokens": 0, "documents": 0} for split in _SPLITS})
        self._reached = self._start
        self.finished = False
        self._files: dict[str, Any] = {}
        self._made = not folder.exists()
        progress = _read(folder / _PROGRESS)
        if progress is not None and (begun := _tokens(progress)):
            if problem := _difference(progress, settings) or self._lost(progress):
                if not force:
                    raise FileExistsError(f"{folder} holds {begun} tokens of an unfinished run {problem}: {_FORCE}")
            else:
                self._reached = _Reached(tuple(progress["position"]), progress["splits"])
                self.finished = progress["finished"]
                return
        if force:
            return
        meta = _read(folder / "meta.json")
        if meta is not None and all((folder / f"{split}.bin").is_file() for split in _SPLITS):
            if problem := _difference(meta, settings):
                raise FileExistsError(f"{folder} is complete, but was made {problem}: {_FORCE}")
            self.meta = meta
        elif found := [name for name in ("meta.json", "train.bin", "val.bin") if (folder / name).exists()]:
            raise FileExistsError(f"{folder} has {' and '.join(found)} of another origin: {_FORCE}")

    @property
    def position(self) -> Position:
        """Where in the text to go on."""
        return self._reached.position

    @property
    def splits(self) -> dict[str, dict[str, int]]:
        """Tokens and documents written, of each split."""
        return self._reached.splits

    @property
    def tokens(self) -> int:
        """Tokens written."""
        return sum(count["tokens"] for count in self.splits.values())

    def __enter__(self) -> "TokenFolder":
        """Open the files, and cut off what does not count."""
        if self.finished:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files = {split: self._part(split).open("ab") for split in _SPLITS}
        try:
            _lock(self._files["train"], self.folder)
        except RuntimeError:
            self._close()
            raise
        self._save()
        for split, file in self._files.items():
            file.truncate(self.splits[split]["tokens"] * self._itemsize)
        self._saved = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the files. After an error: keep what there is, or leave nothing where there is nothing."""
        if kind is not None and not self.finished:
            with suppress(OSError):
                self._save() if self.tokens else self.discard()
        self._close()

    def write(self, tokens: dict[str, Sequence[np.ndarray]], documents: dict[str, int], position: Position) -> None:
        """Append."""
        for split, parts in tokens.items():
            for part in parts:
                if len(part) and not 0 <= part.min() <= part.max() < self._about["vocab_size"]:
                    raise ValueError(f"token {part.max()} is not in the vocabulary of {self._about['vocab_size']}")
                self._files[split].write(part.astype(f"<u{self._itemsize}").tobytes())
        splits = {
            split: {
                "tokens": count["tokens"] + sum(map(len, tokens[split])),
                "documents": count["documents"] + documents[split],
            }
            for split, count in self.splits.items()
        }
        self._reached = _Reached(position, splits)  # at once: an interruption may come at any time
        if time.monotonic() - self._saved >= SECONDS_BETWEEN_SAVES:
            self._save()
            self._saved = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """Give the files their names, `meta.json` last."""
        if empty := [split for split in _SPLITS if not self.splits[split]["tokens"]]:
            documents = sum(count["documents"] for count in self.splits.values())
            self.discard()
            self._reached = self._start
            if len(empty) == 2:
                raise ValueError("there is no text in the input")
            raise ValueError(
                f"no document is left for {'training' if empty == ['train'] else 'validation'}, of {documents}:"
                " try another --val-share, --seed or --val-split"
            )
        if not self.finished:
            self.finished = True
            self._save()
            self._close()
        (self.folder / "meta.json").unlink(missing_ok=True)  # of what is replaced
        for split in _SPLITS:
            if self._part(split).exists():
                os.replace(self._part(split), self.folder / f"{split}.bin")
        flush(self.folder)
        meta = {"format": 1, **self._about, "splits": self.splits, "settings": self._settings}
        self._write("meta.json", meta)
        (self.folder / _PROGRESS).unlink(missing_ok=True)
        return meta

    def discard(self) -> None:
        """Remove what is unfinished."""
        for name in (_PROGRESS, f"{_PROGRESS}.part", *(f"{split}.bin.part" for split in _SPLITS)):
            (self.folder / name).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # somebody else's file is in it
                self.folder.rmdir()

    def _close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # of a full disk once more
                file.close()

    def _save(self) -> None:
        """Say what is on the disk, once it is there."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self._write(
            _PROGRESS,
            {"settings": self._settings, "position": self.position, "splits": self.splits, "finished": self.finished},
        )

    def _write(self, name: str, content: dict[str, Any]) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        flush(part)
        os.replace(part, self.folder / name)
        flush(self.folder)

    def _part(self, split: str) -> Path:
        return self.folder / f"{split}.bin.part"

    def _lost(self, progress: dict[str, Any]) -> str:
        """Say if tokens that should be there are not."""
        for split in _SPLITS:
            part, size = self._part(split), progress["splits"][split]["tokens"] * self._itemsize
            if progress["finished"] and not part.exists():
                part = self.folder / f"{split}.bin"
            if (part.stat().st_size if part.exists() else 0) < size:
                return f"that has lost some, as {part.name} is shorter than {size} bytes"
        return ""


_FORCE = "--force begins anew"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _tokens(progress: dict[str, Any]) -> int:
    """Return the tokens of an unfinished run; -1 if that cannot be told."""
    try:
        return sum(progress["splits"][split]["tokens"] for split in _SPLITS)
    except (KeyError, TypeError):
        return -1


def _difference(found: dict[str, Any], settings: dict[str, Any]) -> str:
    """Say which settings differ; nothing if none do."""
    before = found.get("settings")
    if not isinstance(before, dict):
        return "by something else"
    differing = [
        f"{name}: {before.get(name, 'none')}, now {settings.get(name, 'none')}"
        for name in {**before, **settings}
        if before.get(name) != settings.get(name)
    ]
    return f"with other settings ({'; '.join(differing)})" if differing else ""


def _lock(file: Any, folder: Path) -> None:
    """Refuse to be the second to write there, where the system can tell. The lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RuntimeError(f"another process is preparing a text in {folder}") from None
    except OSError:  # a file system without locks
        return
