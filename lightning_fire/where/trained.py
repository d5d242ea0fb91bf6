"""The rule, shared by all selections, that decides which parameters are trained."""

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from torch import Tensor

from lightning_fire.where.selection import some

FROZEN = "frozen (requires_grad=False)"
UNTRAINED = "not trained by any optimizer"


def why_not_trained(parameter: Tensor, trained: Collection[Tensor] | None = None) -> str:
    """Return why a parameter is not trained, `FROZEN` or `UNTRAINED`; empty if it is.

    Args:
        parameter: Any parameter.
        trained: The parameters that optimizers step. Default: all with `requires_grad`.
    """
    if trained is None:
        return _by_context(parameter)
    if not parameter.requires_grad:
        return FROZEN
    return "" if parameter in as_set(trained) else UNTRAINED


def as_set(trained: Collection[Tensor]) -> AbstractSet[Tensor]:
    """Return tensors as a set: `in` of a list compares values."""
    return trained if isinstance(trained, AbstractSet) else frozenset(trained)


def leaves_out(names: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return sentences on parameters left out: those that no optimizer trains, and others, each with its reason."""
    said = [f"leaves out {some(names, most=4)}: no optimizer trains {'it' if len(names) == 1 else 'them'}"]
    return (said if names else []) + ([f"leaves out {some(others, '; ')}"] if others else [])


# Until every caller gives `trained`: the same by a context. Then `_by_context` is `not requires_grad`.


class _Known(NamedTuple):
    stepped: frozenset[Tensor] | None  # None: not known
    paused: frozenset[Tensor]


_NOTHING = _Known(None, frozenset())
_known: ContextVar[_Known] = ContextVar("trained", default=_NOTHING)


@contextmanager
def trained(stepped: Collection[Tensor] | None = None, paused: Collection[Tensor] = ()) -> Iterator[None]:
    """Context manager: selections without an argument `trained` take only parameters that optimizers step.

    Args:
        stepped: The parameters of the optimizers. Default: those of the enclosing context; without one, `requires_grad`
            decides.
        paused: Their parameters that count as trained although currently frozen, as between the batches of a GAN.
    """
    outer = _known.get()
    inner = _Known(outer.stepped if stepped is None else frozenset(stepped), outer.paused | frozenset(paused))
    token = _known.set(inner)
    try:
        yield
    finally:
        _known.reset(token)


def _by_context(parameter: Tensor) -> str:
    stepped, paused = _known.get()
    if not parameter.requires_grad and parameter not in paused:
        return FROZEN
    return "" if stepped is None or parameter in stepped else UNTRAINED
