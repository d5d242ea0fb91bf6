"""Base class of callbacks that act at events: schedule, change, log."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_fire._lightning import undeclared
from lightning_fire.callbacks.base.learning_rate import RateAfterEvent
from lightning_fire.callbacks.base.log import log_now, mark_event
from lightning_fire.callbacks.base.log_options import Log, log_of
from lightning_fire.callbacks.base.method import MethodCallback, optimizers_of
from lightning_fire.callbacks.base.neighbours import reset_other_callbacks, same_callbacks_after_error
from lightning_fire.callbacks.base.new_data_messages import (
    ASKS_ONCE,
    acts_on_first,
    asks_once,
    awaits_new_data,
    explain,
)
from lightning_fire.callbacks.base.observers import (
    After,
    observe_lambda_max,
    observe_singular_values,
    observe_validation,
)
from lightning_fire.callbacks.base.progress import Progress, data_source_of, horizon_of
from lightning_fire.contracts import HasChunkAt, HasNumChunks, HasSyncTargets, chunk_of, num_chunks_of, offers
from lightning_fire.distributed import reshard
from lightning_fire.messages import inform, no_change, rank_zero_warn, tell_once
from lightning_fire.methods.base.all_or_nothing import same_tensors_after_error
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.report import Report, in_words
from lightning_fire.when import (
    Clock,
    Horizon,
    Never,
    Schedule,
    idle_epochs,
    one_schedule,
    problem_of,
    watched_by,
)
from lightning_fire.where.layers import plain


class EventCallback(MethodCallback):
    """Base class of callbacks that act when a schedule is due, always before a batch, which measurements can use.

    Subclasses implement `plan`. This class checks the schedule before each batch (the start of an epoch is its first
    batch), acts at most once per step (also after a resume), makes the change, logs the event, and saves in the
    checkpoint everything that a resumed run needs. If an event raises, it is rolled back and not counted. If Ctrl-C
    interrupts the change, it is completed and counted.

    If the module has `sync_targets()`, for target networks, it is called after weights have been replaced.

    Attributes:
        replaces_weights: Whether an event changes the output of the network.
        remakes_network: Whether the result counts as a new network: averages of weights and best scores of other
            callbacks restart.
        changes_weights: Whether an event changes weights, and not only optimizers and schedulers.
        logs_curvature: Whether λ_max is logged by default.
    """

    name = "event"
    replaces_weights = True
    remakes_network = True
    changes_weights = True
    logs_curvature = False

    def __init__(self, when: Schedule | Sequence[Schedule] | None = None, log: Log | None = None, start_chunk: int = 0):
        super().__init__(start_chunk)
        self.logs = log_of(log)  # Lightning sets `log` of each callback
        self.name = self.logs.name or type(self).name
        default = self.logs_curvature and self.logs.weights
        self.curvature = default if self.logs.curvature is None else self.logs.curvature
        self.when = one_schedule(when)
        self.progress = Progress(watched_by(self.when))
        self.num_events = 0
        self._events_before = 0  # this fit
        self._first_chunk: int | None = None  # of this fit
        self._explanation, self._idle = "", False  # explanation of new data in this fit; whether no data can be new
        self._awaits = False  # whether this fit starts with the first data, on which the schedule does not act
        self._note: Callable[[], None] = _nothing  # counts the current event
        self._ending = ""  # of the line about the last event
        self._rate: RateAfterEvent | None = None
        self._stepped: set[Parameter] = set()  # in this batch

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        """Compute the change without making it."""
        raise NotImplementedError

    def act(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Run the event (plan, observe, change, observe) and return the values to log, by key."""
        reshard(pl_module)
        with self.selecting(trainer, pl_module):
            change = self.plan(trainer, pl_module)
        afters: list[After] = []
        if self.logs.layers:
            afters += [observe_singular_values(trainer, self.name, change)]
        if self._makes_another_network and self.logs.weights and (number := self.logs.validation_batches):
            afters += [observe_validation(self.given, self.name, number)]
        afters += [observe_lambda_max(self.given, self.name)] if self.curvature else []
        everything = [*pl_module.parameters(), *pl_module.buffers()]
        if self.replaces_weights and offers(pl_module, HasSyncTargets):
            change = change.followed_by(pl_module.sync_targets, guard=partial(same_tensors_after_error, everything))
        change.followed_by(self._note, guard=partial(same_callbacks_after_error, trainer)).make()
        report = change.report or Report()
        values, self._ending = report.keyed(self.name, self.logs.layers), report.ending
        for after in afters:
            values |= after()
        return values

    def idle_epochs(self, horizon: Horizon) -> float:
        return idle_epochs(self.when, horizon)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        if not undeclared(trainer).fast_dev_run and (reason := problem_of(self.when, horizon_of(trainer))):
            raise MisconfigurationException(f"{self.title}(when={self.when}) can never act: {reason}.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        name, source, time = self.title, data_source_of(trainer), self.progress
        unknown = not pl_module.automatic_optimization and not optimizers_of(trainer, pl_module)
        if unknown and self.replaces_weights and not isinstance(self.when, Never):
            rank_zero_warn(
                f"{name} finds no optimizer of {type(pl_module).__name__}, and drops no optimizer state at an event:"
                " return the optimizer in configure_optimizers, or keep it in an attribute of the module."
            )
        num_chunks = num_chunks_of(source)
        self._awaits = awaits = awaits_new_data(self.when) and not time.has_seen_data
        self._events_before, self._first_chunk = self.num_events, chunk_of(source)
        if time.follows_finished and self._first_chunk is None and acts_on_first(self.when):
            time.announce(trainer)  # a new training, which starts with this data
        self._explanation, self._idle = explain(self.when, self.progress, trainer, self.changes_weights)
        if self._idle:
            resumed = ""
            if time.resumed and not time.follows_finished:
                resumed = ", which is right if you resume an interrupted training"
                resumed += f", in which it acted {self.num_events} time(s)" if self.num_events else ""
            tell = rank_zero_warn if time.follows_finished or (awaits and num_chunks == 1) else inform
            tell(f"{name} will not act in this fit{resumed}: {self._explanation}.")
        elif awaits and trainer.current_epoch > 0 and not offers(source, HasChunkAt) and not time.has_changed(trainer):
            rank_zero_warn(
                f"{name} does not know the data of earlier epochs: the current data counts as the first it has seen."
                " If it is newer than that of the checkpoint, call announce_new_data(trainer) before fit, this once:"
                " later checkpoints know the data. AtNewData(skip_first=False) acts on it, too, and a DataModule with"
                " chunk_at(epoch) makes it known."
            )
        elif awaits and num_chunks is not None and asks_once(trainer):
            rank_zero_warn(f"{name} waits for {type(source).__name__}.chunk to change, but {ASKS_ONCE}.")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Record which weights are stepped: a GAN may freeze a network between batches."""
        stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
        self._stepped.update(parameter for parameter in stepped if parameter.requires_grad)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self._stepped:
            paused = {parameter for parameter in self._stepped if not parameter.requires_grad}
            named = pl_module.named_parameters() if paused else ()
            self._paused, self._stepped = [plain(name) for name, parameter in named if parameter in paused], set()
        super().on_train_batch_end(trainer, pl_module, *args)

    def _let_go(self) -> None:
        super()._let_go()
        self._stepped = set()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        name = self.title
        if self._rate is not None:
            self._rate.is_judged(trainer, trainer.current_epoch, self.progress.step)
        if self.num_events == self._events_before and not isinstance(self.when, Never):
            if self.num_events:
                why = f"; in earlier fits it acted {self.num_events} time(s)."
            elif self._awaits and not self._idle:
                why = f": all data was the first that it has seen, and {self.when} waits for the next."
            else:
                why = f": {self.when} was never due.{f' {self._explanation}.' if self._explanation else ''}"
            inform(f"{name} did not act in this fit{why}")
        known = {*self.progress.readings, *trainer.callback_metrics}
        if unseen := [key for key in watched_by(self.when) if key not in known]:
            rank_zero_warn(
                f"{name} waits for {', '.join(unseen)}, which was not logged at the end of any epoch;"
                f" logged were {', '.join(sorted(trainer.callback_metrics)) or 'no metrics'}."
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        if self.progress.resumed and not self.progress.fitting:
            inform(
                f"{self.title} did not act, as no batch was trained: the checkpoint is at epoch"
                f" {trainer.current_epoch}, step {trainer.global_step}, and the Trainer ends at"
                f" max_epochs={trainer.max_epochs}, max_steps={trainer.max_steps}, which count from the first fit:"
                " raise the end."
            )

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        source = data_source_of(trainer)
        changed = clock.new_data and chunk_of(source) != self._first_chunk
        if changed and not offers(source, HasNumChunks) and asks_once(trainer):  # with `num_chunks` warned before
            rank_zero_warn(
                f"{type(source).__name__} announces new data at epoch {clock.epoch}, but {ASKS_ONCE}. Until then"
                " training and events use the old data."
            )
        if self._rate is not None and self._rate.is_judged(trainer, clock.epoch, clock.step):
            self._rate = None
        if self._is_over or self.progress.last_event == clock.step or not self.when.due(clock):
            return
        now, number, others = self._now, self.num_events + 1, list[str]()

        def note() -> None:
            if self.num_events < number:
                others[:] = reset_other_callbacks(trainer, clock.new_data) if self._makes_another_network else ()
                now.note_event(clock)
                self.progress, self.num_events = now, number

        self._note = note
        values = self.act(trainer, pl_module)
        note()
        name, new = self.title, f", new data: chunk {clock.chunk}" if clock.new_data else ""
        sentence = (
            f"{name} acted at epoch {clock.epoch}, step {clock.step}{new}{_summary(values, self.name, self._ending)}"
        )
        if values.get(f"{self.name}/sfe") == 0:
            tell_once(trainer, no_change(name, getattr(self, "method", None)), rank_zero_warn)
        else:
            inform(sentence)
        if self._makes_another_network:
            if others:
                inform(f"also reset: {', '.join(others)}")
            self._rate = RateAfterEvent(trainer, name, clock.epoch, clock.step)
        log_now(trainer, {f"{self.name}/event": float(self.num_events), **values})
        mark_event(trainer, self.name, values, sentence)

    @property
    def _makes_another_network(self) -> bool:
        return self.replaces_weights and self.remakes_network

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stepped": set(), "_note": _nothing}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "num_events": self.num_events, "paused": list(self._paused)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.num_events, self._paused = state_dict["num_events"], state_dict["paused"]


def _nothing() -> None:
    """Do nothing."""


def _summary(values: Mapping[str, float], name: str, more: str) -> str:
    normalized = {key.replace("_normalized", "") for key in values if "_normalized" in key}  # preferred
    shown = {key: v for key, v in values.items() if key.startswith(f"{name}/") and key not in normalized}
    words = [in_words({key.partition("/")[2]: value for key, value in shown.items()}), more]
    return f" ({', '.join(filter(None, words))})" if any(words) else ""
