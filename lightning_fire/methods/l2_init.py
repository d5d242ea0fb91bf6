"""L2 Init: a penalty that pulls parameters towards their initial values (Kumar et al., 2023)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from lightning_fire.distributed import to_device
from lightning_fire.functional import l2_init_gradient, l2_init_penalty
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.penalty import Penalty, PenaltyMethod
from lightning_fire.methods.initial_values import initial_of
from lightning_fire.where import Parameters


@dataclass(frozen=True)
class L2Init(PenaltyMethod):
    """Adds λ·‖θ − θ₀‖² to the loss, where θ₀ are the initial values. Logs `penalty`, λ included.

    Args:
        strength: λ, the factor of ‖θ − θ₀‖², at least 0. The FIRE paper's tuned values belong to λ/2 in its authors'
            code: halve them.
        where: The penalized parameters. Default: `Parameters()`, all.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If `strength` is below 0.

    Example:
        >>> from lightning_fire.methods import Loop, initial_values
        >>> model = nn.Linear(2, 2)
        >>> penalty = L2Init(strength=0.5).attach(model, Loop(initial=initial_values(model)))
        >>> _ = nn.init.constant_(model.bias, 1.0), penalty.targets["bias"].fill_(0.0)
        >>> penalty.metrics()
        {'penalty': 1.0}
    """

    name: ClassVar[str] = "l2_init"
    default_where: ClassVar[Parameters] = Parameters()
    needs_initial_values = True

    strength: float
    where: Parameters | None = None

    def begin(self, model: nn.Module, training: Loop) -> "_Pull":
        """Select the parameters and their initial values."""
        return _Pull(model, self.strength, self.selection, training)


class _Pull(Penalty):
    """L2 Init attached to a model.

    Attributes:
        targets: θ₀ by name.
    """

    def __init__(self, model: nn.Module, strength: float, where: Parameters, training: Loop):
        super().__init__(dict(where.select(model, training.trained(model)).items()), strength)
        initial = initial_of(model, training)
        owned = {parameter: name for name, parameter in model.named_parameters()}
        self.targets = {name: to_device(initial[owned[p]], p.device) for name, p in self.parameters.items()}

    def penalty_of(self, name: str, weight: Tensor) -> Tensor:
        """Return ‖θ − θ₀‖² of one parameter, a scalar."""
        return l2_init_penalty(weight, self.targets[name])

    def gradient_of(self, name: str, weight: Tensor) -> Tensor:
        """Return 2·(θ − θ₀), of the shape of `weight`."""
        return l2_init_gradient(weight, self.targets[name])
