"""Full reset: back to the initial values, or to new random values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_fire.functional import fire
from lightning_fire.functional.orthogonal import Scale
from lightning_fire.methods.base.change import Change, new_values, with_report
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.optimizers import OptimizerPolicy, Optimizers
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.reset import ResetMethod, trained_tensors
from lightning_fire.methods.initial_values import check_values, tensors_of
from lightning_fire.where import Parameters, Weights
from lightning_fire.where.argument import check_model, checked


@dataclass(frozen=True)
class FullReset(ResetMethod):
    """Resets every parameter and buffer, except those that are frozen or that no optimizer trains.

    Other methods raise an error for weights with a NaN or Inf. This one restores a diverged network, except with
    `optimizer_state="keep"`, as the optimizer's moments have diverged too.

    Args:
        fresh_seed: Seed of new values by each layer's `reset_parameters`; the number of the event is added. The same on
            every rank. If all runs of a comparison use one seed, its intervals exclude the variance of the draw.
            Default: reset to the values of the model when it was new, as in the paper.
        optimizer_state: Whose optimizer state to drop: `keep`, `touched` or `all`.
        where: The parameters to reset, such as those of a head. Default: every trainable parameter and all buffers,
            except buffers of a submodule whose parameters are all frozen or untrained.
        target: `initial`, or `isometry`: the weights that FIRE would replace become the nearest isometries of their
            initial values, with the paper's scale: a control for FIRE that ignores the trained weights.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.
    """

    name: ClassVar[str] = "full_reset"
    kind: ClassVar[Parameters] = Parameters()

    fresh_seed: int | None = None
    optimizer_state: OptimizerPolicy = "touched"
    where: Parameters | None = None
    target: Literal["initial", "isometry"] = "initial"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in ("initial", "isometry"):
            raise ValueError(f"`target` must be 'initial' or 'isometry', got {self.target!r}")

    def table(self, model: nn.Module) -> str:
        """Describe the parameters in a table, or their number."""
        if self.where is not None:
            return super().table(model)
        return f"FullReset acts on every parameter and buffer, {len(trained_tensors(model, None)[0])} tensors."

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Compute the values of the reset."""
        tensors, left_out = trained_tensors(model, training.trained(model), self.where)
        values = self.target_values(model, training, tensors)
        values = isometric_values(model, values) if self.target == "isometry" else values
        change = Change(new_values((tensor, values[name]) for name, tensor in tensors.items()))
        return with_report(change, model, training.measure, left_out)


def full_reset_(
    model: nn.Module | Sequence[nn.Module],
    target: Mapping[str, Tensor],
    where: Parameters | None = None,
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    averages: Any = (),
) -> Report:
    """Reset the unfrozen tensors of a model to given values, in place. Function form of `FullReset`.

    Args:
        model: Any module, or a list of them, which change together, see `EventMethod.__call__`.
        target: The values by name: `initial_values(model)`, called when the model was new, or
            `fresh_values(model, seed)`. The same on all ranks.
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains stay, with a
            warning.
        averages: One or several averages of the weights, which restart from the new weights, see `Loop`.

    Returns:
        Report on the weights that `Weights()` selects, see `fire_`.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If `where` matches no parameter, or a value has another shape. The model is unchanged then.
        KeyError: If `target` lacks a parameter or buffer.

    Example:
        >>> from lightning_fire.methods import initial_values
        >>> model = nn.Linear(2, 3)
        >>> initial = initial_values(model)
        >>> _ = nn.init.zeros_(model.weight)
        >>> report = full_reset_(model, initial)
        >>> bool((model.weight == initial["weight"]).all())
        True
    """
    check_values(target)
    return FullReset(None, optimizer_state, where)(model, Loop(optimizers, initial=target, averages=averages))


@torch.no_grad()
def isometric_values(
    model: nn.Module, values: Mapping[str, Tensor], where: Weights | None = None, scale: Scale = "paper"
) -> dict[str, Tensor]:
    """Replace weights among the values of a model by their nearest isometries, as FIRE does with ten steps.

    A full reset to the isometric initial values is a control for FIRE: same isometry and scale, no memory.

    Args:
        model: The model, which is not changed.
        values: Values by name, such as `initial_values(model)`.
        where: The weights to replace. Default: `Weights()`, those that FIRE replaces.
        scale: Scale of the new weights, see `functional.fire`.

    Returns:
        New values of all names.

    Raises:
        ValueError: If `where` matches no weight, or a value has a NaN or Inf.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> weight = isometric_values(model, {"weight": torch.diag(torch.tensor([2.0, 1.0]))})["weight"]
        >>> weight.round(decimals=2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    found = dict(values)
    names = {tensor: name for name, tensor in tensors_of(model).items()}
    check_model(model)
    for view in checked(where, Weights()).select(model):
        if (name := names[view.parameter]) in found:
            found[name] = found[name].clone()  # of a fused weight, once for each part
            part = view.of(found[name])
            part.write(fire(part.read(), scale=scale, groups=view.groups))
    return found
