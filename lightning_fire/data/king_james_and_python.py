"""Two small and very different texts, for language models on two CPU cores."""

import hashlib
import sysconfig
from typing import Any

import numpy as np

from lightning_fire.data.text import TextDataModule
from lightning_fire.data.token_source import Tokens, TokenSource

_EXCLUDED = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


class KingJamesAndPythonDataModule(TextDataModule):
    """The King James Bible (`kjv`) and the source of Python's standard library (`python`), as bytes.

    The first `kjv_bytes` of the Bible are for training, few enough for a small network to memorize; the next bytes, a
    tenth as many, are for validation. The same holds for the library, whose files are ordered by digests of their
    names. The library, and with it the losses, differ between versions of Python.

    Args:
        root: Folder with `text/kjv.txt`, any text of enough bytes.
        phases: As for `TextDataModule`. Default: the Bible, then nine parts of Python with a tenth of the Bible.
        val_blocks: Blocks of each text to validate on.
        kjv_bytes: Bytes of the Bible to train on.
        python_bytes: Bytes of the library to train on.
        **options: `epochs`, `steps_per_epoch`, `batch_size`, `block_size` and `seed` of `TextDataModule`.

    Raises:
        ValueError: If an argument is out of range; when training starts, if a text is too short.
        FileNotFoundError: When training starts, if `root` has no such file.
    """

    def __init__(
        self,
        root: str = "data",
        phases: list[dict[str, float]] | None = None,
        val_blocks: int | None = 128,
        kjv_bytes: int = 400_000,
        python_bytes: int = 4_000_000,
        **options: Any,
    ):
        sources = {"kjv": root, "python": sysconfig.get_path("stdlib")}
        phases = phases or [{"kjv": 1.0}, {"python": 9.0, "kjv": 0.1}]
        super().__init__(sources, phases, val_blocks=val_blocks, **options)
        self.kjv_bytes, self.python_bytes = kjv_bytes, python_bytes

    def load(self) -> dict[str, TokenSource]:
        """Return the texts that the phases name."""
        makers = {"kjv": self._king_james, "python": self._python}
        return {name: makers[name]() for name in self.protocol.names}

    def _king_james(self) -> TokenSource:
        file = self.folders["kjv"] / "text" / "kjv.txt"
        if not file.is_file():
            raise FileNotFoundError(f"{file} does not exist: put the King James text there, or any other plain text")
        return _split(file.read_bytes(), self.kjv_bytes, f"`kjv_bytes`: {file}")

    def _python(self) -> TokenSource:
        folder = self.folders["python"]
        files = (f.relative_to(folder) for f in folder.rglob("*.py") if not _EXCLUDED & {*f.relative_to(folder).parts})
        text = b""
        for file in sorted(files, key=lambda file: hashlib.md5(file.as_posix().encode()).digest()):
            text += (folder / file).read_bytes()
            if len(text) >= self.python_bytes * 11 // 10:
                break
        return _split(text, self.python_bytes, f"`python_bytes`: the library in {folder}")


def _split(text: bytes, train_bytes: int, what: str) -> TokenSource:
    """Take the first bytes for training, and a tenth as many after them for validation."""
    needed = train_bytes * 11 // 10
    if len(text) < needed:
        raise ValueError(f"{what} has {len(text)} bytes, but {needed} are needed")
    tokens = np.frombuffer(text, dtype=np.uint8)
    train, val = Tokens(tokens[:train_bytes], "uint8"), Tokens(tokens[train_bytes:needed], "uint8")
    return TokenSource(train, val, vocab_size=256, tokenizer="bytes")
