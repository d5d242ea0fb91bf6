"""Selection of hidden matrices, the weights that Muon steps."""

from collections.abc import Collection

from torch import Tensor, nn

from lightning_fire.where.found import parameters_of
from lightning_fire.where.layers import ComputedWeight, plain
from lightning_fire.where.parameters import selected_parameters
from lightning_fire.where.selection import ByName, Selection
from lightning_fire.where.trained import why_not_trained


class HiddenMatrices(ByName):
    """Selects the trainable weights of Linear, convolution and attention layers except the first and the last one.

    First and last refer to module order; if the data flows in another order, use `exclude`. An embedding counts as the
    first layer if it comes before all others. Embeddings (and weights tied to them), biases, norm scales and parameters
    of other layers are left out.

    Args:
        include: Regular expressions, searched in names such as `layer1.0.conv1.weight`; a weight is taken if a pattern
            matches. Default: all.
        exclude: Regular expressions; a weight is left out if a pattern matches.

    Raises:
        ValueError: If `include` or `exclude` is not a list of regular expressions.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> print(HiddenMatrices().select(net))
        parameter  shape
        0.weight   8×3×3×3  first layer
        0.bias     8        not the weight of a Linear, convolution or attention layer
        1.weight   8×8×3×3  taken
        1.bias     8        not the weight of a Linear, convolution or attention layer
        3.weight   8×8      taken
        3.bias     8        not the weight of a Linear, convolution or attention layer
        4.weight   2×8      last layer
        4.bias     2        not the weight of a Linear, convolution or attention layer
        2 parameters taken
    """

    def select(self, model: nn.Module, trained: Collection[Tensor] | None = None) -> Selection[nn.Parameter]:
        """Apply the selection to a model.

        Args:
            model: Any module.
            trained: The parameters that optimizers step. Default: those with `requires_grad`.

        Returns:
            The weights by name, without `torch.compile`'s prefix. `print` shows a table of the whole model.

        Raises:
            ValueError: If nothing is selected, a pattern matches no weight, or a lazy layer is not initialized yet.
        """
        found = [each for each in parameters_of(model) if each.views and not each.whole.layout.startswith("stacked")]
        layers = [each.parameter for each in found]
        weights = set(layers)
        embeddings = {layer.weight for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)}
        named = {plain(name): parameter for name, parameter in model.named_parameters()}
        first = next((p for p in named.values() if p in embeddings or p in weights), None)
        first = layers[0] if layers and isinstance(layers[0], ComputedWeight) else first
        self.check([name for name, parameter in named.items() if parameter in weights])
        reasons = {}
        for name, parameter in named.items():
            reasons[name] = "not the weight of a Linear, convolution or attention layer"
            if parameter in embeddings:
                reasons[name] = "embedding"
            elif parameter in weights:
                end = "first layer" if parameter is first else "last layer" if parameter is layers[-1] else ""
                reasons[name] = why_not_trained(parameter, trained) or end or self.reason(name)
        selection = selected_parameters(named, reasons)
        if not selection:
            raise ValueError(
                f"{self} selects no weight of {type(model).__name__}: of {len(layers)} Linear, convolution and"
                " attention weights, the first and the last are not hidden"
            )
        return selection
