"""Hare and Tortoise as a callback (Lee et al., ICML 2024)."""

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_fire import methods
from lightning_fire._lightning import optimizers_of
from lightning_fire.callbacks.log import Log
from lightning_fire.callbacks.plasticity_callback import PlasticityCallback
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.tortoise import check_momentum
from lightning_fire.when import EveryNEpochs, Horizon, Schedule


class _Reset(methods.EventMethod):
    name: ClassVar[str] = "hare_and_tortoise"
    remakes_network: ClassVar[bool] = False
    optimizer_state = "keep"


class HareAndTortoise(PlasticityCallback):
    """Resets the module (the hare) to the EMA of its weights (the tortoise), see `methods.Tortoise`.

    The tortoise is updated after each optimizer step. Validation, test and prediction use its weights, training those
    of the hare. Checkpoints contain it as the state of this callback. Logs the metrics of `FIRECallback`, for the
    weights that `Weights()` selects, as `hare_and_tortoise/…`.

    Args:
        when: Schedule of the resets, or several of which any may be due. Default: `EveryNEpochs(10)`.
        momentum: μ in [0, 1), the decay of the EMA (the authors' code: 0.999).
        log: What to log. Default: `Log()`.

    Raises:
        ValueError: If `momentum` is out of range; at an event, if the tortoise has a NaN or Inf; the module is
            unchanged then.
    """

    def __init__(
        self, when: Schedule | Sequence[Schedule] | None = None, momentum: float = 0.999, log: Log | None = None
    ):
        super().__init__(_Reset(), EveryNEpochs(10) if when is None else when, log=log)
        check_momentum(momentum)
        self.momentum, self.keeps_state = momentum, True
        self._swapped: methods.Tortoise | None = None

    def idle_epochs(self, horizon: Horizon) -> float:
        return 0  # the tortoise is updated from the first step on

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._state = self._state_of_method()
        self._method = self._make(pl_module, methods.Loop(optimizers_of(trainer, pl_module)).trained(pl_module))

    def event(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        change: Change = self._method.plan(self.logs.weights)
        return change

    @torch.inference_mode(False)  # clones made here are written to outside of inference mode
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._method is not None or self._state:
            self._swapped = self._method or self._make(pl_module)
            self._swapped.swap()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._swapped is not None:
            self._swapped.swap()
            self._swapped = None

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_validation_end(trainer, pl_module)
        super().on_exception(trainer, pl_module, exception)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the module from copies and pickles."""
        return {**super().__getstate__(), "_swapped": None}

    def _make(self, pl_module: LightningModule, trained: Collection[Tensor] | None = None) -> methods.Tortoise:
        method = methods.Tortoise(pl_module, self.momentum, trained)
        method.load_state_dict(self._state)
        return method
