"""Values that an event logs in addition to its report: λ_max, validation metrics, and histograms of singular values."""

import time

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_fire._lightning import undeclared
from lightning_fire._private import is_a
from lightning_fire.callbacks.base.log import step_of_logs
from lightning_fire.callbacks.probing.batches import BatchInHand, weights_are_sharded, why_not_run
from lightning_fire.callbacks.probing.curvature import measured_lambda_max
from lightning_fire.callbacks.probing.validation import validation_metrics
from lightning_fire.messages import rank_zero_warn, tell_once
from lightning_fire.methods.base.change import Change
from lightning_fire.where import Weights


class LambdaMax:
    """The largest eigenvalue of the Hessian of the loss on the batch in hand, before and after.

    If it cannot be computed, a message is logged once.
    """

    def __init__(self, given: BatchInHand, prefix: str):
        self._given, self._prefix = given, prefix
        self._values: dict[str, float] = {}
        self._seconds = 0.0

    def before(self, change: Change) -> None:
        if reason := why_not_run(self._given.trainer, self._given.module):
            tell_once(self._given.trainer, f"{self._prefix}/lambda_max is not logged: {reason}.")
            return
        start = time.perf_counter()
        self._values = measured_lambda_max(self._given, f"{self._prefix}/lambda_max_before")
        self._seconds = time.perf_counter() - start

    def after(self) -> dict[str, float]:
        if not self._values:
            return {}
        start = time.perf_counter()
        after = measured_lambda_max(self._given, f"{self._prefix}/lambda_max_after")
        seconds = self._seconds + time.perf_counter() - start
        return {**self._values, **after, f"{self._prefix}/lambda_max_seconds": seconds}


class Validation:
    """Metrics of `validation_step` before and after an event, and a warning if an accuracy falls to chance."""

    def __init__(self, trainer: Trainer, pl_module: LightningModule, prefix: str, num_batches: int):
        self._trainer, self._module, self._prefix, self._num_batches = trainer, pl_module, prefix, num_batches
        self._before: dict[str, float] = {}

    def before(self, change: Change) -> None:
        self._before = self._metrics()

    def after(self) -> dict[str, float]:
        after = self._metrics() if self._before else {}
        values: dict[str, float] = {}
        for key in self._before.keys() & after.keys():
            name = f"{self._prefix}/{key.replace('/', '_')}"
            values |= {f"{name}_before": self._before[key], f"{name}_after": after[key]}
            if "acc" in key.lower():
                self._warn_of_chance(key, self._before[key], after[key])
        return dict(sorted(values.items(), reverse=True))

    def _warn_of_chance(self, key: str, before: float, after: float) -> None:
        try:
            outputs = Weights(preset="cnn", vectors=True).select(self._module)[-1].shape[0]
        except ValueError:  # no weights
            return
        chance = 1 / max(2, outputs)
        if before > chance + 0.2 and after < chance + 0.1 * (before - chance):
            tell_once(
                self._trainer,
                f"An event of {self._prefix} has reduced {key} from {before:.2f} to {after:.2f}, near chance for"
                f" {outputs} outputs: the network must train before it is used again.",
                rank_zero_warn,
                key=f"{self._prefix} {key}",
            )

    def _metrics(self) -> dict[str, float]:
        try:
            return validation_metrics(self._trainer, self._module, self._num_batches)
        except Exception as error:
            tell_once(self._trainer, f"{self._prefix} logs no validation metrics: {type(error).__name__}: {error}.")
            return {}


class SingularValues:
    """Histograms of the singular values of the changed weights, before and after, for TensorBoard."""

    def __init__(self, trainer: Trainer, prefix: str):
        self._trainer, self._prefix = trainer, prefix
        self._spectra: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        # Rank 0 alone writes the log, and cannot gather sharded weights alone.
        writes = trainer.is_global_zero and not weights_are_sharded(trainer)
        self._loggers = [logger for logger in trainer.loggers if writes and is_a(logger, "TensorBoardLogger")]

    def before(self, change: Change) -> None:
        if self._loggers:
            self._spectra = change.spectra()

    def after(self) -> dict[str, float]:
        for time_of, spectra in zip(("before", "after"), self._spectra, strict=True):
            for name, values in spectra.items():
                key = f"{self._prefix}.singular_values_{time_of}/{name}"
                for logger in self._loggers:
                    undeclared(logger).experiment.add_histogram(key, values, step_of_logs(self._trainer))
        return {}
