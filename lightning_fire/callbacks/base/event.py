"""The base of all methods that act at an event: it joins WHAT, WHERE and WHEN to Lightning's hooks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_fire.callbacks.base.change import spectra
from lightning_fire.callbacks.base.log import log_histograms_now, log_now
from lightning_fire.callbacks.base.method import TimedCallback
from lightning_fire.callbacks.base.new_data import ASKS_ONCE, acts_on_first, asks_once, awaits_new_data, explain
from lightning_fire.callbacks.base.progress import Timekeeper, chunk_of, data_source_of, horizon_of
from lightning_fire.callbacks.probing.batches import Loss, weights_are_sharded
from lightning_fire.callbacks.probing.curvature import curvature_around
from lightning_fire.callbacks.probing.side_effects import to_the_end
from lightning_fire.distributed import reshard
from lightning_fire.when import AnyOf, AtNewData, Clock, Schedule, problem_of, require_schedule, watched_by
from lightning_fire.where import WeightView

_AVERAGING = {"StochasticWeightAveraging", "WeightAveraging"}  # the second, of EMA too, came with Lightning 2.6


class EventCallback(TimedCallback):
    """Acts at the moments its schedule names: after the new data is loaded, before its first batch.

    A method subclasses it, writes `act`, and gives `describe` for its checkpoint key. The base asks the schedule at the
    start of each epoch and of each batch, never acts twice at one moment (also after a resume), logs the event, and
    keeps everything a resumed run needs in the checkpoint. If asked to, it measures the curvature of the loss before
    and after each event, on the first samples of the upcoming data.

    A module with target networks has `sync_targets()`, which is called when weights have been replaced.

    Attributes:
        replaces_weights: Whether an event changes what the network says.

    Args:
        when: A schedule, or several of which any may be due. Default: `AtNewData()`.
        name: Prefix of the logged keys, to tell two callbacks of one class apart. Default: that of the class.
        curvature: Log `{name}/lambda_max_before` and `…_after`, the largest eigenvalue of the Hessian of the loss on
            the first 16 samples of the upcoming data, their residuals, and `…_seconds`, the time of both: at most 16
            products with the Hessian, each of 2 to 3 gradients on 16 samples.
        loss: From the module and a batch to the loss, a scalar. Default: the module's `loss_on(batch)` if it
            has one, otherwise what `training_step` returns; what that logs is dropped.

    Raises:
        TypeError: If `when` is not a schedule.
    """

    name = "event"
    replaces_weights = True

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        name: str | None = None,
        curvature: bool = False,
        loss: Loss | None = None,
    ):
        super().__init__(name)
        self.when = _one_schedule(when)
        self.timekeeper = Timekeeper(watched_by(self.when))
        self.curvature, self.loss = curvature, loss
        self.num_events = 0
        self._events_before = 0  # this fit
        self._first_chunk: int | None = None  # of this fit
        self._explanation, self._idle = "", False  # what makes data new in this fit; whether none will be
        self._acted = False  # since the clock was read last

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        """Intervene.

        Args:
            trainer: The Trainer, between two batches.
            pl_module: Its module.

        Returns:
            What to log about it, by key.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Return what tells this callback from others of its class, the same in every process."""
        return repr(self.when)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        if not trainer.fast_dev_run and (reason := problem_of(self.when, horizon_of(trainer))):
            raise MisconfigurationException(f"{type(self).__name__}(when={self.when}) can never act: {reason}.")
        averaging = {kind.__name__ for other in trainer.callbacks for kind in type(other).__mro__} & _AVERAGING
        if averaging:
            rank_zero_warn(
                f"{sorted(averaging)[0]} averages weights from before an event of {type(self).__name__} with those"
                " after it, which belong to different networks: start the averaging after the last event."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        name, source, time = type(self).__name__, data_source_of(trainer), self.timekeeper
        num_chunks, awaits = getattr(source, "num_chunks", None), awaits_new_data(self.when) and not time.has_seen_data
        self._events_before, self._first_chunk = self.num_events, chunk_of(source)
        if time.follows_finished and self._first_chunk is None and acts_on_first(self.when):
            time.announce(trainer)  # a new training, which begins with this data
        self._explanation, self._idle = explain(self.when, self.timekeeper, trainer)
        if self._idle:
            tell = rank_zero_warn if time.follows_finished or (awaits and num_chunks == 1) else rank_zero_info
            tell(f"{name} will not act in this fit: {self._explanation}.")
        elif awaits and trainer.current_epoch > 0 and not hasattr(source, "chunk_at") and not time.has_changed(trainer):
            rank_zero_warn(
                f"{name} does not know the data of the epochs before: the present data counts as the first it has seen."
                " AtNewData(skip_first=False) acts on it, as does a call of announce_new_data(trainer) before fit;"
                " a DataModule with chunk_at(epoch) tells."
            )
        elif awaits and num_chunks is not None and asks_once(trainer):
            rank_zero_warn(f"{name} waits for {type(source).__name__}.chunk to change, but {ASKS_ONCE}.")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        name = type(self).__name__
        if self.num_events == self._events_before:
            never = f": {self.when} was never due.{f' {self._explanation}.' if self._explanation else ''}"
            before = f"; it has acted before it, in all {self.num_events} time(s)."
            rank_zero_info(f"{name} did not act in this fit{before if self.num_events else never}")
        known = {*self.timekeeper.readings, *trainer.callback_metrics}
        if unseen := [key for key in watched_by(self.when) if key not in known]:
            rank_zero_warn(
                f"{name} waits for {', '.join(unseen)}, which nobody has logged at the end of an epoch;"
                f" logged were {', '.join(sorted(trainer.callback_metrics)) or 'no measures'}."
            )

    def why_unchanged(self) -> str:
        """Return, for people, why an event may have changed no weight, and what to do."""
        return "they were already what it would make of them"

    def _read_clock(self, trainer: Trainer, pl_module: LightningModule, epoch_start: bool) -> None:
        """Act if it is time to. An event that fails has not been: a checkpoint that is written because of it says so.

        Once the method has acted it has been, whatever fails after that, as its log may.
        """
        before, number, self._acted = self.timekeeper.snapshot(), self.num_events, False
        try:
            super()._read_clock(trainer, pl_module, epoch_start)
        except BaseException:
            if not self._acted:
                self.timekeeper.restore(before)
                self.num_events = number
            raise

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if clock.new_data and self._loader_is_stale(trainer):
            kind = type(data_source_of(trainer)).__name__
            rank_zero_warn(f"{kind} announces new data at epoch {clock.epoch}, but {ASKS_ONCE}.")
        if self.timekeeper.last_event == clock.step or not self.when.due(clock):
            return
        self.timekeeper.note_event(clock)
        self.num_events += 1
        values = self._act_and_measure(trainer, pl_module)
        rank_zero_info(f"{type(self).__name__} acted at {_moment(clock)}{_summary(values, self.name)}")
        if values.get(f"{self.name}/sfe") == 0:
            rank_zero_warn(f"{type(self).__name__} has changed no weight: {self.why_unchanged()}.")
        log_now(trainer, {f"{self.name}/event": float(self.num_events), **values})

    def _loader_is_stale(self, trainer: Trainer) -> bool:
        """Return whether the `chunk` has changed without a reload; where it has `num_chunks`, that was said before."""
        source = data_source_of(trainer)
        return chunk_of(source) != self._first_chunk and not hasattr(source, "num_chunks") and asks_once(trainer)

    def views_to_show(self, pl_module: LightningModule) -> Sequence[WeightView]:
        """Return the weights whose singular values TensorBoard shall show before and after each event; here none.

        Not asked for where weights are sharded: rank 0 alone writes the log, and could not gather them alone.

        Args:
            pl_module: The module.
        """
        return ()

    def _act_and_measure(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        reshard(pl_module)
        if not self.curvature:
            return self._act_and_show(trainer, pl_module)
        return curvature_around(
            trainer, pl_module, lambda: self._act_and_show(trainer, pl_module), self.name, self.loss
        )

    def _act_and_show(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        shown = any(isinstance(logger, TensorBoardLogger) for logger in trainer.loggers)
        shown &= trainer.is_global_zero and not weights_are_sharded(trainer)
        views = self.views_to_show(pl_module) if shown else ()
        before = spectra(views)
        values = self.act(trainer, pl_module)
        if not self._acted:
            self.carry_out(pl_module, lambda: None)
        for moment, of_views in (("before", before), ("after", spectra(views))):
            key = f"{self.name}.singular_values_{moment}"
            log_histograms_now(trainer, {f"{key}/{name}": tensor for name, tensor in of_views.items()})
        return values

    def carry_out(self, pl_module: LightningModule, change: Callable[[], None]) -> None:
        """Change weights and optimizer state, and let target networks follow. Once this begins, the event counts.

        `act` computes everything first and calls this last, so that an event that raises has changed nothing. If
        Ctrl-C arrives during the change, the change is completed.

        Args:
            pl_module: The module.
            change: Makes the change; a second call must have the same result.
        """

        def change_all() -> None:
            self._acted = True
            change()
            if self.replaces_weights and callable(sync := getattr(pl_module, "sync_targets", None)):
                sync()

        to_the_end(change_all)

    @property
    def state_key(self) -> str:
        """Key in the checkpoint: several callbacks of one class may stand side by side."""
        return f"{type(self).__qualname__}({self.describe()})"

    def state_dict(self) -> dict[str, Any]:
        """Return plain values only, so that a checkpoint loads with `weights_only=True`."""
        return {**super().state_dict(), "num_events": self.num_events}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self.num_events = state_dict["num_events"]


def announce_new_data(trainer: Trainer) -> None:
    """Tell every method of this Trainer that its data has changed: the next epoch to begin is the first to use it.

    For data without a DataModule that has a `chunk` attribute: call it from `train_dataloader()`, or anywhere before
    that epoch, for example before `fit(ckpt_path=…)`. A resumed run may call it again for the epoch in which it was
    interrupted, from `train_dataloader()`: it counts once. Before the very first epoch it says nothing, as there is no
    older data.

    Args:
        trainer: The Trainer whose callbacks are told.
    """
    for callback in trainer.callbacks:
        if isinstance(timekeeper := getattr(callback, "timekeeper", None), Timekeeper):
            timekeeper.announce(trainer)


def _one_schedule(when: Schedule | Sequence[Schedule] | None) -> Schedule:
    if when is None:
        return AtNewData()
    schedules = [when] if isinstance(when, str) or not isinstance(when, Sequence) else list(when)
    if not schedules:
        raise ValueError("`when` must be a schedule or a list of at least one, got an empty list")
    for schedule in schedules:
        require_schedule(schedule)
    return schedules[0] if len(schedules) == 1 else AnyOf(schedules)


def _moment(clock: Clock) -> str:
    new = f", new data: chunk {clock.chunk}" if clock.new_data else ""
    return f"epoch {clock.epoch}, step {clock.step}{new}"


def _summary(values: Mapping[str, float], name: str) -> str:
    normalized = {key.replace("_normalized", "") for key in values if "_normalized" in key}  # those say more
    shown = {key: v for key, v in values.items() if key.startswith(f"{name}/") and key not in normalized}
    short = [f"{key.partition('/')[2]} {value:.4g}" for key, value in shown.items()]
    return f" ({', '.join(short)})" if short else ""
