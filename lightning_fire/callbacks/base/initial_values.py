"""The values that a module had when its first fit began, kept over resumes."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from lightning_fire.methods.initial_values import initial_values, tensors_of


class KeptInitialValues:
    """The values that parameters and buffers have when the first fit of a module begins, on the CPU by name.

    They are those in the checkpoint if it has them; without a checkpoint those of the module when everything is set
    up, as layers of `configure_model` do not exist before; otherwise those from before the checkpoint, of rank 0.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] | None = None
        self._settled = False  # values are known to be right

    def take_before_checkpoint(self, module: nn.Module) -> None:
        """Take the values of a module, unless those of an earlier fit are known."""
        if not self._settled:
            self.values = initial_values(module)

    def load(self, values: dict[str, Tensor] | None) -> None:
        """Take the values from a checkpoint."""
        if values is not None:
            self.values, self._settled = values, True

    def complete(self, trainer: Trainer, module: LightningModule) -> None:
        """Settle the values, equal on every rank."""
        if not self._settled:
            own = initial_values(module) if trainer.ckpt_path is None else self.values
            self.values = trainer.strategy.broadcast(own)
        known = {name: tensor.shape for name, tensor in (self.values or {}).items()}
        if unknown := sorted(name for name, tensor in tensors_of(module).items() if known.get(name) != tensor.shape):
            why = (
                "they were not in the module in an earlier fit of this callback. Make a new callback for a new training"
                if trainer.ckpt_path is None
                else "the checkpoint was written without this callback, and the layers are made in configure_model() or"
                " setup(). Make them in __init__, or use the callback from the beginning"
            )
            names = f"{', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}"
            raise MisconfigurationException(f"The initial values of {names} are not known: {why}, or use fresh_seed=0.")
        self._settled = True
