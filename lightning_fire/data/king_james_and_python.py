"""Two small, very different texts for language models on a CPU."""

import hashlib
import sysconfig
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from lightning_fire.data.mixture import BlockOrder, Mixture
from lightning_fire.data.text import MixedBatches, TextDataModule
from lightning_fire.data.token_source import Tokens, TokenSource

_EXCLUDED = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


class KingJamesAndPythonDataModule(TextDataModule):
    """The King James Bible (`kjv`) and the source of Python's standard library (`python`), as bytes.

    The first `kjv_bytes` of the Bible are for training, few enough for a small network to memorize; a tenth as many
    following bytes are for validation. The library is split in the same way, its files ordered by digests of their
    names. The library, and so the losses, differ between versions of Python.

    If phases name `kjv_1`, `kjv_2`, …, the bytes for training are split into equal parts, in order of the names, with
    the same validation data.

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
        phases = phases or [{"kjv": 1.0}, {"python": 9.0, "kjv": 0.1}]
        folders = {"kjv": root, "python": sysconfig.get_path("stdlib")}
        named = dict.fromkeys(name for phase in phases for name in phase)
        parts = {name: folders[_text_of(name)] for name in named if _text_of(name) in folders}
        super().__init__(folders | parts, phases, val_blocks=val_blocks, **options)
        self.kjv_bytes, self.python_bytes = kjv_bytes, python_bytes

    def load(self) -> dict[str, TokenSource]:
        """Return the texts that the phases name."""
        found: dict[str, TokenSource] = {}
        for text, make in (("kjv", self._king_james), ("python", self._python)):
            if names := [name for name in self.protocol.names if _text_of(name) == text]:
                train, val = make()
                size = len(train) // len(names)
                for number, name in enumerate(names):
                    part = Tokens(train[number * size : (number + 1) * size], "uint8")
                    found[name] = TokenSource(part, Tokens(val, "uint8"), vocab_size=256, tokenizer="bytes")
        return found

    def probe_dataloader(self) -> DataLoader[Any]:
        """Return a held-out task for `PlasticityProbe`: validation data of the Bible with permuted byte values.

        Its order and the permutation of the 256 byte values do not depend on `seed`.
        """
        _, text = self._king_james()
        tokens = np.random.default_rng(0).permutation(256).astype(np.uint8)[text]
        mixture = Mixture([1.0], [len(tokens)], self.block_size, self.batch_size, seed=[0])
        batches = BlockOrder(len(tokens), self.block_size, [0]).blocks // self.batch_size
        return DataLoader(MixedBatches([Tokens(tokens)], mixture, self.block_size, batches), batch_size=None)

    def _king_james(self) -> tuple[np.ndarray, np.ndarray]:
        file = self.folders["kjv"] / "text" / "kjv.txt"
        if not file.is_file():
            raise FileNotFoundError(f"{file} does not exist: put the King James text there, or any other plain text")
        return _split(file.read_bytes(), self.kjv_bytes, f"`kjv_bytes`: {file}")

    def _python(self) -> tuple[np.ndarray, np.ndarray]:
        folder = self.folders["python"]
        files = (f.relative_to(folder) for f in folder.rglob("*.py") if not _EXCLUDED & {*f.relative_to(folder).parts})
        text = b""
        for file in sorted(files, key=lambda file: hashlib.md5(file.as_posix().encode()).digest()):
            text += (folder / file).read_bytes()
            if len(text) >= self.python_bytes * 11 // 10:
                break
        return _split(text, self.python_bytes, f"`python_bytes`: the library in {folder}")


def _text_of(name: str) -> str:
    """Return the text that a phase names, whole or in parts: `kjv` of `kjv_2`."""
    return name.partition("_")[0]


def _split(text: bytes, train_bytes: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first bytes, for training, and a tenth as many following bytes for validation; both uint8."""
    needed = train_bytes * 11 // 10
    if len(text) < needed:
        raise ValueError(f"{what} has {len(text)} bytes, but {needed} are needed")
    tokens = np.frombuffer(text, dtype=np.uint8)
    return tokens[:train_bytes], tokens[train_bytes:needed]
