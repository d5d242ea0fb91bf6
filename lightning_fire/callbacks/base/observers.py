"""What an event logs beside its report: λ_max, and histograms of singular values."""

import time

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lightning_fire._lightning import batches_that_stepped
from lightning_fire.callbacks.probing.batches import weights_are_sharded, why_not_look
from lightning_fire.callbacks.probing.curvature import UpcomingBatch, tell_once
from lightning_fire.methods.change import Change


class LambdaMax:
    """The largest eigenvalue of the Hessian of the loss on the upcoming data, before and after.

    Where it cannot be measured, a message says so once.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, prefix: str):
        self._trainer, self._module, self._prefix = trainer, pl_module, prefix
        self._values: dict[str, float] = {}
        self._batch: UpcomingBatch | None = None
        self._seconds = 0.0

    def before(self, change: Change) -> None:
        if reason := why_not_look(self._trainer, self._module):
            tell_once(self._trainer, f"{self._prefix}/lambda_max is not logged: {reason}.")
            return
        start = time.perf_counter()
        self._batch = UpcomingBatch(self._trainer, self._module)
        self._values = self._batch.measured(f"{self._prefix}/lambda_max_before")
        self._seconds = time.perf_counter() - start

    def after(self) -> dict[str, float]:
        if not self._values:
            return {}
        start = time.perf_counter()
        after = self._batch.measured(f"{self._prefix}/lambda_max_after")
        seconds = self._seconds + time.perf_counter() - start
        return {**self._values, **after, f"{self._prefix}/lambda_max_seconds": seconds}


class SingularValues:
    """Histograms of the singular values of the changed weights, before and after, for TensorBoard."""

    def __init__(self, trainer: Trainer, prefix: str):
        self._trainer, self._prefix = trainer, prefix
        self._spectra: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        # Rank 0 alone writes the log, and cannot gather sharded weights alone.
        writes = trainer.is_global_zero and not weights_are_sharded(trainer)
        self._loggers = [logger for logger in trainer.loggers if writes and isinstance(logger, TensorBoardLogger)]

    def before(self, change: Change) -> None:
        if self._loggers:
            self._spectra = change.spectra()

    def after(self) -> dict[str, float]:
        for time_of, spectra in zip(("before", "after"), self._spectra, strict=True):
            for name, values in spectra.items():
                key = f"{self._prefix}.singular_values_{time_of}/{name}"
                for logger in self._loggers:
                    logger.experiment.add_histogram(key, values, batches_that_stepped(self._trainer))
        return {}
