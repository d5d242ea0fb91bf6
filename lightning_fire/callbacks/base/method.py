"""Base class of all callbacks: tracks the progress of training and checks the strategy."""

import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lightning_fire._lightning import ends_search, is_stepping, undeclared
from lightning_fire.callbacks.base.initial_values import KeptInitialValues
from lightning_fire.callbacks.base.progress import Progress
from lightning_fire.callbacks.probing.batches import BatchInHand
from lightning_fire.functional.checks import at_least
from lightning_fire.messages import inform, rank_zero_warn
from lightning_fire.methods.base.optimizers import held_by, listed, stepped_by, with_inner
from lightning_fire.methods.base.selecting import trained_by
from lightning_fire.methods.base.wrong_library import CallbackOfOneLibrary
from lightning_fire.when import Clock, Horizon
from lightning_fire.where.layers import plain

_HIDING = {
    "FSDPStrategy",
    "DeepSpeedStrategy",
    "XLAFSDPStrategy",
}  # flatten weights or keep copies


def optimizers_of(trainer: Trainer, pl_module: LightningModule) -> list[Any]:
    """Return the optimizers of the Trainer and those that a module with manual optimization holds in attributes."""
    known = listed(trainer.optimizers)
    states = {id(optimizer.state) for optimizer in with_inner(known)}  # Lightning's wrappers share it
    own = () if pl_module.automatic_optimization else held_by(pl_module)
    return [*known, *(optimizer for optimizer in own if id(optimizer.state) not in states)]


