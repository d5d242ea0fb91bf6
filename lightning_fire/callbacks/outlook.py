"""One sentence before a fit on what will count as new data in it."""

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_fire._lightning import undeclared
from lightning_fire.callbacks.clock import TrainerClock, data_source_of, horizon_of
from lightning_fire.contracts import chunk_of, num_chunks_of
from lightning_fire.when import AtNewData, Schedule, is_past, schedules_in

_STARTED = "if this process continues from weights trained before, "
_NO_CHUNK = "has no whole-number `chunk`"
_ON_FIRST = "when=AtNewData(skip_first=False)"


def outlook(schedule: Schedule, clock: TrainerClock, trainer: Trainer) -> tuple[str, bool]:
    """Explain what will count as new data in this fit, or why none will; also return whether the schedule can act.

    The text is empty if the schedule can act and does not depend on new data.
    """
    epoch = trainer.current_epoch
    if clock.resumed and is_past(schedule, horizon_of(trainer), epoch):
        return f"{schedule} is not due from epoch {epoch} on", False
    waits = [isinstance(each, AtNewData) for each in schedules_in(schedule)]
    if not any(waits):
        return "", True
    source = data_source_of(trainer)
    kind, chunk, count = type(source).__name__, chunk_of(source), num_chunks_of(source)
    is_first = not clock.has_seen_data
    if (is_first and _acts_on_first(schedule)) or clock.has_changed(trainer):
        return "this fit begins with new data", True
    if chunk is not None and count != 1:
        once = not undeclared(trainer).reload_dataloaders_every_n_epochs and trainer.max_epochs != 1
        if once and count is not None:
            rank_zero_warn(
                f"{kind} has {count} chunks; the Trainer asks for it only once, and trains on with the first one: set"
                " Trainer(reload_dataloaders_every_n_epochs=1)."
            )
        reload = ", in this fit with Trainer(reload_dataloaders_every_n_epochs=1)" if once else ""
        use = f"; {_STARTED}use {_ON_FIRST}" if is_first and count is None else ""
        return f"new data comes when {kind}.chunk changes from {chunk}{reload}{use}", True
    if count == 1:
        lack, how = "has a single chunk", f"give {kind} several"
    elif isinstance(source, dict | list):
        lack, how = _NO_CHUNK, "give fit a DataModule with a `chunk`, such as the month"
    else:
        lack, how = _NO_CHUNK, f"give {kind} one, such as the month"
    unknown = "this data counts as the first, as that of earlier epochs is not known; " * (is_first and clock.resumed)
    only = f"{kind} {lack}, so that only a later fit with other data counts as new data"
    advice = f"{how}, or call announce_new_data(trainer) before fit" + f", or, {_STARTED}{_ON_FIRST}" * is_first
    return f"{unknown}{only}: {advice}", not all(waits)


def starts_over(schedule: Schedule, trainer: Trainer) -> bool:
    """Return whether a fit that continues after a finished one counts as one on new data: without a `chunk`."""
    return chunk_of(data_source_of(trainer)) is None and _acts_on_first(schedule)


def _acts_on_first(schedule: Schedule) -> bool:
    return any(isinstance(each, AtNewData) and not each.skip_first for each in schedules_in(schedule))
