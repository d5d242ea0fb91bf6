"""Which parameters of a model are trained: one rule for all selections."""

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
        stepped: The parameters of the optimizers. Default: as around it; not known anywhere, `requires_grad` decides.
        paused: Parameters of them that count as trained though they are frozen now, as between the batches of a GAN.
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
    """Return why a parameter is not trained, `FROZEN` or `UNTRAINED`; empty if it is, inside and outside `trained`.

    Of a weight that a parametrization computes, a parameter on the meta device stands in, which no optimizer knows.
    """
    stepped, paused = _known.get()
    if not parameter.requires_grad and parameter not in paused:
        return FROZEN
    return "" if stepped is None or parameter in stepped or parameter.is_meta else UNTRAINED


def leaves_out(names: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Say which parameters are left out: those that no optimizer trains, and others, each with its reason."""
    said = [f"leaves out {some(names, most=4)}: no optimizer trains {'it' if len(names) == 1 else 'them'}"]
    return (said if names else []) + ([f"leaves out {some(others, '; ')}"] if others else [])
