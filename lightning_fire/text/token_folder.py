"""Folder of token files: complete or marked as incomplete; after a killed process it can be continued."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_fire.atomic import flush


class TokenFolder:
    """Writer of `train.bin` and `val.bin`, batch by batch, and of `meta.json`, which counts what is in them.

    Tokens after the last batch that counts, as a killed process may leave them, are cut off.

    Args:
        folder: The folder; if it has tokens of the same settings, they are continued.
        about: `dtype`, `vocab_size`, `tokenizer` and `end_of_text`.
        settings: Distinguishes these tokens from others.
        force: Start again in any case.

    Attributes:
        meta: Content of `meta.json`: `about`, `settings`, the counts `splits` and `batches`, and `complete`.

    Raises:
        FileExistsError: If the folder has other tokens.
        ValueError: If tokens that count are missing, or there are none for a file; from `begin` and `finish`.
    """

    def __init__(self, folder: Path, about: dict[str, Any], settings: dict[str, Any], force: bool = False):
        self._folder, self._dtype = folder, np.dtype(about["dtype"]).newbyteorder("<")
        self._paths = {split: folder / f"{split}.bin" for split in ("train", "val")}
        counts = {split: {"tokens": 0, "documents": 0} for split in self._paths}
        self.meta = {**about, "settings": settings, "splits": counts, "batches": 0, "complete": False}
        found = self._read()
        if force or not found.get("batches", any(path.exists() for path in self._paths.values())):
            return
        if problem := _difference(found.get("settings"), settings):
            raise FileExistsError(f"{folder} holds tokens {problem}: --force starts again")
        self.meta = found

    def begin(self) -> None:
        """Make the folder, or cut off tokens that do not count."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._save()
        for split, path in self._paths.items():
            path.touch()
            size = self.meta["splits"][split]["tokens"] * self._dtype.itemsize
            if path.stat().st_size < size:
                raise ValueError(f"{path} has lost some of its {size} bytes: --force starts again")
            os.truncate(path, size)

    def write(self, split: str, tokens: Sequence[np.ndarray], documents: int) -> None:
        """Append a batch: the tokens `(tokens,)` of its pieces, and the number of documents that end in it."""
        written, count = np.concatenate(tokens).astype(self._dtype), self.meta["splits"][split]
        with self._paths[split].open("ab") as file:
            file.write(written.tobytes())
        flush(self._paths[split])
        count = {"tokens": count["tokens"] + len(written), "documents": count["documents"] + documents}
        self._save(splits={**self.meta["splits"], split: count}, batches=self.meta["batches"] + 1)

    def finish(self) -> None:
        """Mark the folder as complete."""
        if empty := [split for split, count in self.meta["splits"].items() if not count["tokens"]]:
            raise ValueError(f"there is no text for {empty[0]}.bin")
        self._save(complete=True)

    def _save(self, **news: Any) -> None:
        self.meta = {**self.meta, **news}
        part = self._folder / "meta.json.part"
        part.write_text(json.dumps(self.meta, indent=1), encoding="utf-8")
        flush(part)
        os.replace(part, self._folder / "meta.json")
        flush(self._folder)

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads((self._folder / "meta.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}


def _difference(before: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """Return a description of the settings that differ; empty if none do."""
    if before is None:
        return "of another origin"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    changes = (f"{name}: {before.get(name)}, now {now.get(name)}" for name in names)
    return f"made with other settings ({'; '.join(changes)})" if names else ""
