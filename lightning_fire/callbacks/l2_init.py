"""L2 Init: a pull towards the initial values (Kumar et al., 2023)."""

from collections.abc import Mapping, Sequence

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn import Parameter

from lightning_fire.callbacks.base.initial_values import WithInitialValues
from lightning_fire.callbacks.base.penalty import PenaltyCallback
from lightning_fire.functional import l2_init_gradient, l2_init_penalty
from lightning_fire.where import Parameters


class L2Init(WithInitialValues, PenaltyCallback):
    """Adds λ·‖θ − θ₀‖² to the loss, θ₀ being the initial values.

    Logs `l2_init/penalty`, λ included, at the end of each epoch in which it acts.

    Args:
        strength: λ, the factor of ‖θ − θ₀‖². The paper's tuned values belong to λ/2 in its authors' code: halve them.
        start_chunk: Do nothing before the data has changed this often (paper, warm start: 1).
        where: The parameters it is on. Default: `Parameters()`, all.
        name: Prefix of the logged keys in the place of `l2_init`.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no parameter.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    name = "l2_init"

    def __init__(self, strength: float, start_chunk: int = 0, where: Parameters | None = None, name: str | None = None):
        super().__init__(strength, start_chunk, name)
        self.where = where if where is not None else Parameters()
        self._targets: dict[str, Tensor] = {}

    def describe(self) -> str:
        return f"{super().describe()}, {self.where!r}"

    def select(self, pl_module: LightningModule) -> Mapping[str, Parameter]:
        return self.where.select(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        owned = {parameter: name for name, parameter in pl_module.named_parameters()}
        self._targets = {
            name: self.initial.values[owned[parameter]].to(parameter.device)
            for name, parameter in self._selected.items()
        }

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._targets = {}  # copies on the device

    def penalty(self, name: str, weight: Tensor) -> Tensor:
        return l2_init_penalty(weight, self._targets[name])

    def gradients(self, names: Sequence[str], weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return [l2_init_gradient(weight, self._targets[name]) for name, weight in zip(names, weights, strict=True)]
