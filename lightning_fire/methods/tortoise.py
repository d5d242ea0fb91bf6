"""The tortoise of Hare and Tortoise: an EMA of a model, to which the model is reset (Lee et al., ICML 2024)."""

from collections.abc import Collection, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from lightning_fire._private import lerp_
from lightning_fire.distributed import gathered
from lightning_fire.functional.checks import precise
from lightning_fire.methods.base.change import Change, new_values, require_finite, with_report
from lightning_fire.methods.base.method import Attached
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.reset import trained_tensors
from lightning_fire.methods.initial_values import tensors_of
from lightning_fire.where.argument import check_model


class Tortoise(Attached):
    """Keeps an exponential moving average (EMA) of a model and resets the model to it.

    The model is the hare, its EMA the tortoise: θ' ← μ·θ' + (1 − μ)·θ after each optimizer step, for trainable
    parameters and their floating-point buffers, and θ ← θ' when `reset_` is called. Optimizer state stays.

    Args:
        model: Any module; the tortoise starts with its current values.
        momentum: μ in [0, 1), decay of the EMA (the authors' code: 0.999).
        trained: The parameters that optimizers train. Default: those with `requires_grad`.

    Attributes:
        hare: The tensors of the model, by name.
        tortoise: Their EMA, by name, in float32 at least: in bfloat16 most steps would round to nothing.

    Raises:
        ValueError: If `momentum` is out of range.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> both = Tortoise(model, momentum=0.75)
        >>> before = model.weight.item()
        >>> with torch.no_grad():
        ...     _ = model.weight.add_(4.0)  # an optimizer step
        >>> both.after_step()
        >>> _ = both.reset_()
        >>> round(model.weight.item() - before, 4)
        1.0
    """

    def __init__(self, model: nn.Module, momentum: float = 0.999, trained: Collection[Tensor] | None = None):
        check_momentum(momentum)
        check_model(model)
        self.model, self.momentum = model, momentum
        tensors, _ = trained_tensors(model, trained)
        self.hare = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
        self.tortoise = {name: precise(tensor.clone()) for name, tensor in self.hare.items()}
        self._away: dict[str, Tensor] = {}  # values of the hare while the model has those of the tortoise

    @torch.no_grad()
    def after_step(self) -> None:
        """Update the tortoise."""
        lerp_(list(self.tortoise.values()), list(map(precise, self.hare.values())), 1 - self.momentum)

    def held(self) -> list[Tensor]:
        """Return the tensors of the model."""
        return list(self.hare.values())

    def reset_(self) -> Report:
        """Reset the model to the tortoise, in place.

        Returns:
            Report on the weights that `Weights()` selects, see `fire_`.

        Raises:
            ValueError: If the tortoise has a NaN or Inf. The model is unchanged then.
        """
        return self.plan().make()

    def plan(self, measure: bool = True) -> Change:
        """Plan the change of `reset_`."""
        require_finite(self.tortoise)
        tensors = tensors_of(self.model)
        values = new_values((tensors[name], gathered(value)) for name, value in self.tortoise.items())
        return with_report(Change(values), self.model, measure)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the values of model and tortoise, e.g. to evaluate the tortoise; call it again to undo."""
        away = {} if self._away else {name: tensor.clone() for name, tensor in self.hare.items()}
        values, tensors = self._away or self.tortoise, tensors_of(self.model)
        change = Change({tensors[name]: values[name] for name in self.hare})
        change.followed_by(partial(setattr, self, "_away", away)).make()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tortoise by name, copies on the CPU."""
        return {name: tensor.cpu().clone() for name, tensor in self.tortoise.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`. Tensors not in it, or of another size, keep the values of the model."""
        for name in self.tortoise.keys() & state.keys():
            if self.tortoise[name].shape == state[name].shape:
                self.tortoise[name].copy_(state[name])


def check_momentum(momentum: float) -> None:
    """Check the momentum."""
    if not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must be in [0, 1), got {momentum}")
