"""Values that an event logs in addition to its report: λ_max, validation metrics, and histograms of singular values.

Each function measures before the event. It returns a function that measures after it and returns the values to log.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from lightning.pytorch import Trainer

from lightning_fire._lightning import undeclared
from lightning_fire._private import is_a
from lightning_fire.callbacks.base.log import step_of_logs
from lightning_fire.callbacks.probing.batches import BatchInHand, weights_are_sharded, why_not_run
from lightning_fire.callbacks.probing.curvature import measured_lambda_max
from lightning_fire.callbacks.probing.validation import validation_metrics
from lightning_fire.messages import rank_zero_warn, tell_once
from lightning_fire.methods.base.change import Change
from lightning_fire.where import Weights

After = Callable[[], dict[str, float]]


def observe_lambda_max(given: BatchInHand, prefix: str) -> After:
    """Measure the largest eigenvalue of the Hessian of the loss on the current batch, or log once why not."""
    key = f"{prefix}/lambda_max"
    if reason := why_not_run(given.trainer, given.module):
        tell_once(given.trainer, f"{key} is not logged: {reason}.")
        return dict
    start = time.perf_counter()
    before = measured_lambda_max(given, f"{key}_before")
    seconds = time.perf_counter() - start

    def after() -> dict[str, float]:
        start = time.perf_counter()
        values = measured_lambda_max(given, f"{key}_after")
        return {**before, **values, f"{key}_seconds": seconds + time.perf_counter() - start}

    return after if before else dict


def observe_validation(given: BatchInHand, prefix: str, num_batches: int) -> After:
    """Run the Trainer's validation; warn if an accuracy falls to chance level."""

    def metrics() -> dict[str, float]:
        try:
            return validation_metrics(given.trainer, given.module, num_batches)
        except Exception as error:
            tell_once(given.trainer, f"{prefix} logs no validation metrics: {type(error).__name__}: {error}.")
            return {}

    before = metrics()

    def after() -> dict[str, float]:
        now = metrics() if before else {}
        values: dict[str, float] = {}
        for key in sorted(before.keys() & now.keys(), reverse=True):
            name = f"{prefix}/{key.replace('/', '_')}"
            values |= {f"{name}_before": before[key], f"{name}_after": now[key]}
            if "acc" in key.lower():
                _warn_of_chance(given, prefix, key, before[key], now[key])
        return values

    return after


def _warn_of_chance(given: BatchInHand, prefix: str, key: str, before: float, after: float) -> None:
    with suppress(ValueError):  # no weights
        outputs = Weights(preset="cnn", vectors=True).select(given.module)[-1].shape[0]
        chance = 1 / max(2, outputs)
        if before > chance + 0.2 and after < chance + 0.1 * (before - chance):
            tell_once(
                given.trainer,
                f"An event of {prefix} has reduced {key} from {before:.2f} to {after:.2f}, near chance for"
                f" {outputs} outputs: the network must train before it is used again.",
                rank_zero_warn,
                key=f"{prefix} {key}",
            )


def observe_singular_values(trainer: Trainer, prefix: str, change: Change) -> After:
    """Compute the singular values of the changed weights before and after, as histograms for TensorBoard."""
    # Only rank 0 writes the log, and it cannot gather sharded weights alone.
    loggers = trainer.loggers if trainer.is_global_zero and not weights_are_sharded(trainer) else []
    boards = [undeclared(logger).experiment for logger in loggers if is_a(logger, "TensorBoardLogger")]
    both = change.spectra() if boards else ()

    def after() -> dict[str, float]:
        for time_of, spectra in zip(("before", "after"), both, strict=False):
            for name, values in spectra.items():
                for board in boards:
                    board.add_histogram(f"{prefix}.singular_values_{time_of}/{name}", values, step_of_logs(trainer))
        return {}

    return after
