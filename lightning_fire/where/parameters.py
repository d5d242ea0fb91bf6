"""Which parameters of a model to act on, whatever their shape."""

from torch import nn

from lightning_fire.where.candidates import plain
from lightning_fire.where.patterns import ByName


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

    def select(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """Apply the selection to a model.

        Args:
            module: Any module, compiled or not.

        Returns:
            The parameters by name, in module order; names without `torch.compile`'s prefix.

        Raises:
            ValueError: If nothing is selected, or a pattern matches no parameter.
        """
        named = {plain(name): parameter for name, parameter in module.named_parameters()}
        self.check(list(named), "parameter")
        taken = {
            name: parameter for name, parameter in named.items() if parameter.requires_grad and not self.refusal(name)
        }
        if not taken:
            raise ValueError(f"{self} selects no parameter of {type(module).__name__}: it has {len(named)}")
        return taken
