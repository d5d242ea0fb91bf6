"""Custom x axis of all logs."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from lightning.pytorch.loggers import Logger


def log_over(loggers: Iterable[Logger], count: Callable[[], int]) -> None:
    """Make loggers write all metrics at the step that `count` returns, instead of the step given to them.

    Lightning's own count of batches does not change: it also decides when to log.
    `type(logger).log_metrics(logger, metrics, step)` still writes at any step.

    Args:
        loggers: Loggers of a Trainer.
        count: Function that returns the present step of the axis.
    """
    for logger in loggers:
        vars(logger)["log_metrics"] = partial(_write, logger, count)


def log_over_batches(loggers: Iterable[Logger]) -> None:
    """Undo `log_over`."""
    for logger in loggers:
        vars(logger).pop("log_metrics", None)


def _write(logger: Logger, count: Callable[[], int], metrics: Mapping[str, Any], step: int | None = None) -> None:
    type(logger).log_metrics(logger, metrics, count())
