"""Base class of the regularizers: a penalty whose gradient is added before each optimizer step."""

from lightning.pytorch import LightningModule, Trainer
from torch.optim import Optimizer

from lightning_fire._lightning import loss_scaler
from lightning_fire._private import unscales_gradients
from lightning_fire.callbacks.base.from_chunk import FromChunkCallback
from lightning_fire.callbacks.base.log import log_now
from lightning_fire.methods.penalty import Penalty


class PenaltyCallback(FromChunkCallback):
    """Base class of regularizers: adds the gradient of a penalty to that of the loss, once per optimizer step.

    This equals adding the penalty to the loss, without its graph: after gradient accumulation and the unscaling of
    mixed precision, before gradient clipping. A step whose batch gave no gradients is not changed. It does nothing
    before the data has changed `start_chunk` times.

    Subclasses implement `make`. Logs `{name}/penalty`, strength included, at the end of each epoch.
    """

    name = "penalty"

    def __init__(self, strength: float, start_chunk: int = 0):
        super().__init__(start_chunk)
        if strength < 0:
            raise ValueError(f"`strength` must be at least 0, got {strength}")
        self.strength = strength

    def make(self, pl_module: LightningModule) -> Penalty:
        """Return the penalty."""
        raise NotImplementedError

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        with self.selecting(trainer, pl_module):
            self._method = self.make(pl_module)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self.acts_now:
            stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            self._method.add_gradients(stepped, loss_scale(trainer, optimizer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.acts_now:
            log_now(trainer, {f"{self.name}/penalty": self._method.penalty()}, at_epoch_end=True)


def loss_scale(trainer: Trainer, optimizer: Optimizer) -> float:
    """Return the loss scale still contained in the gradients: fused optimizers remove it themselves."""
    scaler = loss_scaler(trainer)
    return scaler.get_scale() if scaler is not None and unscales_gradients(optimizer) else 1.0
