"""Base class of all callbacks: reads the clock before each batch, and keeps what a resumed fit needs."""

import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_fire._lightning import ends_search, undeclared
from lightning_fire.callbacks.clock import TrainerClock
from lightning_fire.callbacks.initial_values import KeptInitialValues
from lightning_fire.callbacks.probing.batches import BatchInHand
from lightning_fire.functional.checks import at_least
from lightning_fire.messages import rank_zero_warn
from lightning_fire.when import Clock, Horizon

_HIDING = {"FSDPStrategy", "DeepSpeedStrategy", "XLAFSDPStrategy"}  # flatten weights or keep copies


class ClockCallback(Callback):
    """Base class of all callbacks: tracks progress over fits and resumes, and rejects unsupported strategies.

    Attributes:
        acts_on_shards: Whether it can act where the weights are sharded (DTensor).
        acts_first: Whether it acts before others of these callbacks, wherever it is in the list of the Trainer.
        name: Prefix of the logged keys.
        clock: Counter of steps and changes of the data.
        chunk: Number of changes of the data so far.
        initial: Initial values of the module, for a method that needs them.
        keeps_state: Whether the attached method (of `lightning_fire.methods`) has a state for later fits.
    """

    acts_on_shards = False
    acts_first = False
    keeps_state = False
    name = "method"

    def __init__(self, start_chunk: int = 0) -> None:
        at_least(0, start_chunk=start_chunk)
        self.start_chunk = start_chunk
        self.clock = self._now = TrainerClock()  # `_now` is the current reading; it replaces this one after an event
        self.chunk = 0
        self.initial: KeptInitialValues | None = None
        self._module: Any = None  # weak reference to the module of the last fit
        self._method: Any = None  # attached method of `lightning_fire.methods`, during a fit
        self._state: Mapping[str, Any] = {}  # state of `_method`, before and after a fit
        self._given: BatchInHand | None = None  # the batch at hand, in `begin` and `at`
        self._begun = False  # since the first batch of the current fit
        self._is_over = False  # in an epoch without training, as StochasticWeightAveraging adds one
        self._first: list[ClockCallback] = []  # callbacks of the Trainer that act before this one

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hook: called before the first batch of a fit, and after held weights have left the module."""

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        """Hook: called before a batch; `given` is that batch."""

    def after_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hook: called after a batch that made an optimizer step."""

    def held(self) -> Sequence[Tensor]:
        """Return tensors of the module that this holds; `begin` is called again when one has left the module."""
        return self._method.held() if self._method is not None else ()

    @property
    def title(self) -> str:
        """Name in messages and in the key of its state in checkpoints."""
        return type(self).__name__

    @property
    def acts_now(self) -> bool:
        """True once the data has changed `start_chunk` times, until training ends."""
        return self.chunk >= self.start_chunk and not self._is_over

    @property
    def given(self) -> BatchInHand:
        """The batch at hand, in `begin` and `at`."""
        assert self._given is not None
        return self._given

    def show_selection(self, pl_module: LightningModule) -> str:
        """Return a table of what this callback acts on; empty if it has no selection."""
        return ""

    def idle_epochs(self, horizon: Horizon) -> float:
        """Return the number of epochs of the first data in which it certainly does nothing; Inf: all of them."""
        return 0

    def describe(self) -> str:
        """Key that identifies this callback among others of its class; equal in all processes."""
        settings = (getattr(self, name, None) for name in ("when", "where"))
        return ", ".join(repr(setting) for setting in settings if setting is not None)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self._check_strategy({kind.__name__ for kind in type(trainer.strategy).__mro__})
        if self._module is not None and self._module() is not pl_module:
            rank_zero_warn(
                f"{self.title} was used in a fit of another module, and treats this fit as a continuation of"
                " it. For a new training make a new callback."
            )
        self._module = weakref.ref(pl_module)
        others = [
            each for each in undeclared(trainer).callbacks if isinstance(each, ClockCallback) and each is not self
        ]
        if any(other.name == self.name for other in others):
            raise MisconfigurationException(
                f"Two callbacks log as {self.name!r}: give one another name, by its attribute `name`, or by its"
                f' argument log=Log(name="{self.name}_2") where it has one.'
            )
        self._first = [] if self.acts_first else [other for other in others if other.acts_first]
        self._begun = False
        self.clock.prepare()
        if self.initial is not None:
            self.initial.take_before_checkpoint(pl_module)

    def _check_strategy(self, kinds: set[str]) -> None:
        """Raise an error for strategies under which this callback cannot act, by the names of their classes."""
        if hiding := kinds & _HIDING:
            raise MisconfigurationException(
                f"{self.title} cannot act under {hiding.pop()}, which keeps the weights in pieces or copies of its own."
                " Use strategy='ddp', a single device, or, where the callback allows it, ModelParallelStrategy (FSDP2)."
            )
        if "ModelParallelStrategy" in kinds and not self.acts_on_shards:
            raise MisconfigurationException(
                f"{self.title} needs whole weights, which ModelParallelStrategy shards. Use strategy='ddp', one device,"
                " or what acts on shards: FIRE, OptimizerReset, and FullReset and ShrinkAndPerturb with initial values."
            )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if ends_search(trainer):
            checkpoint["callbacks"].pop(self.state_key, None)  # it has this state, and a resume would forget the data
            return
        self.clock.resumed = True
        self.clock.return_to_epoch_end(checkpoint)
        if self.state_key not in checkpoint["callbacks"]:
            self.clock.take_data_of(checkpoint["callbacks"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.initial is not None and not trainer.strategy.restore_checkpoint_after_setup:
            self.initial.complete(trainer, pl_module, self.clock.resumed)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.start(trainer)
        if self.initial is not None and trainer.strategy.restore_checkpoint_after_setup:
            self.initial.complete(trainer, pl_module, self.clock.resumed)  # on_fit_start came before the checkpoint

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for other in self._first:  # reads its clock once for each batch
            other.on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._given, self._now = BatchInHand(trainer, pl_module, batch), self.clock.copied()
        clock = self._now.read(trainer)
        self.chunk, self._is_over = clock.chunk, clock.progress is not None and clock.progress >= 1
        try:
            if not self._begun or (clock.epoch_start and self._has_lost(pl_module)):
                self.begin(trainer, pl_module)
                self._begun = True
            self.at(trainer, pl_module, clock)
            self.clock = self._now
        finally:
            self._given = None

    def _has_lost(self, pl_module: LightningModule) -> bool:
        """Return whether held weights have left the module, as a head that was replaced."""
        if self.initial is not None:
            self.initial.add_later(pl_module)
        return not set(self.held()) <= {*pl_module.parameters(), *pl_module.buffers()}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self.clock.tick(trainer):
            self.after_step(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._let_go()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Keep the state for a later fit of the same training, and drop references to the module."""
        self._state, self._method = self._state_of_method(), None

    def _state_of_method(self) -> Mapping[str, Any]:
        return self._method.state_dict() if self.keeps_state and self._method is not None else self._state

    @cached_property  # Lightning reads it at each hook
    def state_key(self) -> str:
        """Key in the checkpoint, unique among several callbacks of one class."""
        return f"{self.title}({self.describe()})"

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the module, and the method that refers to it, from copies and pickles."""
        gone: dict[str, Any] = {**dict.fromkeys(("_module", "_method", "_given")), "_first": []}
        return {**vars(self), **gone, "_state": self._state_of_method()}

    def state_dict(self) -> dict[str, Any]:
        """State of plain values and tensors only, so that a checkpoint loads with `weights_only=True`."""
        initial = {} if self.initial is None else {"initial": self.initial.values}
        return {"time": self.clock.state_dict(), **initial}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.clock.load_state_dict(state_dict["time"])
        if self.initial is not None:
            self.initial.load(state_dict.get("initial"))
