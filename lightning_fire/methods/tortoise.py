"""The tortoise of Hare and Tortoise: an EMA of a model, to which the model is reset (Lee et al., ICML 2024)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from lightning_fire._private import lerp_
from lightning_fire.distributed import gathered
from lightning_fire.functional.checks import precise
from lightning_fire.methods.base.change import Change, measured, new_values, require_finite
from lightning_fire.methods.base.copies import copies_in
from lightning_fire.methods.base.method import verified
from lightning_fire.methods.base.optimizers import Optimizers, listed
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.selecting import trained_tensors
from lightning_fire.methods.initial_values import tensors_of
from lightning_fire.where.argument import check_model


class Tortoise:
    """Keeps an exponential moving average (EMA) of a model and resets the model to it.

    The model is the hare, its EMA the tortoise: θ' ← μ·θ' + (1 − μ)·θ after each optimizer step, for trainable
    parameters and their floating-point buffers, and θ ← θ' when `reset_` is called. Optimizer state stays.

    Args:
        model: Any module; the tortoise starts with its current values.
        momentum: μ in [0, 1), decay of the EMA (the authors' code: 0.999).

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
        >>> both.step()
        >>> _ = both.reset_()
        >>> round(model.weight.item() - before, 4)
        1.0
    """

    def __init__(self, model: nn.Module, momentum: float = 0.999):
        check_momentum(momentum)
        self.model, self.momentum = model, momentum
        check_model(model)
        tensors, _ = trained_tensors(model)
        self.hare = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
        self.tortoise = {name: precise(tensor.clone()) for name, tensor in self.hare.items()}
        self._away: dict[str, Tensor] = {}  # values of the hare while the model has those of the tortoise

    @torch.no_grad()
    def step(self) -> None:
        """Update the tortoise. Call it after each optimizer step."""
        lerp_(list(self.tortoise.values()), list(map(precise, self.hare.values())), 1 - self.momentum)

    def reset_(self, optimizers: Optimizers = ()) -> Report:
        """Reset the model to the tortoise, in place.

        Args:
            optimizers: The optimizers that train the model: copies of weights in them, such as float32 ones, follow.
                The next steps verify that the weights are not overwritten.

        Returns:
            Report on the weights that `Weights()` selects, see `fire_`.

        Raises:
            ValueError: If the tortoise has a NaN or Inf. The model is unchanged then.
        """
        return self.plan(optimizers=optimizers).apply()

    def plan(self, measure: bool = True, optimizers: Optimizers = ()) -> Change:
        """Plan the change of `reset_`."""
        require_finite(self.tortoise)
        tensors, given = tensors_of(self.model), listed(optimizers)
        pairs = [(tensors[name], gathered(value)) for name, value in self.tortoise.items()]
        copies = copies_in(given, self.model.parameters())
        copied = [(copy, value) for tensor, value in pairs for copy in copies.get(tensor, ())]
        change = verified(Change(new_values(pairs)), self.model, given)
        return measured(replace(change, values=new_values([*pairs, *copied])), self.model, measure)

    @torch.no_grad()
    def swap(self, optimizers: Optimizers = ()) -> None:
        """Exchange the values of model and tortoise, e.g. to evaluate the tortoise; call it again to undo.

        The next steps of given optimizers verify that these are not overwritten.
        """
        away = {} if self._away else {name: tensor.clone() for name, tensor in self.hare.items()}
        values, tensors = self._away or self.tortoise, tensors_of(self.model)
        change = Change({tensors[name]: values[name] for name in self.hare})
        if self._away and (given := listed(optimizers)):
            change = verified(change, self.model, given)
        change.followed_by(partial(setattr, self, "_away", away)).make()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tortoise by name, copies on the CPU."""
        return {name: tensor.cpu().clone() for name, tensor in self.tortoise.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`. Tensors not in it get the values of the model."""
        for name in self.tortoise.keys() & state.keys():
            self.tortoise[name].copy_(state[name])


def check_momentum(momentum: float) -> None:
    """Check the momentum."""
    if not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must be in [0, 1), got {momentum}")
