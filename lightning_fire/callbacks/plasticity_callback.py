"""Any method as a Lightning callback."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire._lightning import optimizers_of, undeclared
from lightning_fire.callbacks.base import ClockCallback
from lightning_fire.callbacks.clock import TrainerClock, data_source_of, horizon_of
from lightning_fire.callbacks.followers import DEFAULT_FOLLOWERS, Follower, sync_targets
from lightning_fire.callbacks.initial_values import KeptInitialValues
from lightning_fire.callbacks.log import Log, log_now, log_of, loss_scale, mark_event
from lightning_fire.callbacks.observers import Observer, lambda_max, singular_values, validation
from lightning_fire.callbacks.outlook import outlook, starts_over
from lightning_fire.callbacks.probing.batches import BatchInHand, why_not_run
from lightning_fire.contracts import num_chunks_of
from lightning_fire.distributed import reshard
from lightning_fire.messages import inform, no_change, rank_zero_warn, tell_once
from lightning_fire.methods import Change, EventMethod, Loop, Method, StepMethod
from lightning_fire.methods.base.averages import averages_in, network_of
from lightning_fire.methods.base.method import Attached, schedule_of
from lightning_fire.methods.base.report import Report, in_words
from lightning_fire.when import Clock, Horizon, Never, Schedule, idle_epochs, problem_of, watched_by
from lightning_fire.where import Weights


class PlasticityCallback(ClockCallback):
    """Applies a method to the module that a Trainer trains: at events, or at every step.

    A method with events, such as `FIRE`, acts before a batch if the schedule is due; with new data, before its first
    batch. It logs `{name}/event`. For a change of weights it also logs the normalized deviation from isometry before
    and after (`{name}/dfi_normalized_before`, `…_after`; the paper's scale-dependent one as `{name}.raw/dfi_before`,
    `…_after`), the squared Frobenius error (`{name}/sfe`, `{name}/sfe_normalized`), `{name}/seconds`, and the same per
    layer under `{name}.layers/`. It logs further metrics of the method, and the largest eigenvalue of the Hessian of
    the loss on the first 8 samples of this batch before and after, `{name}/lambda_max_before` and
    `{name}/lambda_max_after`.

    It acts at most once per step, also after a resume. An event that raises changes no weight and is not counted; if
    Ctrl-C comes within one, it is completed and counted. Target networks follow by `sync_targets()` of the module.

    A method that acts at every step, such as `L2Init`, logs its metrics, such as `{name}/penalty`, at the end of each
    epoch in which it acts.

    Args:
        method: The method, such as `FIRE()`.
        when: Schedule of the events, or several of which any may be due. Default: that of the method, for most
            `AtNewData()`, the start of every chunk except the first.
        start_chunk: Number of changes of the data before which it does nothing, at least 0 (paper, warm start: 1 for
            the methods that act at every step).
        log: What to log. Default: `Log()`.
        observers: Further measurements around each event.
        followers: What follows an event that makes another network. Default: best values of EarlyStopping,
            ModelCheckpoint and ReduceLROnPlateau are forgotten.

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
        observers: Sequence[Observer] = (),
        followers: Sequence[Follower] = DEFAULT_FOLLOWERS,
    ):
        super().__init__(start_chunk)
        self.when, self.method, self.logs = schedule_of(method, when), method, log_of(log)  # Lightning sets `log`
        self.clock = TrainerClock(watched_by(self.when))
        self.acts_on_shards, self.keeps_state = method.acts_on_shards, not isinstance(method, EventMethod)
        self.name = self.logs.name or method.name
        self.initial = KeptInitialValues() if method.needs_initial_values else None
        self.observers, self.followers = list(observers), followers
        if isinstance(method, EventMethod):
            self.observers += self._observers_of(method)
        self.num_events = self._events_before = 0  # before this fit
        self._outlook, self._may_act = "", True  # sentence on new data in this fit
        self._active = False  # batches since the last step in which a method of each step acts
        self._loop: Loop | None = None  # of the attached method

    def _observers_of(self, method: EventMethod) -> list[Observer]:
        logs, found = self.logs, list[Observer]()
        if logs.layers:
            found.append(singular_values(self.name))
        if method.changes_output and method.remakes_network and logs.weights and logs.validation_batches:
            found.append(validation(logs.validation_batches))
        if method.measures_curvature and logs.weights if logs.curvature is None else logs.curvature:
            found.append(lambda_max)
        return found

    # An event

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if clock.trained_chunk < self.start_chunk:
            self._now.last_event = clock.step  # not at the first batch on new data: no step precedes it
        elif not self._is_over and self.clock.last_event != clock.step and self.when.due(clock):
            self.act(trainer, pl_module, clock)

    def act(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> Mapping[str, float]:
        """Run an event: plan, observe, make, follow, log. Return the logged values."""
        reshard(pl_module)
        change = self.event(trainer, pl_module)
        after = [observer(trainer, self.given.batch, change) for observer in self.observers]
        done: list[str] = []
        report = change.followed_by(partial(self._follow, trainer, clock, done)).make()
        values = {f"{self.name}/event": float(self.num_events), **report.keyed(self.name, self.logs.layers)}
        for measure in after:
            values |= {f"{self.name}/{key}": value for key, value in measure().items()}
        self._tell(trainer, clock, report, values, done)
        log_now(trainer, values)
        return values

    def event(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        """Hook: plan the change of an event."""
        assert isinstance(self.method, EventMethod)  # others have no events
        return self.method.event(pl_module, self.loop(trainer, pl_module))

    def _follow(self, trainer: Trainer, clock: Clock, done: list[str]) -> None:
        """Let others follow, and count the event; part of the change, so that an error undoes it."""
        method = self.method
        if isinstance(method, EventMethod) and method.changes_output:
            followers = [sync_targets, *(self.followers if method.remakes_network else ())]
            done += [sentence for follow in followers for sentence in follow(trainer, clock.new_data)]
        self._now.note_event(clock)
        self.clock, self.num_events = self._now, self.num_events + 1

    def _tell(
        self, trainer: Trainer, clock: Clock, report: Report, values: Mapping[str, float], done: Sequence[str]
    ) -> None:
        """Say in one sentence what an event did, and once what it leaves out."""
        start = f"{self.name}/"
        shown = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
        normalized = {key.replace("_normalized", "") for key in shown if "_normalized" in key}  # preferred
        words = in_words({key: value for key, value in shown.items() if key not in {*normalized, "event"}})
        details = ", ".join(filter(None, [words, report.ending, *done]))
        data = f", new data: chunk {clock.chunk}" if clock.new_data else ""
        sentence = f"{self.title} acted at epoch {clock.epoch}, step {clock.step}{data}"
        sentence += f" ({details})" if details else ""
        if shown.get("sfe") == 0:
            tell_once(trainer, no_change(self.title, self.method), rank_zero_warn)
        else:
            inform(sentence)
        for left_out in report.left_out:
            tell_once(trainer, f"{self.title} {left_out}.")
        if report.advice:
            tell_once(trainer, f"{self.title}: {report.advice}.")
        mark_event(trainer, self.name, values, sentence)

    def loop(self, trainer: Trainer, pl_module: LightningModule) -> "FitLoop":
        """Return the `Loop` of this fit."""
        return FitLoop(
            optimizers_of(trainer, pl_module),
            initial=None if self.initial is None else self.initial.values,
            averages=averages_in(undeclared(trainer).callbacks),
            event=self.num_events + 1,
            measure=self.logs.weights,
            share_work=trainer.world_size > 1,
            ranks=trainer.world_size,
            given=self._given,
        )

    # A method of each step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._method is not None:
            self._method.watching = self.acts_now
            self._active |= self.acts_now
        if self._loop is not None:
            self._loop.optimizers = optimizers_of(trainer, pl_module)  # which RestartSchedulers replaces

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
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
        if self._method is None or not self.acts_now:
            return
        waits = type(self._method).before_step is not Attached.before_step
        if waits and trainer.global_step == 0 and not pl_module.automatic_optimization:
            why = "steps its optimizers without Lightning: step those of `self.optimizers()`"
            tell_once(trainer, f"{self.title} sees no step, as {type(pl_module).__name__} {why}.", rank_zero_warn)
        if values := self._method.metrics():
            log_now(trainer, {f"{self.name}/{key}": value for key, value in values.items()}, at_epoch_end=True)

    # A fit

    @property
    def title(self) -> str:
        """Name in messages and in the key of its state in checkpoints: that of the method."""
        return type(self.method if type(self) is PlasticityCallback else self).__name__

    def describe(self) -> str:
        when = f"start_chunk={self.start_chunk}" if isinstance(self.when, Never) else repr(self.when)
        name = "" if self.name == self.method.name else self.name
        return ", ".join(filter(None, [when, self.method.identity, name]))

    def show_selection(self, pl_module: LightningModule) -> str:
        return self.method.table(pl_module)

    def idle_epochs(self, horizon: Horizon) -> float:
        if self.start_chunk >= 1:
            return math.inf
        makes_another = isinstance(self.method, EventMethod) and self.method.remakes_network
        return idle_epochs(self.when, horizon) if makes_another else 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if isinstance(self.method, EventMethod):  # before the optimizers are made and a checkpoint is loaded
            averaged = map(network_of, averages_in(undeclared(trainer).callbacks))
            for network in (pl_module, *filter(None, averaged)):
                self.method.prepare(network)
        in_earnest = stage == "fit" and not undeclared(trainer).fast_dev_run
        if in_earnest and (reason := problem_of(self.when, horizon_of(trainer))):
            raise MisconfigurationException(f"{self.title}(when={self.when}) can never act: {reason}.")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for sentence in self.method.check(pl_module, self.loop(trainer, pl_module)):
            tell_once(trainer, f"{self.title} {sentence}.")
        super().on_fit_start(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._events_before, method = self.num_events, self.method
        if self.clock.follows_finished and starts_over(self.when, trainer):
            self.clock.announce(trainer)  # a new training, which starts with this data
        self._outlook, self._may_act = outlook(self.when, self.clock, trainer)
        if method.needs_batches and (reason := why_not_run(trainer, pl_module)):
            raise MisconfigurationException(f"{self.title} cannot run the module: {reason}.")
        if isinstance(method, EventMethod) and method.changes_weights and not optimizers_of(trainer, pl_module):
            rank_zero_warn(
                f"{self.title} finds no optimizer of {type(pl_module).__name__}, and drops no optimizer state at an"
                " event: return the optimizers in configure_optimizers, or keep them in an attribute of the module."
            )
        if not self._may_act:
            acted = f", in which it acted {self.num_events} time(s)" if self.num_events else ""
            is_first = not self.clock.has_seen_data
            interrupted = self.clock.resumed and not (self.clock.follows_finished or is_first)
            resumed = f", which is right if you resume an interrupted training{acted}" if interrupted else ""
            only_chunk = is_first and num_chunks_of(data_source_of(trainer)) == 1
            unknown = is_first and self.clock.resumed
            tell = rank_zero_warn if self.clock.follows_finished or only_chunk or unknown else inform
            tell(f"{self.title} will not act in this fit{resumed}: {self._outlook}.")
            self._outlook = ""

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loop, method = self.loop(trainer, pl_module), self.method
        if isinstance(method, StepMethod):
            self._let_go()
            self._loop, self._method = loop, method.attach(pl_module, loop)
            self._method.watching = False
            if self._state:
                self._method.load_state_dict(self._state)
            selected, loop.given = self._method.selected(), None
        else:
            assert isinstance(method, EventMethod)
            selected = method.selected(pl_module, loop)
        if selected and self._may_act and not self._begun:
            when = "" if isinstance(self.when, Never) else f", {self.when!r}"
            why = f"; {self._outlook}" if self._outlook else ""
            shown = f" print({method.selection}.select(model)) shows the selection."
            weights = isinstance(method.selection, Weights)
            inform(f"{self.title} will act on {selected}{when}{why}.{shown if weights else ''}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.num_events == self._events_before and not isinstance(self.when, Never):
            earlier = f"; in earlier fits it acted {self.num_events} time(s)" if self.num_events else ""
            why = earlier or f": {self._outlook or f'{self.when} was never due'}"
            inform(f"{self.title} did not act in this fit{why}.")
        known = {*self.clock.readings, *trainer.callback_metrics}
        if unseen := [key for key in watched_by(self.when) if key not in known]:
            rank_zero_warn(
                f"{self.title} waits for {', '.join(unseen)}, which was not logged at the end of any epoch;"
                f" logged were {', '.join(sorted(trainer.callback_metrics)) or 'no metrics'}."
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        if self.clock.resumed and not self.clock.fitting:
            inform(
                f"{self.title} did not act, as no batch was trained: the checkpoint is at epoch"
                f" {trainer.current_epoch}, step {trainer.global_step}, and the Trainer ends at"
                f" max_epochs={trainer.max_epochs}, max_steps={trainer.max_steps}, which count from the first fit:"
                " raise the end."
            )

    def _let_go(self) -> None:
        if self._method is not None:
            self._method.close()
        super()._let_go()
        self._active, self._loop = False, None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_loop": None}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "num_events": self.num_events, "method": self._state_of_method()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.num_events, self._state = state_dict["num_events"], state_dict["method"]


@dataclass(eq=False)
class FitLoop(Loop):
    """The `Loop` of a fit: the current batch, and the next ones.

    Its ranks are those of the Trainer, which may be a single process in a group of independent trainings.
    """

    given: BatchInHand | None = None

    def run(self, batches: int = 1) -> None:
        """Run the module on the current batch and the next ones, without side effects."""
        assert self.given is not None
        self.given.forward(batches)

    def gradients(self, of: Sequence[Tensor], batches: int) -> Any:
        """Yield the gradients of the training loss on the current batch and the next ones."""
        assert self.given is not None
        return self.given.gradients(of, batches)
