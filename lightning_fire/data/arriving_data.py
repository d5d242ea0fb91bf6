"""Base class of DataModules whose data arrives in chunks within one `trainer.fit`."""

from abc import ABC, abstractmethod
from math import ceil
from typing import Any, Generic, TypeVar

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lightning_fire._lightning import begin_next_epoch, undeclared
from lightning_fire.data.protocols import EpochPlan
from lightning_fire.data.resumable_loader import ResumableLoader, goes_to_gpu, ranks_of

Plan = TypeVar("Plan", bound=EpochPlan)


class ArrivingData(LightningDataModule, ABC, Generic[Plan]):
    """Base class of data that arrives by a plan; a change of `chunk` announces new data."""

    def __init__(self, protocol: Plan):
        super().__init__()
        self.protocol = protocol
        self._last_chunk: int | None = None  # the last chunk whose training data was loaded
        self._tested_chunk: int | None = None
        self._train_loader: tuple[int, ResumableLoader] | None = None  # of the current part only: it owns the workers
        self._test_loader: tuple[int, ResumableLoader] | None = None
        self._position: dict[str, int] | None = None  # position of a checkpoint in its training data

    @property
    def trainer(self) -> Trainer | None:
        """The Trainer that uses this data."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        if trainer is not None and type(trainer).__module__.startswith("pytorch_lightning"):
            raise TypeError(
                f"{type(self).__name__} needs the Trainer of lightning.pytorch, got that of pytorch_lightning: write"
                " `from lightning.pytorch import Trainer`, also for your LightningModule"
            )
        self._trainer = trainer

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return self.protocol.num_chunks

    @property
    def epochs_per_chunk(self) -> tuple[int, ...]:
        """Epochs of each chunk."""
        return self.protocol.epochs_per_chunk

    @property
    def total_epochs(self) -> int:
        """Epochs of all chunks, the required `max_epochs` of the Trainer."""
        return sum(self.epochs_per_chunk)

    def chunk_at(self, epoch: int) -> int:
        """Return the chunk that an epoch trains on; both are counted from 0."""
        return self.protocol.chunk_at(epoch)

    def first_epoch(self, chunk: int) -> int:
        """Return the first epoch that trains on a chunk; both are counted from 0."""
        return self.protocol.first_epoch(chunk)

    @property
    def chunk(self) -> int:
        """The current chunk, from 0; in `test` and `validate` that of the checkpoint, otherwise the last trained on."""
        if self._tested_chunk is not None:
            return self._tested_chunk
        return self.chunk_at(self._epoch)

    def steps_per_chunk(self) -> list[int]:
        """Return the optimizer steps of each chunk, over all its epochs, as counted by the attached Trainer."""
        trainer = undeclared(self.trainer)
        limit, window = (1.0, 1) if trainer is None else (trainer.limit_train_batches, trainer.accumulate_grad_batches)
        steps = []
        for chunk, epochs in enumerate(self.epochs_per_chunk):
            with ranks_of(self.trainer):
                batches = self._batches_in(chunk)
            batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
            steps.append(epochs * ceil(batches / window))  # the end of an epoch closes a window early
        return steps

    def setup(self, stage: str | None = None) -> None:
        """Check that the Trainer will train on the chunks as planned, and load the data."""
        self._tested_chunk = None if stage == "fit" else self._last_chunk
        trainer = undeclared(self.trainer)
        if stage == "fit" and trainer is not None and not trainer.fast_dev_run:
            self._check(trainer)
        self._load_once()
        self._train_loader = self._test_loader = self._position = None

    def _check(self, trainer: Any) -> None:
        reload_every = trainer.reload_dataloaders_every_n_epochs
        if self.num_chunks > 1 and reload_every != 1:
            raise MisconfigurationException(
                f"With {self.num_chunks} chunks the Trainer must ask for the training data in every epoch: set"
                f" Trainer(reload_dataloaders_every_n_epochs=1), got reload_dataloaders_every_n_epochs={reload_every}."
            )
        if trainer.max_epochs != self.total_epochs:
            raise MisconfigurationException(
                f"{self.protocol} takes {self.total_epochs} epochs in all, but the Trainer has"
                f" max_epochs={trainer.max_epochs}: set Trainer(max_epochs={self.total_epochs}), or other `epochs`"
                " of the plan."
            )
        if trainer.overfit_batches:
            raise MisconfigurationException(
                "`overfit_batches` would replace the order in which the chunks' samples are drawn: use"
                f" `limit_train_batches` instead, got overfit_batches={trainer.overfit_batches}."
            )

    def train_dataloader(self) -> ResumableLoader:
        """Return the batches of the current epoch: a pure function of `trainer.current_epoch`."""
        self._load_once()
        chunk, part = self.chunk, self._part
        self._last_chunk = chunk
        if self._train_loader is None or self._train_loader[0] != part:
            with ranks_of(self.trainer):
                self._train_loader = part, self._make_train_loader(chunk)
            self._train_loader[1].pin_memory = goes_to_gpu(self.trainer)
            if self._position is not None:  # Lightning restores it too late, if configure_optimizers asks for the data
                self._train_loader[1].load_state_dict(self._position)
        loader = self._train_loader[1]
        if self.trainer is not None:
            loader.sampler.set_epoch(self._epoch)
            begin_next_epoch(self.trainer)
        return loader

    def test_dataloader(self) -> ResumableLoader:
        """Return the test data of the current chunk; with several ranks, some samples may count twice."""
        self._load_once()
        chunk = self.chunk if self._test_changes else 0
        if self._test_loader is None or self._test_loader[0] != chunk:
            with ranks_of(self.trainer):
                self._test_loader = chunk, self._make_test_loader(chunk)
            self._test_loader[1].pin_memory = goes_to_gpu(self.trainer)
        return self._test_loader[1]

    def val_dataloader(self) -> ResumableLoader:
        """Return the test data: the paper has no model selection."""
        return self.test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """State: the current chunk, for tests of a checkpoint, and the position in its training data."""
        position, trainer = self._train_loader and self._train_loader[1].state_dict(), self.trainer
        if position and trainer is not None and position["epoch"] == trainer.current_epoch:
            # A batch was handed out but not trained on if an event before it, or its training step, has failed.
            position["batches"] = undeclared(trainer.fit_loop.epoch_loop.batch_progress.current).processed
        return {"chunk": self.chunk, "position": position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the chunk of a checkpoint to test or validate, or the position of one to train."""
        if self.trainer is not None and self.trainer.state.fn != TrainerFn.FITTING:
            self._tested_chunk = state_dict["chunk"]
        else:
            self._position = state_dict["position"]

    @property
    def _epoch(self) -> int:
        return 0 if self.trainer is None else self.trainer.current_epoch

    @property
    def _part(self) -> int:
        """A number that changes with the training data."""
        return self.chunk

    @property
    def _test_changes(self) -> bool:
        """True if each chunk has test data of its own."""
        return True

    @abstractmethod
    def _load_once(self) -> None:
        """Load and check the data once."""

    @abstractmethod
    def _batches_in(self, chunk: int) -> int:
        """Return the batches of each rank in an epoch of a chunk."""

    @abstractmethod
    def _make_train_loader(self, chunk: int) -> ResumableLoader: ...

    @abstractmethod
    def _make_test_loader(self, chunk: int) -> ResumableLoader: ...
