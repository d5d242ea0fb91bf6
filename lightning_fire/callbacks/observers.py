"""Observers: what an event logs beside its report, such as λ_max, validation metrics, and singular values.

An observer measures before the event. It returns a function that measures after it and returns the values to log.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_fire._lightning import undeclared
from lightning_fire._private import is_a
from lightning_fire.callbacks.log import step_of_logs
from lightning_fire.callbacks.probing.batches import BatchInHand, weights_are_sharded, why_not_run
from lightning_fire.callbacks.probing.curvature import measured_lambda_max
from lightning_fire.callbacks.probing.validation import validation_metrics
from lightning_fire.distributed import to_list
from lightning_fire.functional import as_matrices
from lightning_fire.functional.ranks import singular_values_of_finite
from lightning_fire.messages import tell_once
from lightning_fire.methods.base.change import Change, is_finite
from lightning_fire.where import WeightView

After = Callable[[], Mapping[str, float]]


class Observer(Protocol):
    """Measures something before and after each event."""

    def __call__(self, trainer: Trainer, batch: Any, change: Change) -> After:
        """Measure before the event.

        Args:
            trainer: The Trainer.
            batch: The batch on which training is about to step.
            change: The change that is going to be made.

        Returns:
            Function that measures after the event and returns the values to log, by name.
        """


def lambda_max(trainer: Trainer, batch: Any, change: Change) -> After:
    """Observe the largest eigenvalue of the Hessian of the loss on the first 8 samples of the batch."""
    given = BatchInHand(trainer, trainer.lightning_module, batch)
    if reason := why_not_run(trainer, given.module):
        tell_once(trainer, f"lambda_max is not logged: {reason}.")
        return dict
    start = time.perf_counter()
    before = measured_lambda_max(given, "lambda_max_before")
    seconds = time.perf_counter() - start

    def after() -> dict[str, float]:
        start = time.perf_counter()
        values = measured_lambda_max(given, "lambda_max_after")
        return {**before, **values, "lambda_max_seconds": seconds + time.perf_counter() - start}

    return after if before else dict


def validation(num_batches: int) -> Observer:
    """Return an observer of the metrics of the Trainer's validation on some batches."""
    return partial(_validation, num_batches)


def _validation(num_batches: int, trainer: Trainer, batch: Any, change: Change) -> After:
    def metrics() -> dict[str, float]:
        try:
            return validation_metrics(trainer, trainer.lightning_module, num_batches)
        except Exception as error:  # a measurement must not end training
            tell_once(trainer, f"no validation metrics are logged at events: {type(error).__name__}: {error}.")
            return {}

    before = metrics()

    def after() -> dict[str, float]:
        now, values = metrics() if before else {}, dict[str, float]()
        for key in sorted(before.keys() & now.keys(), reverse=True):
            name = key.replace("/", "_")
            values |= {f"{name}_before": before[key], f"{name}_after": now[key]}
        return values

    return after


def singular_values(prefix: str) -> Observer:
    """Return an observer that writes the singular values of the changed weights to TensorBoard, as histograms."""
    return partial(_singular_values, prefix)


def _singular_values(prefix: str, trainer: Trainer, batch: Any, change: Change) -> After:
    # Only rank 0 writes the log, and it cannot gather sharded weights alone.
    loggers = trainer.loggers if trainer.is_global_zero and not weights_are_sharded(trainer) else []
    boards = [undeclared(logger).experiment for logger in loggers if is_a(logger, "TensorBoardLogger")]
    found = {"before": _spectra(change.weights), "after": _spectra(change.new_views())} if boards else {}

    def after() -> dict[str, float]:
        for time_of, spectra in found.items():
            for name, values in spectra.items():
                for board in boards:
                    board.add_histogram(f"{prefix}.singular_values_{time_of}/{name}", values, step_of_logs(trainer))
        return {}

    return after


@torch.no_grad()
def _spectra(weights: Sequence[WeightView]) -> dict[str, Tensor]:
    """Return the singular values of each finite weight by name, on the CPU."""
    matrices = {view.name: as_matrices(view.read(), view.groups) for view in weights}
    finite = to_list([is_finite(matrix) for matrix in matrices.values()])
    return {
        name: singular_values_of_finite(matrix).flatten().cpu()
        for (name, matrix), is_whole in zip(matrices.items(), finite, strict=True)
        if is_whole
    }
