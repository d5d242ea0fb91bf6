"""Two small texts that differ much, for language models on two CPU cores."""

import hashlib
import sysconfig

import numpy as np

from lightning_fire.data.text import TextDataModule
from lightning_fire.data.token_source import Tokens, TokenSource

_EXCLUDED = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


class KingJamesAndPythonDataModule(TextDataModule):
    """The King James Bible (`kjv`) and the source of Python's standard library (`python`), as bytes.

    Of the Bible, the first `kjv_bytes` are trained on, few enough for a small network to learn by heart; what follows,
    a tenth as much, is for validation. Likewise of the library, whose files come in an order by the digests of their
    names. It differs between versions of Python, and with it the losses.

    Args:
        root: Folder with `text/kjv.txt`, any text of enough bytes.
        phases: As for `TextDataModule`. Default: the Bible, then nine parts of Python with a tenth of the Bible.
        epochs: Epochs of each phase.
        steps_per_epoch: As for `TextDataModule`, and likewise the following.
        batch_size: Blocks in a micro-batch, per device.
        block_size: Tokens in a block.
        val_blocks: Blocks of each text to validate on.
        seed: Seed of the order of blocks and texts.
        kjv_bytes: Bytes of the Bible to train on.
        python_bytes: Bytes of the library to train on.

    Raises:
        ValueError: If an argument is out of its range; when training starts, if a text is too short.
        FileNotFoundError: When training starts, if `root` has no such file.
    """

    def __init__(
        self,
        root: str = "data",
        phases: list[dict[str, float]] | None = None,
        epochs: int | list[int] = 1,
        steps_per_epoch: int = 100,
        batch_size: int = 16,
        block_size: int = 128,
        val_blocks: int | None = 128,
        seed: int = 0,
        kjv_bytes: int = 400_000,
        python_bytes: int = 4_000_000,
    ):
        super().__init__(
            sources={"kjv": root, "python": sysconfig.get_path("stdlib")},
            phases=phases or [{"kjv": 1.0}, {"python": 9.0, "kjv": 0.1}],
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=batch_size,
            block_size=block_size,
            val_blocks=val_blocks,
            seed=seed,
        )
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
            if len(text) >= _needed(self.python_bytes):
                break
        return _split(text, self.python_bytes, f"`python_bytes`: the library in {folder}")


def _needed(train_bytes: int) -> int:
    return train_bytes + train_bytes // 10


def _split(text: bytes, train_bytes: int, what: str) -> TokenSource:
    """Take the beginning for training, and the tenth part of that which follows for validation."""
    if len(text) < _needed(train_bytes):
        raise ValueError(f"{what} has {len(text)} bytes, but {_needed(train_bytes)} are asked for")
    tokens = np.frombuffer(text, dtype=np.uint8)
    parts = tokens[:train_bytes], tokens[train_bytes : _needed(train_bytes)]
    return TokenSource(*(Tokens(part, "uint8") for part in parts), vocab_size=256, tokenizer="bytes")
