"""Weight projection, the second half of Normalize-and-Project (Lyle et al., NeurIPS 2024)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.distributed import to_list, warn
from lightning_fire.functional.projection import frobenius_norm, project_to_norm
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import Attached, StepMethod
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.normalized import normalization_layers


@dataclass(frozen=True)
class WeightProjection(StepMethod):
    """Rescales each weight to its initial Frobenius norm after each optimizer step.

    If a normalization layer follows, the norm of a weight does not change the output, but a larger weight has a smaller
    gradient, and so a lower effective learning rate. With normalization layers in the network this is
    Normalize-and-Project. Logs nothing.

    Args:
        where: The weights to rescale. Default: every Linear and convolution weight except the last one in module order,
            assumed to be the output layer.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 1))
        >>> projection = WeightProjection().attach(model)
        >>> before = model[0].weight.norm()
        >>> with torch.no_grad():
        ...     _ = model[0].weight.mul_(2.0)  # an optimizer step
        >>> projection.after_step()
        >>> bool(torch.isclose(model[0].weight.norm(), before))
        True
    """

    name: ClassVar[str] = "weight_projection"
    kind: ClassVar[Weights] = Weights()

    where: Weights | None = None

    def table(self, model: nn.Module) -> str:
        """Show the weights that it rescales."""
        if self.where is not None:
            return super().table(model)
        return f"WeightProjection rescales {', '.join(view.name for view in weights_but_the_output(model))}"

    def begin(self, model: nn.Module, training: Loop) -> "_Projection":
        """Select the weights and measure their norms; warn if the model has no normalization layer."""
        trained = training.trained(model)
        weights = weights_but_the_output(model, trained) if self.where is None else self.where.select(model, trained)
        if not normalization_layers(model):
            warn(
                f"{type(model).__name__} has no normalization layer: fixing the norms of its weights limits what it can"
                " represent, and does not fix its effective learning rate. Put a LayerNorm before each nonlinearity.",
                model,
            )
        return _Projection(weights)


class _Projection(Attached):
    """Weight projection attached to a model.

    Attributes:
        weights: The weights, as views.
        norms: Their norms at the start, by name.
    """

    def __init__(self, weights: Sequence[WeightView]):
        self.weights = weights
        norms = to_list([frobenius_norm(view.grid()) for view in weights])
        self.norms = {view.name: norm for view, norm in zip(weights, norms, strict=True)}

    @torch.no_grad()
    def after_step(self) -> None:
        """Rescale the weights, in place."""
        for view in self.weights:
            grid = view.grid()
            grid.copy_(project_to_norm(grid, self.norms[view.name]))

    def held(self) -> list[Tensor]:
        """Return the weights."""
        return [view.parameter for view in self.weights]

    def state_dict(self) -> dict[str, Any]:
        """Return the norms."""
        return {"norms": dict(self.norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the norms. Weights not in the state keep their current ones."""
        self.norms |= {name: norm for name, norm in state.get("norms", {}).items() if name in self.norms}


def weights_but_the_output(model: nn.Module, trained: Collection[Tensor] | None = None) -> Sequence[WeightView]:
    """Return every Linear and convolution weight of a model except the last one in module order."""
    weights = Weights(preset="cnn", vectors=True).select(model, trained)
    if len(weights) < 2:
        raise ValueError(
            f"{type(model).__name__} has no weight but {weights[0].name}, which is taken for its output layer: say"
            ' which to rescale, where=Weights(preset="cnn", vectors=True)'
        )
    return weights[:-1]
