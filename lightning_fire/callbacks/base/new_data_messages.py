"""Messages before a fit about what counts as new data in it."""

import inspect

from lightning.pytorch import Trainer

from lightning_fire._lightning import undeclared
from lightning_fire.callbacks.base.progress import Progress, data_source_of
from lightning_fire.contracts import HasChunk, HasChunkAt, chunk_of, num_chunks_of, offers
from lightning_fire.when import AtNewData, Schedule, schedules_in

_RELOAD = "Trainer(reload_dataloaders_every_n_epochs=1)"
ASKS_ONCE = f"the Trainer asks for the training data only once: set {_RELOAD}"


def explain(schedule: Schedule, time: Progress, trainer: Trainer, changes_weights: bool = True) -> tuple[str, bool]:
    """Explain what will count as new data in this fit, with advice; also return whether no data can be new.

    The text is empty if the schedule does not depend on new data.
    """
    kinds = {isinstance(part, AtNewData) for part in schedules_in(schedule)}
    if True not in kinds:
        return "", False
    source, seen, on_first = data_source_of(trainer), time.has_seen_data, acts_on_first(schedule)
    unknown = not seen and trainer.current_epoch > 0
    first = on_first and not seen and not (unknown and offers(source, HasChunkAt))
    if first or time.has_changed(trainer):
        return "this fit begins with new data", False
    explanation, num_chunks = explain_data(trainer), num_chunks_of(source)
    may_change = chunk_of(source) is not None and num_chunks != 1
    if False in kinds or unknown or (may_change and (seen or num_chunks is not None)):
        return explanation, False
    skip_none = "use when=AtNewData(skip_first=False)"
    if not seen and not changes_weights and not time.resumed:
        new = "A fit without ckpt_path begins with new optimizers and schedules: nothing is to do"
        return f"{explanation}. {new}", not may_change
    if not seen:
        return f"{explanation}. If this process continues from weights trained before, {skip_none}", not may_change
    advice = (
        f"If the data is newer than that of the {'checkpoint' if time.resumed else 'fit before'}, give"
        f" {type(source).__name__} a whole-number `chunk`, such as the month, or call announce_new_data(trainer)"
        f" before fit{'' if on_first else f', or {skip_none}'}"
    )
    return f"{explanation}. {advice}", True


def explain_data(trainer: Trainer) -> str:
    """Explain what counts as new data in this fit."""
    source = data_source_of(trainer)
    kind, chunk = type(source).__name__, chunk_of(source)
    if num_chunks_of(source) == 1:
        lack = f"the data of {kind} comes in a single chunk"
    elif chunk is not None:
        change = f" (if it does within this fit, set {_RELOAD})" if asks_once(trainer) else ""
        return f"{kind} announces new data when its `chunk` changes from {chunk}{change}"
    elif offers(source, HasChunk) and source.chunk is not None:
        return f"{kind}.chunk is not a whole number and is ignored: {source.chunk!r}"
    else:
        broken = inspect.getattr_static(source, "chunk", None) is not None
        lack = f"{kind}.chunk raises AttributeError" if broken else f"{kind} has no `chunk` attribute"
    return f"{lack}: only a later fit with other data, or announce_new_data(trainer), counts as new data"


def asks_once(trainer: Trainer) -> bool:
    """Return whether a Trainer of more than one epoch loads its training data only once."""
    return not undeclared(trainer).reload_dataloaders_every_n_epochs and trainer.max_epochs != 1


def awaits_new_data(schedule: Schedule) -> bool:
    """Return whether a schedule is due only on data after the first."""
    return all(isinstance(part, AtNewData) and part.skip_first for part in schedules_in(schedule))


def acts_on_first(schedule: Schedule) -> bool:
    """Return whether a schedule is due on the first data of a training."""
    return any(isinstance(part, AtNewData) and not part.skip_first for part in schedules_in(schedule))
