"""Weight projection as a callback, the second half of Normalize-and-Project (Lyle et al., NeurIPS 2024)."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_fire import methods
from lightning_fire.callbacks.base.method import MethodCallback
from lightning_fire.methods.weight_projection import weights_but_the_output
from lightning_fire.where import Weights
from lightning_fire.where.argument import checked


class WeightProjection(MethodCallback):
    """Rescales each weight to its initial norm after each optimizer step, see `methods.WeightProjection`.

    For a network with a normalisation layer before each nonlinearity: together they are Normalize-and-Project. The
    initial norms are those at the start of the first fit; the checkpoint keeps them. Logs nothing.

    Args:
        where: The weights to rescale. Default: every Linear and convolution weight but the last one in module order,
            which is assumed to be the output layer.

    Raises:
        ValueError: When training starts, if it finds no weights to rescale.
    """

    name = "weight_projection"
    keeps_state = True

    def __init__(self, where: Weights | None = None):
        super().__init__()
        self.where = None if where is None else checked(where, Weights())

    def show_selection(self, pl_module: LightningModule) -> str:
        if self.where is not None:
            return super().show_selection(pl_module)
        return f"WeightProjection rescales {', '.join(view.name for view in weights_but_the_output(pl_module))}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        with self.selecting(trainer, pl_module):
            self._method = methods.WeightProjection(pl_module, self.where)
        self._method.load_state_dict(self._state)

    def after_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._method.step()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "norms": self._state_of_method()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._state = state_dict["norms"]
