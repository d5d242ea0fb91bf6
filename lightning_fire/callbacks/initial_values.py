"""Values of a module at the start of its first fit, kept across resumes."""

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lightning_fire.methods.initial_values import initial_values, unknown_in


class KeptInitialValues:
    """Values of parameters and buffers at the start of the first fit of a module, on the CPU by name.

    Their source is the checkpoint, if it has them; without a checkpoint, the module after setup, as layers of
    `configure_model` do not exist earlier; otherwise the module of rank 0 before the checkpoint was loaded.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] | None = None
        self._settled = False  # values are final

    def take_before_checkpoint(self, module: nn.Module) -> None:
        """Copy the values of a module, unless those of an earlier fit are known."""
        if not self._settled:
            self.values = initial_values(module)

    def add_later(self, module: nn.Module) -> None:
        """Copy the values of tensors that were added to the module, or replaced by larger ones, during the fit."""
        if later := set(unknown_in(self.values or {}, module)):
            found = {name: value for name, value in initial_values(module).items() if name in later}
            self.values = {**(self.values or {}), **found}

    def load(self, values: dict[str, Tensor] | None) -> None:
        """Load the values from a checkpoint."""
        if values is not None:
            self.values, self._settled = values, True

    def complete(self, trainer: Trainer, module: LightningModule, resumed: bool) -> None:
        """Make the values final, equal on every rank; `resumed`: whether this fit has loaded a checkpoint."""
        if not self._settled:
            own = self.values if resumed else initial_values(module)
            self.values = trainer.strategy.broadcast(own)
        if unknown := unknown_in(self.values or {}, module):
            why = (
                "they were not in the module in an earlier fit of this callback. Make a new callback for a new training"
                if not resumed
                else "the checkpoint was written without this callback, and the layers are made in configure_model() or"
                " setup(). Make them in __init__, or use the callback from the first fit on"
            )
            names = f"{', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}"
            raise MisconfigurationException(f"The initial values of {names} are not known: {why}, or use fresh_seed=0.")
        self._settled = True
