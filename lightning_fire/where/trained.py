"""The rule, shared by all selections, that decides which parameters are trained."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from torch import Tensor

from lightning_fire.where.selection import some

FROZEN = "frozen (requires_grad=False)"
UNTRAINED = "not trained by any optimizer"


class _Known(NamedTuple):
    stepped: frozenset[Tensor] | None  # None: not known
    paused: frozenset[Tensor]


_NOTHING = _Known(None, frozenset())
_known: ContextVar[_Known] = ContextVar("trained", default=_NOTHING)


@contextmanager
def trained(stepped: Collection[Tensor] | None = None, paused: Collection[Tensor] = ()) -> Iterator[None]:
    """Context manager: selections in this thread take only parameters that optimizers step.

    Args:
        stepped: The parameters of the optimizers. Default: those of the enclosing context; without one, `requires_grad`
            decides.
        paused: Their parameters that count as trained although currently frozen, as between the batches of a GAN.
    """
    outer = _known.get()
    token = _known.set(
        _Known(outer.stepped if stepped is None else frozenset(stepped), outer.paused | frozenset(paused))
    )
    try:
        yield
    finally:
        _known.reset(token)


def why_not_trained(parameter: Tensor) -> str:
    """Return why a parameter is not trained, `FROZEN` or `UNTRAINED`; empty if it is. Works outside of `trained`, too.

    A weight that a parametrization computes is represented by a parameter on the meta device, which no optimizer holds.
    """
    stepped, paused = _known.get()
    if not parameter.requires_grad and parameter not in paused:
        return FROZEN
    return "" if stepped is None or parameter in stepped or parameter.is_meta else UNTRAINED


def leaves_out(names: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return sentences on parameters left out: those that no optimizer trains, and others, each with its reason."""
    said = [f"leaves out {some(names, most=4)}: no optimizer trains {'it' if len(names) == 1 else 'them'}"]
    return (said if names else []) + ([f"leaves out {some(others, '; ')}"] if others else [])
