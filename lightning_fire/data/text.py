"""Text for language models that arrives in phases: mixtures of token files, within one `trainer.fit`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fire.data.arriving_data import ArrivingData
from lightning_fire.data.mixture import Mixture
from lightning_fire.data.protocols import EpochPlan
from lightning_fire.data.resumable_loader import EpochBatchSampler, ResumableLoader, world_size
from lightning_fire.data.token_source import Tokens, TokenSource, open_source


@dataclass(frozen=True)
class Phases(EpochPlan):
    """Mixtures of texts, each trained on for a number of epochs.

    Args:
        mixtures: The weight of each text by name, a mapping for each phase.
        epochs: Epochs of each phase: one number for all, or one per phase.

    Raises:
        ValueError: If a mixture is empty or has a weight that is not positive, or `epochs` does not fit.
    """

    mixtures: Sequence[Mapping[str, float]]
    epochs: int | tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.mixtures, Mapping) or not self.mixtures:
            raise ValueError(f"`phases` must be a list of one or more mixtures, got {self.mixtures!r}")
        for mixture in self.mixtures:
            if not isinstance(mixture, Mapping) or not mixture:
                raise ValueError(f"a phase must give one or more texts a weight, as in {{wiki: 1.0}}, got {mixture!r}")
            if bad := {name: weight for name, weight in mixture.items() if not (weight > 0 and isfinite(weight))}:
                raise ValueError(f"weights of texts in a phase must be positive, got {bad}")
        super().__post_init__()

    @property
    def num_chunks(self) -> int:  # type: ignore[override]
        """Number of phases."""
        return len(self.mixtures)

    @property
    def names(self) -> list[str]:
        """Names of all texts, in order of first occurrence."""
        return list(dict.fromkeys(name for mixture in self.mixtures for name in mixture))


class TextDataModule(ArrivingData[Phases]):
    """Blocks of text for a language model, in phases; one `trainer.fit` trains on all of them.

    A phase is a mixture: each micro-batch comes from one text, drawn in proportion to the weights. Within a text,
    blocks are drawn without replacement, pass after pass (`lightning_fire.data.mixture`). A batch is a pure function of
    the seed, the phase and its number: a resumed run gets the batches of an uninterrupted one, and ranks get disjoint
    ones.

    Language models have no epochs; here, an *epoch* is `steps_per_epoch` optimizer steps, after which Lightning
    validates and checkpoints. The Trainer must have `max_epochs` equal to `total_epochs`, and
    `reload_dataloaders_every_n_epochs=1`. A callback recognizes new data by a changed `chunk`, the number of the phase.

    A batch is `(tokens, targets)`, both int64 `(batch_size, block_size)`; a validation batch `(tokens, targets, text)`,
    where `text` is the index of its text in `texts`, a scalar. Validation always uses the same blocks, of the texts of
    the current phase.

    For texts in memory, subclass it and override `load`.

    Args:
        sources: Folder of each text, by name, with `train.bin` and `val.bin` as written by `lightning-fire
            prepare-text` or nanoGPT's `prepare.py`.
        phases: The weight of each text by name, a mapping for each phase.
        epochs: Epochs of each phase: one number for all, or one per phase.
        steps_per_epoch: Optimizer steps in an epoch, for any `accumulate_grad_batches`.
        batch_size: Blocks per micro-batch and device.
        block_size: Tokens in a block.
        val_blocks: Blocks of each text to validate on, evenly spaced; None: all. nanoGPT draws 2400.
        vocab_size: Upper bound of the tokens, exclusive. Default: that of `meta.json`.
        dtype: Dtype of token files without `meta.json`: `uint8`, `uint16` or `uint32`.
        seed: Seed of the order of blocks and texts.
        num_workers: Worker processes. 0 is enough unless the disk is slow.

    Raises:
        ValueError: If an argument is out of range; when training starts, if the files are not compatible.
        FileNotFoundError: When training starts, if a file is missing.
    """

    report = "loss"

    def __init__(
        self,
        sources: dict[str, str],
        phases: list[dict[str, float]],
        epochs: int | list[int] = 1,
        steps_per_epoch: int = 2000,
        batch_size: int = 12,
        block_size: int = 1024,
        val_blocks: int | None = 2400,
        vocab_size: int | None = None,
        dtype: str = "uint16",
        seed: int = 0,
        num_workers: int = 0,
    ):
        super().__init__(Phases(phases, epochs if isinstance(epochs, int) else tuple(epochs)))
        if unknown := sorted(set(self.protocol.names) - set(sources)):
            raise ValueError(f"`phases` name {unknown}, but `sources` has {sorted(sources)}")
        sizes = {"steps_per_epoch": steps_per_epoch, "batch_size": batch_size, "block_size": block_size}
        for name, size in {**sizes, "val_blocks": val_blocks, "vocab_size": vocab_size}.items():
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1, got {size}")
        self.folders = {name: Path(folder) for name, folder in sources.items()}
        self.steps_per_epoch, self.batch_size, self.block_size = steps_per_epoch, batch_size, block_size
        self.val_blocks, self.vocab_size, self.dtype = val_blocks, vocab_size, dtype
        self.seed, self.num_workers = seed, num_workers
        self._sources: dict[str, TokenSource] = {}  # empty until they are loaded

    def load(self) -> dict[str, TokenSource]:
        """Return the texts of all phases by name; called once per process, before training or testing."""
        return {name: open_source(self.folders[name], self.dtype) for name in self.protocol.names}

    @property
    def texts(self) -> list[str]:
        """Names of all texts."""
        return self.protocol.names

    @property
    def text_weights(self) -> dict[str, float]:
        """Probability of each text in a micro-batch of the current phase, by name."""
        mixture = self.protocol.mixtures[self.chunk]
        return {name: weight / sum(mixture.values()) for name, weight in mixture.items()}

    def _batches_in(self, chunk: int) -> int:
        return self.steps_per_epoch * (1 if self.trainer is None else self.trainer.accumulate_grad_batches)

    def _make_train_loader(self, chunk: int) -> ResumableLoader:
        weights = self.protocol.mixtures[chunk]
        texts = [self._sources[name].train for name in weights]
        sizes = list(map(len, texts)), self.block_size, self.batch_size
        mixture = Mixture(list(weights.values()), *sizes, seed=[self.seed, chunk])
        dataset = MixedBatches(texts, mixture, self.block_size, self._batches_in(chunk) * world_size())
        sampler = MicroBatchSampler(dataset, self.first_epoch(chunk))
        return ResumableLoader(dataset, 1, by_batch=True, num_workers=self.num_workers, sampler=sampler)

    def _make_test_loader(self, chunk: int) -> ResumableLoader:
        texts = {self.texts.index(name): self._sources[name].val for name in self.protocol.mixtures[chunk]}
        dataset = ValidationBatches(texts, self.block_size, self.batch_size, self.val_blocks)
        return ResumableLoader(dataset, 1, by_batch=True, shuffle=False)

    def _load_once(self) -> None:
        if self._sources:
            return
        sources = self.load()
        if len(tokenizers := {s.tokenizer for s in sources.values() if s.tokenizer is not None}) > 1:
            raise ValueError(f"all texts must be made by one tokenizer, got {sorted(tokenizers)}")
        known = max((s.vocab_size for s in sources.values() if s.vocab_size is not None), default=None)
        if self.vocab_size is None:
            self.vocab_size = known
        elif known is not None and known > self.vocab_size:
            raise ValueError(f"`vocab_size` must be at least that of the texts ({known}), got {self.vocab_size}")
        for name, source in sources.items():
            for split, tokens in (("train", source.train), ("val", source.val)):
                tokens.vocab_size = self.vocab_size
                if len(tokens) <= self.block_size:
                    raise ValueError(
                        f"{split} of {name!r} ({tokens.name}) has {len(tokens)} tokens: too few for a block of"
                        f" `block_size`={self.block_size} and its target"
                    )
        self._sources = sources


class MicroBatchSampler(EpochBatchSampler):
    """Numbers of the micro-batches of one epoch, counted over all ranks from the start of the phase, int64 `(1,)`."""

    def __init__(self, dataset: "MixedBatches", first_epoch: int):
        super().__init__(dataset, 1, shuffle=False)
        self.first_epoch, self.length = first_epoch, len(dataset)

    def order(self) -> Tensor:
        """Return the numbers for this rank, int64 `(batches,)`."""
        return super().order() + (self.epoch - self.first_epoch) * self.length


class MixedBatches(Dataset[tuple[Tensor, Tensor]]):
    """Micro-batches of a phase, read on request; `length` is the number per epoch on all ranks."""

    def __init__(self, texts: Sequence[Tokens], mixture: Mixture, block_size: int, length: int):
        self.texts, self.mixture, self.block_size, self.length = texts, mixture, block_size, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: Tensor) -> tuple[Tensor, Tensor]:
        text, starts = self.mixture.batch(int(number))
        blocks = self.texts[text].blocks(starts, self.block_size + 1)  # (batch, block_size + 1)
        return _pair(blocks)


class ValidationBatches(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Evenly spaced blocks of several texts, at most `val_blocks` of each; each batch comes from one text."""

    def __init__(self, texts: Mapping[int, Tokens], block_size: int, batch_size: int, val_blocks: int | None):
        self.texts, self.block_size = texts, block_size
        ordered: list[tuple[float, int, np.ndarray]] = []
        for number, text in texts.items():
            blocks = (len(text) - 1) // block_size
            taken = np.arange(blocks) if val_blocks is None else np.linspace(0, blocks - 1, min(blocks, val_blocks))
            starts = taken.astype(np.int64) * block_size
            for first in range(0, len(starts), batch_size):
                ordered.append((first / len(starts), number, starts[first : first + batch_size]))
        ordered.sort(key=lambda batch: batch[:2])  # texts alternate
        self.batches = [(text, starts) for _, text, starts in ordered]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        text, starts = self.batches[int(number)]
        blocks = self.texts[text].blocks(starts, self.block_size + 1)  # (batch, block_size + 1)
        return *_pair(blocks), torch.tensor(text)


def _pair(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Split blocks into inputs and next tokens, contiguous so that they can be pinned."""
    return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()
