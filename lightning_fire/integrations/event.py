"""Common functions of the callbacks for other libraries."""

from collections.abc import Callable

from lightning_fire.methods import Report
from lightning_fire.when import AnyOf, Schedule, watched_by


def require_known_times(schedule: Schedule, unknown: tuple[type[Schedule], ...] = ()) -> None:
    """Raise a ValueError if a schedule, or one of several, waits for a metric or is of a kind that is unknown here."""
    for each in schedule.schedules if isinstance(schedule, AnyOf) else [schedule]:
        if watched_by(each) or isinstance(each, unknown):
            raise ValueError(f"{each} cannot be used here: only the steps of training are known")


def name_of(method: Callable[..., Report]) -> str:
    """Return the prefix of a method's metrics.

    Example:
        >>> from functools import partial
        >>> from lightning_fire.methods import fire_
        >>> name_of(partial(fire_, steps=5))
        'fire'
    """
    function = getattr(method, "func", method)  # of a partial
    return getattr(function, "__name__", type(function).__name__).strip("_")
