"""Hare and Tortoise as a callback (Lee et al., ICML 2024)."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire import methods
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.log_options import Log
from lightning_fire.callbacks.base.method import optimizers_of
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.tortoise import check_momentum
from lightning_fire.when import EveryNEpochs, Horizon, Schedule


class HareAndTortoise(EventCallback):
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

    name = "hare_and_tortoise"
    remakes_network = False
    keeps_state = True

    def __init__(
        self, when: Schedule | Sequence[Schedule] | None = None, momentum: float = 0.999, log: Log | None = None
    ):
        super().__init__(EveryNEpochs(10) if when is None else when, log)
        check_momentum(momentum)
        self.momentum = momentum
        self._swapped: methods.Tortoise | None = None

    def idle_epochs(self, horizon: Horizon) -> float:
        return 0  # the tortoise is updated from the first step on

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        with self.selecting(trainer, pl_module):
            self._method = self._make(pl_module)

    def after_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._method.step()

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        change: Change = self._method.plan(self.logs.weights, optimizers_of(trainer, pl_module))
        return change

    @torch.inference_mode(False)  # clones made here are written to outside of inference mode
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._method is not None or self._state:
            self._swapped = self._method or self._make(pl_module)
            self._swapped.swap()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._swapped is not None:
            self._swapped.swap(optimizers_of(trainer, pl_module) if trainer.training or trainer.validating else ())
            self._swapped = None

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_validation_end(trainer, pl_module)
        super().on_exception(trainer, pl_module, exception)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "tortoise": self._state_of_method()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._state = state_dict["tortoise"]

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the module from copies and pickles."""
        return {**super().__getstate__(), "_swapped": None}

    def _make(self, pl_module: LightningModule) -> methods.Tortoise:
        method = methods.Tortoise(pl_module, self.momentum)
        method.load_state_dict(self._state)
        return method
