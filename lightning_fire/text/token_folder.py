"""Folder of token files: complete or marked as incomplete; after a killed process it can be continued."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lightning_fire.atomic import flush
from lightning_fire.text.sources import SPLITS, Piece

SECONDS_BETWEEN_SAVES = 5.0
_PROGRESS = "progress.json"
_FORCE = "--force starts again"


class TokenFolder:
    """Writer of `train.bin`, `val.bin` and `meta.json`, which get their names at the end of the `with` block.

    Until then the tokens are in `train.bin.part` and `val.bin.part`; `progress.json` has the number that counts and
    the next position in the text. What a killed process has written after that is cut off.

    Attributes:
        state: Content of `progress.json`.
        meta: Content of `meta.json` if the folder is complete, and was made with these settings; else None.
    """

    def __init__(self, folder: Path, about: dict[str, Any], settings: dict[str, Any], force: bool = False):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file: name a folder")
        self.folder, self._about, self._settings = folder, about, settings
        self._dtype = np.dtype(about["dtype"]).newbyteorder("<")
        self._made = not folder.exists()
        self._files: dict[str, Any] = {}
        self.meta: dict[str, Any] | None = None
        splits = {split: {"tokens": 0, "documents": 0} for split in SPLITS}
        self.state = {"settings": settings, "position": [0, 0, 0], "splits": splits, "finished": False}
        if (state := self._read(_PROGRESS)) is not None:
            if not (problem := _difference(state, settings) or self._lost(state)):
                self.state = state
                return
            if not force:
                raise FileExistsError(f"{folder} holds tokens of an unfinished run {problem}: {_FORCE}")
        found = [name for name in ("meta.json", "train.bin", "val.bin") if (folder / name).exists()]
        if not found or force:
            return
        if len(found) < 3:
            raise FileExistsError(f"{folder} has {' and '.join(found)} of another origin: {_FORCE}")
        self.meta = self._read("meta.json")
        if problem := _difference(self.meta, settings):
            raise FileExistsError(f"{folder} is complete, but was made {problem}: {_FORCE}")

    @property
    def tokens(self) -> int:
        """Number of tokens written."""
        return sum(count["tokens"] for count in self.state["splits"].values())

    def __enter__(self) -> "TokenFolder":
        """Open the files, and cut off tokens that do not count."""
        if self.state["finished"]:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files = {split: self._part(split).open("ab") for split in SPLITS}
        try:
            import fcntl

            fcntl.flock(self._files["train"], fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process
        except BlockingIOError:
            self._close()
            raise RuntimeError(f"another process is preparing a text in {self.folder}") from None
        except (ImportError, OSError):  # Windows; a file system without locks
            pass
        self._save()
        for split, file in self._files.items():
            file.truncate(self.state["splits"][split]["tokens"] * self._dtype.itemsize)
        return self

    def write(self, pieces: Sequence[Piece], tokens: Sequence[np.ndarray]) -> None:
        """Append the tokens of pieces, `(tokens,)` each, and the token that ends a document."""
        splits = {split: dict(count) for split, count in self.state["splits"].items()}
        for piece, found in zip(pieces, tokens, strict=True):
            if piece.ends and self._about["end_of_text"] is not None:
                found = np.append(found, self._about["end_of_text"])
            self._files[piece.split].write(found.astype(self._dtype).tobytes())
            splits[piece.split]["tokens"] += len(found)
            splits[piece.split]["documents"] += piece.ends
        self.state = {**self.state, "position": pieces[-1].following, "splits": splits}  # at once: for interruptions
        if time.monotonic() - self._saved >= SECONDS_BETWEEN_SAVES:
            self._save()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Complete the folder. After an error: keep the tokens written so far, or remove the folder without any."""
        empty = [split for split, count in self.state["splits"].items() if not count["tokens"]]
        if kind is None and not empty:
            return self._finish()
        if kind is not None and self.tokens:
            self._save()
            return self._close()
        self._close()
        for name in (_PROGRESS, f"{_PROGRESS}.part", *(f"{split}.bin.part" for split in SPLITS)):
            (self.folder / name).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # it has a file of another program
                self.folder.rmdir()
        if kind is None:
            documents = sum(count["documents"] for count in self.state["splits"].values())
            left = f"no document is left for {'training' if empty == ['train'] else 'validation'}, of {documents}:"
            advice = f"{left} try another --val-share, --seed or --val-split"
            raise ValueError(advice if self.tokens else "no text in the input")

    def _finish(self) -> None:
        if not self.state["finished"]:
            self.state["finished"] = True
            self._save()
            self._close()
        (self.folder / "meta.json").unlink(missing_ok=True)  # of what is replaced
        for split in SPLITS:
            if self._part(split).exists():
                os.replace(self._part(split), self.folder / f"{split}.bin")
        flush(self.folder)
        self.meta = {"format": 1, **self._about, "splits": self.state["splits"], "settings": self._settings}
        self._write("meta.json", self.meta)
        (self.folder / _PROGRESS).unlink(missing_ok=True)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()

    def _save(self) -> None:
        """Write the progress, after the tokens are on the disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self._write(_PROGRESS, self.state)
        self._saved = time.monotonic()

    def _write(self, name: str, content: dict[str, Any]) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        flush(part)
        os.replace(part, self.folder / name)
        flush(self.folder)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def _part(self, split: str) -> Path:
        return self.folder / f"{split}.bin.part"

    def _lost(self, state: dict[str, Any]) -> str:
        """Return a description of missing tokens; empty if none are missing."""
        for split, count in state["splits"].items():
            part, size = self._part(split), count["tokens"] * self._dtype.itemsize
            if not state["finished"] and (part.stat().st_size if part.exists() else 0) < size:
                return f"that has lost some, as {part.name} is shorter than {size} bytes"
        return ""


def _difference(found: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return a description of the settings that differ; empty if none do."""
    before = found.get("settings")
    if not isinstance(before, dict):
        return "by something else"
    differing = [
        f"{name}: {before.get(name, 'none')}, now {settings.get(name, 'none')}"
        for name in {**before, **settings}
        if before.get(name) != settings.get(name)
    ]
    return f"with other settings ({'; '.join(differing)})" if differing else ""
