"""Which parameters of a model to act on, whatever their shape."""

from collections.abc import Mapping

from torch import nn

from lightning_fire.where.layers import plain
from lightning_fire.where.selection import ByName, columns


class ParameterSelection(dict[str, nn.Parameter]):
    """The selected parameters by name, in module order. `print` shows every parameter, taken or why not.

    Args:
        named: Every parameter of the model, by name.
        refusals: By name, why it is not taken; empty for those that are.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], refusals: Mapping[str, str]):
        super().__init__({name: parameter for name, parameter in named.items() if not refusals[name]})
        self.rows = [
            (name, "×".join(map(str, parameter.shape)), refusals[name] or "taken") for name, parameter in named.items()
        ]

    def __str__(self) -> str:
        return f"{columns([('parameter', 'shape', ''), *self.rows])}\n{len(self)} parameters taken"


class Parameters(ByName):
    """Selects the trainable parameters of a model: weights, biases, norm scales and all others; a tied one once.

    Args:
        include: Regular expressions, searched in names such as `layer1.0.bn1.weight`; a parameter is taken if some
            pattern matches. Default: all are.
        exclude: Regular expressions; a parameter is left out if some pattern matches.

    Raises:
        ValueError: If `include` or `exclude` is no list of regular expressions.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
        >>> list(Parameters(exclude=["bias"]).select(net))
        ['0.weight', '1.weight']
    """

    def select(self, module: nn.Module) -> ParameterSelection:
        """Apply the selection to a model.

        Args:
            module: Any module, compiled or not.

        Returns:
            The parameters by name, without `torch.compile`'s prefix; they also print as a table of the whole model.

        Raises:
            ValueError: If nothing is selected, or a pattern matches no parameter.
        """
        named = {plain(name): parameter for name, parameter in module.named_parameters()}
        self.check(list(named), "parameter")
        refusals = {
            name: self.refusal(name) if parameter.requires_grad else "frozen (requires_grad=False)"
            for name, parameter in named.items()
        }
        selection = ParameterSelection(named, refusals)
        if not selection:
            raise ValueError(f"{self} selects no parameter of {type(module).__name__}: it has {len(named)}")
        return selection
