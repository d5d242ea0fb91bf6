"""L2 Init as a callback: a pull towards the initial values (Kumar et al., 2023)."""

from lightning.pytorch import LightningModule

from lightning_fire import methods
from lightning_fire.callbacks.base.initial_values import KeptInitialValues
from lightning_fire.callbacks.base.penalty import PenaltyCallback
from lightning_fire.where import Parameters
from lightning_fire.where.argument import checked


class L2Init(PenaltyCallback):
    """Adds λ·‖θ − θ₀‖² to the loss, θ₀ being the initial values.

    Logs `l2_init/penalty`, λ included, at the end of each epoch in which it acts.

    Args:
        strength: λ, the factor of ‖θ − θ₀‖². The paper's tuned values belong to λ/2 in its authors' code: halve them.
        start_chunk: Number of changes of the data before which it does nothing (paper, warm start: 1).
        where: The parameters to act on. Default: `Parameters()`, all.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no parameter.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    name = "l2_init"

    def __init__(self, strength: float, start_chunk: int = 0, where: Parameters | None = None):
        super().__init__(strength, start_chunk)
        self.where = checked(where, Parameters())
        self.initial = KeptInitialValues()

    def make(self, pl_module: LightningModule) -> methods.L2Init:
        return methods.L2Init(pl_module, self.strength, self.where, self.initial.values)
