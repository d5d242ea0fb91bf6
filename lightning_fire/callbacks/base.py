"""The one base of all methods that act at an event: it joins WHAT, WHERE and WHEN to Lightning's hooks."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from lightning_fire.callbacks.timekeeper import Timekeeper, data_source_of, horizon_of
from lightning_fire.when import AnyOf, AtNewData, Clock, Schedule

_SHARDED = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAFSDPStrategy"}


class EventCallback(Callback):
    """Acts at the moments its schedule names: after the new data is loaded, before its first batch.

    A method subclasses it, writes `act`, and gives `describe` for its checkpoint key. The base asks the schedule at the
    start of each epoch and of each batch, never acts twice at one moment (also after a resume), logs the event, and
    keeps everything a resumed run needs in the checkpoint.

    Args:
        when: A schedule, or several of which any may be due. Default: `AtNewData()`.

    Raises:
        TypeError: If `when` is not a schedule.
    """

    name = "event"  # prefix of what is logged

    def __init__(self, when: Schedule | Sequence[Schedule] | None = None):
        self.when = _one_schedule(when)
        self.timekeeper = Timekeeper()
        self.num_events = 0

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
        if stage != "fit":
            return
        strategy = type(trainer.strategy).__name__
        if strategy in _SHARDED:
            raise MisconfigurationException(
                f"{type(self).__name__} cannot rewrite weights that {strategy} shards or copies."
                " Use strategy='ddp', or a single device."
            )
        if not trainer.fast_dev_run and (reason := self.when.problem(horizon_of(trainer))):
            raise MisconfigurationException(f"{type(self).__name__}(when={self.when}) can never act: {reason}.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.timekeeper.start(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._act_if_due(trainer, pl_module, epoch_start=True)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._act_if_due(trainer, pl_module, epoch_start=False)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.timekeeper.tick(trainer)

    def _act_if_due(self, trainer: Trainer, pl_module: LightningModule, epoch_start: bool) -> None:
        clock = self.timekeeper.read(trainer, epoch_start)
        if self.timekeeper.last_event == clock.step or not self.when.due(clock):
            return
        self.timekeeper.last_event = clock.step
        self.num_events += 1
        values = self.act(trainer, pl_module)
        rank_zero_info(f"{type(self).__name__} acted at {_moment(clock)}{_summary(values)}")
        log_now(trainer, {f"{self.name}/event": float(self.num_events), **values})

    @property
    def state_key(self) -> str:
        """Key in the checkpoint: several callbacks of one class may stand side by side."""
        return f"{type(self).__qualname__}({self.describe()})"

    def state_dict(self) -> dict[str, Any]:
        """Return plain values only, so that a checkpoint loads with `weights_only=True`."""
        return {"time": self.timekeeper.state_dict(), "num_events": self.num_events}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.timekeeper.load_state_dict(state_dict["time"])
        self.num_events = state_dict["num_events"]


def announce_new_data(trainer: Trainer) -> None:
    """Tell every method of this Trainer that its data has changed.

    For data without a DataModule that has a `chunk` attribute: call it from `train_dataloader()`, or anywhere before
    the epoch that is the first to use the new data.

    Args:
        trainer: The Trainer whose callbacks are told.
    """
    for callback in trainer.callbacks:
        if isinstance(timekeeper := getattr(callback, "timekeeper", None), Timekeeper):
            timekeeper.announce()


def log_now(trainer: Trainer, values: Mapping[str, float], step: int | None = None) -> None:
    """Write values to all loggers at once.

    `LightningModule.log` in `on_train_epoch_start` would be written at the end of the epoch. The values also go to
    `trainer.callback_metrics`, so that `ModelCheckpoint(monitor=…)` and `EarlyStopping` can watch them.

    Args:
        trainer: The Trainer, during a fit.
        values: Scalars by key.
        step: Where on the axis of optimizer steps. Default: `trainer.global_step`, the number of steps done. Lightning
            puts what belongs to the end of an epoch one before that.
    """
    for logger in trainer.loggers:
        logger.log_metrics(dict(values), step=trainer.global_step if step is None else step)
    distributed = trainer.world_size > 1
    for key, value in _headlines(values).items():
        trainer.lightning_module.log(
            key, value, logger=False, on_step=False, on_epoch=True, batch_size=1, sync_dist=distributed
        )


def explain_data(trainer: Trainer) -> str:
    """Say what will count as new data in this fit.

    Args:
        trainer: The Trainer, during a fit.
    """
    source = data_source_of(trainer)
    if isinstance(getattr(source, "chunk", None), int):
        return f"{type(source).__name__} announces new data by its `chunk`"
    return (
        f"{type(source).__name__} has no `chunk` attribute: a later fit with other data counts as new data,"
        " or a call of announce_new_data(trainer)"
    )


def _one_schedule(when: Schedule | Sequence[Schedule] | None) -> Schedule:
    if when is None:
        return AtNewData()
    schedules = [when] if not isinstance(when, Sequence) else list(when)
    for schedule in schedules:
        if not callable(getattr(schedule, "due", None)):
            raise TypeError(f"`when` must be a schedule such as AtNewData(), or several, got {schedule!r}")
    return schedules[0] if len(schedules) == 1 else AnyOf(schedules)


def _moment(clock: Clock) -> str:
    new = f", new data: chunk {clock.chunk}" if clock.new_data else ""
    return f"epoch {clock.epoch}, step {clock.step}{new}"


def _summary(values: Mapping[str, float]) -> str:
    short = [f"{key.partition('/')[2]} {value:.4g}" for key, value in _headlines(values).items()]
    return f" ({', '.join(short)})" if short else ""


def _headlines(values: Mapping[str, float]) -> dict[str, float]:
    """Leave out what is logged per layer, as `group/measure/layer`."""
    return {key: value for key, value in values.items() if key.count("/") == 1}
