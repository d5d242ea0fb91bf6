"""Which weights of a model are hidden matrices: those that Muon is for."""

from torch import nn

from lightning_fire.where.layers import candidates_of, plain
from lightning_fire.where.parameters import ParameterSelection
from lightning_fire.where.selection import ByName


class HiddenMatrices(ByName):
    """Selects the trainable weights of Linear, convolution and attention layers, but for the first and the last one.

    The first and the last are those in module order; where that is not the order of the data, say so by `exclude`. An
    embedding counts as the first layer if it comes before all others. Embeddings (and weights tied to them), biases,
    norm scales and parameters that belong to no such layer are left out.

    Args:
        include: Regular expressions, searched in names such as `layer1.0.conv1.weight`; a weight is taken if some
            pattern matches. Default: all are.
        exclude: Regular expressions; a weight is left out if some pattern matches.

    Raises:
        ValueError: If `include` or `exclude` is no list of regular expressions.

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

    def select(self, module: nn.Module) -> ParameterSelection:
        """Apply the selection to a model.

        Args:
            module: Any module, compiled or not.

        Returns:
            The weights by name, without `torch.compile`'s prefix; they also print as a table of the whole model.

        Raises:
            ValueError: If nothing is selected, a pattern matches no weight, or a lazy layer is not initialised yet.
        """
        layers = [candidate.views[0].parameter for candidate in candidates_of(module) if candidate.views]
        embeddings = {layer.weight for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)}
        named = {plain(name): parameter for name, parameter in module.named_parameters()}
        ids = {id(parameter) for parameter in layers}
        first = next((p for p in named.values() if p in embeddings or id(p) in ids), None)
        if layers and layers[0] not in set(named.values()):  # parametrised: no parameter by itself
            first = layers[0]
        self.check([name for name, parameter in named.items() if id(parameter) in ids])
        refusals = {}
        for name, parameter in named.items():
            if parameter in embeddings:
                refusals[name] = "embedding"
            elif id(parameter) not in ids:
                refusals[name] = "not the weight of a Linear, convolution or attention layer"
            elif not parameter.requires_grad:
                refusals[name] = "frozen (requires_grad=False)"
            elif parameter is first:
                refusals[name] = "first layer"
            elif parameter is layers[-1]:
                refusals[name] = "last layer"
            else:
                refusals[name] = self.refusal(name)
        selection = ParameterSelection(named, refusals)
        if not selection:
            raise ValueError(
                f"{self} selects no weight of {type(module).__name__}: of {len(layers)} Linear, convolution and"
                " attention weights, the first and the last are not hidden"
            )
        return selection
