"""Weight projection, the second half of Normalize-and-Project (Lyle et al., NeurIPS 2024)."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from lightning_fire.distributed import warn
from lightning_fire.functional.projection import frobenius_norm, project_to_norm
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.argument import check_model, checked
from lightning_fire.where.normalized import normalization_layers


class WeightProjection:
    """Rescales each weight to its initial Frobenius norm after each optimizer step.

    Where a normalisation layer follows, the size of a weight does not change the output, but a larger weight has a
    smaller gradient, and so a lower effective learning rate. The normalisation is the network's part.

    Args:
        model: Any module; warns if it has no normalisation layer.
        where: The weights to rescale. Default: every Linear and convolution weight but the last one in module order,
            which is taken for the output layer.

    Attributes:
        weights: The weights, as views.
        norms: Their norms at the start, by name.

    Raises:
        ValueError: If it finds no weights to rescale.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 1))
        >>> projection = WeightProjection(model)
        >>> before = model[0].weight.norm()
        >>> with torch.no_grad():
        ...     _ = model[0].weight.mul_(2.0)  # an optimizer step
        >>> projection.step()
        >>> bool(torch.isclose(model[0].weight.norm(), before))
        True
    """

    def __init__(self, model: nn.Module, where: Weights | None = None):
        check_model(model)
        default = Weights(preset="cnn", vectors=True)
        self.weights = weights_but_the_output(model) if where is None else checked(where, default).select(model)
        self.norms = {view.name: float(frobenius_norm(view.grid())) for view in self.weights}
        if not normalization_layers(model):
            warn(
                f"{type(model).__name__} has no normalisation layer: fixing the norms of its weights limits what it can"
                " represent, and does not fix its effective learning rate. Put a LayerNorm before each nonlinearity.",
                model,
            )

    @torch.no_grad()
    def step(self) -> None:
        """Rescale the weights, in place; to be called after each optimizer step."""
        for view in self.weights:
            grid = view.grid()
            grid.copy_(project_to_norm(grid, self.norms[view.name]))

    def state_dict(self) -> dict[str, float]:
        """Return the norms by name."""
        return dict(self.norms)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore what `state_dict` returned. Weights not in it keep their present norms."""
        self.norms |= {name: norm for name, norm in state.items() if name in self.norms}


def weights_but_the_output(model: nn.Module) -> Sequence[WeightView]:
    """Return every Linear and convolution weight of a model but the last one in module order."""
    weights = Weights(preset="cnn", vectors=True).select(model)
    if len(weights) < 2:
        raise ValueError(
            f"{type(model).__name__} has no weight but {weights[0].name}, which is taken for its output layer: say"
            ' which to rescale, where=Weights(preset="cnn", vectors=True)'
        )
    return weights[:-1]
