"""The rule, shared by all selections, that decides which parameters are trained."""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from torch import Tensor

from lightning_fire.where.selection import shorten

FROZEN = "frozen (requires_grad=False)"
UNTRAINED = "not trained by any optimizer"


def why_not_trained(parameter: Tensor, trained: Collection[Tensor] | None = None) -> str:
    """Return why a parameter is not trained, `FROZEN` or `UNTRAINED`; empty if it is.

    Args:
        parameter: Any parameter.
        trained: The parameters that optimizers step. Default: all with `requires_grad`.
    """
    if not parameter.requires_grad:
        return FROZEN
    return "" if trained is None or parameter in as_set(trained) else UNTRAINED


def as_set(trained: Collection[Tensor]) -> AbstractSet[Tensor]:
    """Return tensors as a set: `in` of a list compares values."""
    return trained if isinstance(trained, AbstractSet) else frozenset(trained)


def leaves_out(names: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return sentences on parameters left out: those that no optimizer trains, and others, each with its reason."""
    said = [f"leaves out {shorten(names, most=4)}: no optimizer trains {'it' if len(names) == 1 else 'them'}"]
    return (said if names else []) + ([f"leaves out {shorten(others, '; ')}"] if others else [])
