"""Watches plasticity while a network trains, whatever the method."""

from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base import TimedCallback, log_now
from lightning_fire.callbacks.rewrite import measure
from lightning_fire.when import Clock
from lightning_fire.where import Weights


class PlasticityMonitor(TimedCallback):
    """Logs the deviation from isometry of the weights at the end of epochs, and how often the data has changed.

    Keys: `plasticity/dfi` and `plasticity/dfi_normalized`, means over the weights; the same per layer under
    `plasticity.layers/`; `plasticity/chunk` at the start of each epoch.

    Args:
        where: The weights to watch. Default: `Weights()`.
        every_n_epochs: Measure at the end of every n-th epoch.
        log_layers: Also log each layer by itself.
        name: Prefix of the logged keys in the place of `plasticity`.

    Raises:
        ValueError: If `every_n_epochs` is below 1, or, before training, if `where` matches no weight.
    """

    name = "plasticity"

    def __init__(
        self, where: Weights | None = None, every_n_epochs: int = 1, log_layers: bool = True, name: str | None = None
    ):
        super().__init__(name)
        if every_n_epochs < 1:
            raise ValueError(f"`every_n_epochs` must be at least 1, got {every_n_epochs}")
        self.where = where if where is not None else Weights()
        self.every_n_epochs, self.log_layers = every_n_epochs, log_layers

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.where.select(pl_module)  # raises before training where nothing is matched

    def show_selection(self, pl_module: LightningModule) -> str:
        return ""  # it acts on nothing

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if clock.epoch_start:
            log_now(trainer, {f"{self.name}/chunk": float(clock.chunk)})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        values = measure(self.where.select(pl_module), self.name)
        if not self.log_layers:
            values = {key: value for key, value in values.items() if ".layers/" not in key}
        log_now(trainer, values, at_epoch_end=True)

    @property
    def state_key(self) -> str:
        """Key in the checkpoint: several monitors may stand side by side."""
        return f"PlasticityMonitor({self.where!r})"
