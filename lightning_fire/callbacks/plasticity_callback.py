"""Any method as a Lightning callback."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire._lightning import pruned_in, undeclared
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.initial_values import KeptInitialValues
from lightning_fire.callbacks.base.log import log_now, loss_scale
from lightning_fire.callbacks.base.log_options import Log
from lightning_fire.callbacks.base.method import optimizers_of
from lightning_fire.callbacks.probing.batches import BatchInHand, why_not_run
from lightning_fire.messages import inform
from lightning_fire.methods import Change, EventMethod, Method, StepMethod
from lightning_fire.methods.base.averages import averages_in, networks_of
from lightning_fire.methods.base.method import planned, rewritten, schedule_of
from lightning_fire.when import Clock, Horizon, Never, Schedule, idle_epochs
from lightning_fire.where import Weights
from lightning_fire.where.selection import some


class PlasticityCallback(EventCallback):
    """Applies a method to the module that a Trainer trains: at events, or at every step.

    A method with events, such as `FIRE`, acts before a batch if the schedule is due; with new data, before its first
    batch. It logs `{name}/event`. For a change of weights it also logs the normalized deviation from isometry before
    and after (`{name}/dfi_normalized_before`, `…_after`; the paper's scale-dependent one as `{name}.raw/dfi_before`,
    `…_after`), the squared Frobenius error (`{name}/sfe`, `{name}/sfe_normalized`), `{name}/seconds`, and the same per
    layer under `{name}.layers/`. It logs further metrics of the method, and the largest eigenvalue of the Hessian of
    the loss on the first 8 samples of this batch before and after, `{name}/lambda_max_before` and
    `{name}/lambda_max_after`.

    A method that acts at every step, such as `L2Init`, logs its metrics, such as `{name}/penalty`, at the end of each
    epoch in which it acts.

    Args:
        method: The method, such as `FIRE()`.
        when: Schedule of the events, or several of which any may be due. Default: that of the method, for most
            `AtNewData()`, the start of every chunk except the first.
        start_chunk: Number of changes of the data before which it does nothing, at least 0 (paper, warm start: 1 for
            the methods that act at every step).
        log: What to log. Default: `Log()`.

    Raises:
        TypeError: If `method` is not a method, or `when` not a schedule.
        ValueError: If an argument is out of range, or a schedule is given for a method that acts at every step; before
            training, if nothing is selected; at an event, if a weight has a NaN or Inf; the module is unchanged then.
        MisconfigurationException: Before training, if the schedule can never be due, the strategy splits weights, the
            method needs initial values that are not known, or the method needs batches and the module cannot be run on
            them, as in manual optimization without `loss_on`.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_fire import DASH, AtFraction
        >>> callback = PlasticityCallback(DASH(alpha=0.1), when=AtFraction(0.5))
        >>> trainer = Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        method: Method,
        when: Schedule | Sequence[Schedule] | None = None,
        start_chunk: int = 0,
        log: Log | None = None,
    ):
        schedule, self.method = schedule_of(method, when), method
        if isinstance(method, EventMethod):
            self.replaces_weights, self.remakes_network = method.changes_output, method.remakes_network
            self.logs_curvature = method.measures_curvature
            self.changes_weights = method.changes_weights
        super().__init__(schedule, log, start_chunk)
        self.acts_on_shards, self.keeps_state = method.acts_on_shards, not isinstance(method, EventMethod)
        self.name = self.logs.name or method.name
        self.initial = KeptInitialValues() if method.needs_initial_values else None
        self._active = False  # batches since the last step

    @property
    def title(self) -> str:
        """Name of the method in messages."""
        return type(self.method).__name__

    def describe(self) -> str:
        when = f"start_chunk={self.start_chunk}" if isinstance(self.when, Never) else repr(self.when)
        name = "" if self.name == self.method.name else f", {self.name}"
        return f"{when}, {self.method.identity}{name}"

    def show_selection(self, pl_module: LightningModule) -> str:
        return self.method.table(pl_module)

    def check(self, pl_module: LightningModule) -> Sequence[str]:
        return self.method.check(pl_module)

    def idle_epochs(self, horizon: Horizon) -> float:
        if self.start_chunk >= 1:
            return math.inf
        return idle_epochs(self.when, horizon) if self.remakes_network and isinstance(self.method, EventMethod) else 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if isinstance(self.method, EventMethod):  # before the optimizers are made and a checkpoint is loaded
            for network in (pl_module, *networks_of(averages_in(undeclared(trainer).callbacks))):
                self.method.prepare(network)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        pruned, at_once = pruned_in(trainer)
        if not pruned or self._idle:
            return
        with self.selecting(trainer, pl_module):
            pruned &= rewritten(self.method, pl_module)
        if names := [name for name, parameter in pl_module.named_parameters() if parameter in pruned]:
            message = (
                f"{self.title} cannot act on weights that ModelPruning has pruned, which are computed from masks:"
                f" {some(names, most=3)}. Leave them out of one of the two, by `where` or `parameters_to_prune`, or"
                " prune after the last event, by ModelPruning(apply_pruning=lambda epoch: …)."
            )
            if at_once:
                raise MisconfigurationException(message)
            inform(message)

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        assert isinstance(self.method, EventMethod)  # others have no events
        return planned(self.method, pl_module, _FitTraining(self.given, self))

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.method.needs_batches and not self._idle and (reason := why_not_run(trainer, pl_module)):
            raise MisconfigurationException(f"{self.title} cannot run the module: {reason}.")
        training = _FitTraining(self.given, self)
        with self.selecting(trainer, pl_module):
            if isinstance(self.method, StepMethod):
                self._let_go()
                self._method = self.method.attach(pl_module, training)
                self._method.watching = False
                if self._state:
                    self._method.load_state_dict(self._state)
                selected = self._method.selected()
            else:
                assert isinstance(self.method, EventMethod)  # methods that act at every step
                selected = self.method.selected(pl_module, training)
        if selected:
            when = "" if isinstance(self.when, Never) else f", {self.when!r}"
            why = f"; {self._explanation}" if self._explanation else ""
            says = f"has selected {selected}" if self._idle else f"will act on {selected}{when}{why}"
            shown = f" print({self.method.selection}.select(model)) shows the selection."
            inform(f"{self.title} {says}.{shown if isinstance(self.method.selection, Weights) else ''}")

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if clock.trained_chunk < self.start_chunk and not isinstance(self.when, Never):
            self._now.last_event = clock.step  # not at the first batch on new data: no step precedes it
            return
        super().at(trainer, pl_module, clock)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._method is not None:
            self._method.watching = self.acts_now
            self._active |= self.acts_now

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        super().on_before_optimizer_step(trainer, pl_module, optimizer)
        if self._method is not None and self.acts_now:
            self._method.before_step(optimizer, loss_scale(trainer, optimizer))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self._method is not None:
            self._method.watching = False
        super().on_train_batch_end(trainer, pl_module, *args)

    def after_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._active:  # equal on all ranks, also if the watched layers have not run
            self._active = False
            self._method.after_step()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._method is not None and self.acts_now and (values := self._method.metrics()):
            log_now(trainer, {f"{self.name}/{key}": value for key, value in values.items()}, at_epoch_end=True)

    def _let_go(self) -> None:
        if self._method is not None:
            self._method.close()
        super()._let_go()
        self._active = False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "method": self._state_of_method()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._state = state_dict["method"]


class _FitTraining:
    """The `methods.Training` of a fit: its optimizers, the current batch, and the next ones.

    Its ranks are those of the Trainer, which may be a single process in a group of independent trainings.
    """

    def __init__(self, given: BatchInHand, callback: EventCallback):
        self._trainer, self._module, self._initial = given.trainer, given.module, callback.initial
        self.paused = callback.paused_parameters(given.module)
        self.event, self.measure = callback.num_events + 1, callback.logs.weights
        self.ranks = given.trainer.world_size
        self.share_work = self.ranks > 1
        self.forward, self.gradients = given.forward, given.gradients

    @property
    def optimizers(self) -> Sequence[Any]:
        """Optimizers of the Trainer and of the module, also after a replacement."""
        return optimizers_of(self._trainer, self._module)

    @property
    def averages(self) -> Sequence[Any]:
        """Averages currently held by other callbacks: some are created during training."""
        return averages_in(undeclared(self._trainer).callbacks)

    def initial(self) -> Mapping[str, Tensor]:
        """Return the values of the module at the start of its first fit."""
        assert self._initial is not None and self._initial.values is not None  # complete since the start of the fit
        return self._initial.values
