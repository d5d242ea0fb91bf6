"""Selection of parameters of any shape, by name."""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from lightning_fire.where.layers import plain
from lightning_fire.where.selection import ByName, Row, Selection
from lightning_fire.where.trained import UNTRAINED, why_not_trained


class Parameters(ByName):
    """Selects all trainable parameters of a model, biases and normalization scales included; tied ones once.

    Args:
        include: Regular expressions, searched in names such as `layer1.0.bn1.weight`; a parameter is taken if a pattern
            matches. Default: all.
        exclude: Regular expressions; a parameter is left out if a pattern matches.

    Raises:
        ValueError: If `include` or `exclude` is not a list of regular expressions.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
        >>> Parameters(exclude=["bias"]).select(net).names
        ['0.weight', '1.weight']
    """

    def select(self, model: nn.Module, trained: Collection[Tensor] | None = None) -> Selection[nn.Parameter]:
        """Apply the selection to a model.

        Args:
            model: Any module.
            trained: The parameters that optimizers step. Default: those with `requires_grad`.

        Returns:
            The parameters by name, without `torch.compile`'s prefix. `print` shows a table of the whole model.

        Raises:
            ValueError: If nothing is selected, or a pattern matches no parameter.
        """
        named = {plain(name): parameter for name, parameter in model.named_parameters()}
        self.check(list(named), "parameter")
        reasons = {name: self.reason(name) or why_not_trained(parameter, trained) for name, parameter in named.items()}
        selection = selected_parameters(named, reasons)
        if not selection:
            untrained = f", {len(selection.untrained)} {UNTRAINED}" if selection.untrained else ""
            raise ValueError(f"{self} selects no parameter of {type(model).__name__}: it has {len(named)}{untrained}")
        return selection


def selected_parameters(named: Mapping[str, nn.Parameter], reasons: Mapping[str, str]) -> Selection[nn.Parameter]:
    """Return the selection of the parameters without a reason."""
    taken = {name: parameter for name, parameter in named.items() if not reasons[name]}
    rows = [Row(name, tuple(each.shape), "", reasons[name] or "taken") for name, each in named.items()]
    untrained = [name for name, reason in reasons.items() if reason == UNTRAINED]
    return Selection(taken, rows, ("parameter", "shape", ""), f"{len(taken)} parameters", untrained=untrained)