class MethodCallback(CallbackOfOneLibrary, Callback):
    """Base class of all callbacks: tracks progress over fits and resumes, and rejects unsupported strategies.

    Attributes:
        acts_on_shards: Whether it can act where the weights are sharded (DTensor).
        name: Prefix of the logged keys.
        progress: Counter of steps and changes of the data.
        chunk: Number of changes of the data so far.
        initial: Initial values of the module, for a method that needs them.
        keeps_state: Whether the attached method (of `lightning_fire.methods`) has a state for later fits.
    """

    acts_on_shards = False
    keeps_state = False
    name = "method"

    def __init__(self, start_chunk: int = 0) -> None:
        at_least(0, start_chunk=start_chunk)
        self.start_chunk = start_chunk
        self.progress = self._now = Progress()  # `_now` is the current reading; it replaces this one after the event
        self.chunk = 0
        self.initial: KeptInitialValues | None = None
        self._paused: Collection[str] = ()  # names of trained parameters that are frozen between batches
        self._module: Any = None  # weak reference to the module of the last fit
        self._method: Any = None  # attached method of `lightning_fire.methods`, during a fit
        self._state: Mapping[str, Any] = {}  # state of `_method`, before and after a fit
        self._given: BatchInHand | None = None  # the batch at hand, in `begin` and `at`
        self._begun = False  # since the first batch of the current fit
        self._own_steps: Any = None  # handle of the hook on optimizer steps that Lightning does not count
        self._has_own_step = False  # in this batch
        self._is_over = False  # in an epoch without training, as StochasticWeightAveraging adds one

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hook: called before the first batch of a fit; `given` is that batch."""

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        """Hook: called before a batch; `given` is that batch."""

    def after_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hook: called after a batch that made an optimizer step."""

    @property
    def title(self) -> str:
        """Name in messages and in the key of its state in checkpoints."""
        return type(self).__name__

    @property
    def acts_now(self) -> bool:
        """True once the data has changed `start_chunk` times, until training ends."""
        return self.chunk >= self.start_chunk and not self._is_over

    def show_selection(self, pl_module: LightningModule) -> str:
        """Return a table of what this callback acts on; empty if it has no selection."""
        return ""

    def check(self, pl_module: LightningModule) -> Sequence[str]:
        """Check before training that it can act on a module; return sentences on weights that it leaves out."""
        return ()

    def paused_parameters(self, pl_module: LightningModule) -> Sequence[Tensor]:
        """Return the trained parameters that are frozen between batches."""
        return [p for name, p in pl_module.named_parameters() if plain(name) in self._paused]

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
        for other in undeclared(trainer).callbacks:
            if isinstance(other, MethodCallback) and other is not self and other.name == self.name:
                raise MisconfigurationException(
                    f"Two callbacks log as {self.name!r}: give one another name, by its attribute `name`, or by its"
                    f' argument log=Log(name="{self.name}_2") where it has one.'
                )
        self._begun = False
        self.progress.prepare()
        if self.initial is not None:
            self.initial.take_before_checkpoint(pl_module)

    def _check_strategy(self, kinds: set[str]) -> None:
        """Raise an error for strategies under which this callback cannot act, by the names of their classes."""
        name = self.title
        if hiding := kinds & _HIDING:
            raise MisconfigurationException(
                f"{name} cannot act under {hiding.pop()}, which keeps the weights in pieces or copies of its own. Use"
                " strategy='ddp', a single device, or, where the callback allows it, ModelParallelStrategy (FSDP2)."
            )
        if "ModelParallelStrategy" in kinds and not self.acts_on_shards:
            raise MisconfigurationException(
                f"{name} needs whole weights, which ModelParallelStrategy shards. Use strategy='ddp' or one device;"
                " FIRECallback, and FullReset and ShrinkAndPerturb with initial values, act on sharded weights too."
            )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if ends_search(trainer):
            checkpoint["callbacks"].pop(self.state_key, None)  # it has this state, and a resume would forget the data
            return
        self.progress.resumed = True
        self.progress.return_to_epoch_end(checkpoint)
        if self.state_key not in checkpoint["callbacks"]:
            self.progress.take_data_of(checkpoint["callbacks"])

    def selecting(self, trainer: Trainer, pl_module: LightningModule) -> AbstractContextManager[Any]:
        """Context manager: selections take only what the optimizers train, see `optimizers_of`.

        A method that replaces no weights, such as an optimizer reset, can also act with optimizers that keep copies of
        weights.
        """
        if not getattr(self, "replaces_weights", True):
            return nullcontext()
        return trained_by(pl_module, optimizers_of(trainer, pl_module), self.paused_parameters(pl_module))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self.selecting(trainer, pl_module):
            for sentence in self.check(pl_module):
                inform(f"{self.title} {sentence}.")
        if self.initial is not None and not trainer.strategy.restore_checkpoint_after_setup:
            self.initial.complete(trainer, pl_module, self.progress.resumed)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.progress.start(trainer)
        if self.initial is not None and trainer.strategy.restore_checkpoint_after_setup:
            self.initial.complete(trainer, pl_module, self.progress.resumed)  # on_fit_start came before the checkpoint

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._given = BatchInHand(trainer, pl_module, batch)
        try:
            if not self._begun:
                self.begin(trainer, pl_module)
                self._begun = True
            self._read_clock(trainer, pl_module)
        finally:
            self._given = None
        if not pl_module.automatic_optimization:
            hook = partial(self._before_own_step, trainer, pl_module)
            self._own_steps = register_optimizer_step_pre_hook(hook)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_own_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer, *call: Any) -> Any:
        """Act as before a counted step: `training_step` may step an optimizer without Lightning.

        Args:
            trainer: The Trainer.
            pl_module: The module.
            optimizer: The optimizer that is about to step.
            call: Positional and keyword arguments of `step`; a closure among them computes the gradients first.

        Returns:
            The arguments to use instead, if there is a closure.
        """
        if is_stepping(trainer) or stepped_by(optimizer).isdisjoint(pl_module.parameters()):
            return None
        self._has_own_step = True
        arguments, options = call
        closure = options.get("closure", *arguments[1:2])
        if closure is None:
            return self.on_before_optimizer_step(trainer, pl_module, optimizer)

        def closure_and_hook() -> Any:
            loss = closure()
            self.on_before_optimizer_step(trainer, pl_module, optimizer)
            return loss

        return arguments[:1], {**options, "closure": closure_and_hook}

    def _end_own_steps(self) -> bool:
        """Remove the hook; return whether it has seen a step since the last call."""
        if self._own_steps is not None:
            self._own_steps.remove()
        has_stepped, self._own_steps, self._has_own_step = self._has_own_step, None, False
        return has_stepped

    @property
    def given(self) -> BatchInHand:
        """The batch at hand, in `begin` and `at`."""
        assert self._given is not None
        return self._given

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self.progress.tick(trainer, self._end_own_steps()):
            self.after_step(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._let_go()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Keep the state for a later fit of the same training, and drop references to the module."""
        self._end_own_steps()
        self._state, self._method = self._state_of_method(), None

    def _state_of_method(self) -> Mapping[str, Any]:
        return self._method.state_dict() if self.keeps_state and self._method is not None else self._state

    def _read_clock(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._now = self.progress.copied()
        clock = self._now.read(trainer)
        self.chunk, self._is_over = clock.chunk, clock.progress is not None and clock.progress >= 1
        self.at(trainer, pl_module, clock)
        self.progress = self._now

    @cached_property  # Lightning reads it at each hook
    def state_key(self) -> str:
        """Key in the checkpoint, unique among several callbacks of one class."""
        return f"{self.title}({self.describe()})"

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the module, and the method that refers to it, from copies and pickles."""
        gone = dict.fromkeys(("_module", "_method", "_given", "_own_steps"))
        return {**vars(self), **gone, "_state": self._state_of_method()}

    def state_dict(self) -> dict[str, Any]:
        """State of plain values and tensors only, so that a checkpoint loads with `weights_only=True`."""
        initial = {} if self.initial is None else {"initial": self.initial.values}
        return {"time": self.progress.state_dict(), **initial}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.progress.load_state_dict(state_dict["time"])
        if self.initial is not None:
            self.initial.load(state_dict.get("initial"))
