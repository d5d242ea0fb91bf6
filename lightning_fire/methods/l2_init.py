"""L2 Init: a penalty that pulls parameters towards their initial values (Kumar et al., 2023)."""

from collections.abc import Mapping

from torch import Tensor, nn

from lightning_fire.functional import l2_init_gradient, l2_init_penalty
from lightning_fire.methods.initial_values import initial_values
from lightning_fire.methods.penalty import Penalty
from lightning_fire.where import Parameters
from lightning_fire.where.argument import check_model, checked


class L2Init(Penalty):
    """Adds λ·‖θ − θ₀‖² to the loss, θ₀ being the initial values.

    Args:
        model: Any module.
        strength: λ, the factor of ‖θ − θ₀‖², at least 0.
        where: The parameters it is on. Default: `Parameters()`, all.
        initial: θ₀ by name, see `initial_values`. Default: the present values.

    Raises:
        ValueError: If `strength` is below 0, or `where` matches no parameter.
        KeyError: If `initial` lacks a parameter.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> penalty = L2Init(model, strength=0.5)
        >>> _ = nn.init.constant_(model.bias, 0.0), penalty.targets["bias"].fill_(1.0)
        >>> penalty.penalty()
        1.0
    """

    def __init__(
        self,
        model: nn.Module,
        strength: float,
        where: Parameters | None = None,
        initial: Mapping[str, Tensor] | None = None,
    ):
        check_model(model)
        super().__init__(dict(checked(where, Parameters()).select(model).items()), strength)
        initial = initial_values(model) if initial is None else initial
        owned = {parameter: name for name, parameter in model.named_parameters()}
        self.targets = {name: initial[owned[p]].to(p.device) for name, p in self.parameters.items()}

    def penalty_of(self, name: str, weight: Tensor) -> Tensor:
        """Return ‖θ − θ₀‖² of one parameter, a scalar."""
        return l2_init_penalty(weight, self.targets[name])

    def gradient_of(self, name: str, weight: Tensor) -> Tensor:
        """Return 2·(θ − θ₀), of the shape of `weight`."""
        return l2_init_gradient(weight, self.targets[name])
