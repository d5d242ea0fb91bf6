"""Another x axis for everything that is logged."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from lightning.pytorch.loggers import Logger


def log_over(loggers: Iterable[Logger], count: Callable[[], int]) -> None:
    """Let loggers write all metrics at the step that `count` returns, whatever step Lightning or a callback names.

    Lightning's own count of batches is left as it is: it also decides when to log.
    `type(logger).log_metrics(logger, metrics, step)` still writes at any step.

    Args:
        loggers: Of a Trainer.
        count: Returns the present step of the axis.
    """
    for logger in loggers:
        vars(logger)["log_metrics"] = partial(_write, logger, count)


def log_over_batches(loggers: Iterable[Logger]) -> None:
    """Undo `log_over`."""
    for logger in loggers:
        vars(logger).pop("log_metrics", None)


def _write(logger: Logger, count: Callable[[], int], metrics: Mapping[str, Any], step: int | None = None) -> None:
    type(logger).log_metrics(logger, metrics, count())
