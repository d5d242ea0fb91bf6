"""The logger `lightning_fire` for messages of methods during a training."""

import logging
import sys
import weakref
from collections.abc import Callable

from lightning_utilities.core.rank_zero import rank_zero_only

from lightning_fire._private import shows_a_bar
from lightning_fire.distributed import show_warning


class _BesideBars(logging.StreamHandler):  # type: ignore[type-arg]  # from Python 3.11 on
    """Handler that writes to the current `sys.stderr`, on a new line if tqdm shows a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr  # rich replaces it while it shows a bar
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return "\n" * shows_a_bar() + super().format(record)


logger = logging.getLogger("lightning_fire")
logger.setLevel(logging.INFO)
if not logging.getLogger().hasHandlers():  # like Lightning's messages: shown unless the program configures logging
    logger.addHandler(_BesideBars())
    logger.propagate = False


@rank_zero_only
def inform(message: str) -> None:
    """Log a message at level INFO, on rank 0 only."""
    logger.info(message)


@rank_zero_only
def rank_zero_warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn on rank 0 only. Lightning's function shows a line only once per process, over all trainings."""
    show_warning(message, category, depth=3)  # behind the decorator


_told: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()


def tell_once(trainer: object, message: str, tell: Callable[[str], object] = inform, key: str = "") -> None:
    """Log a message once per Trainer; with a `key`, only the first message with that key."""
    told = _told.setdefault(trainer, set())
    if (key or message) not in told:
        tell(message)
    told.add(key or message)


def no_change(title: str, method: object) -> str:
    """Message for an event of a method that changed no weight, with a possible reason."""
    why = "they already have the values that it gives them"
    if getattr(method, "strength", None) == 0:
        why = "with strength=0 it moves none"
    elif getattr(method, "needs_initial_values", False):
        why = (
            "they are the initial values, with which the first training of this callback began; if that training"
            " continued from weights trained before, use fresh_seed=0"
        )
    return f"{title} has changed no weight: {why}."
