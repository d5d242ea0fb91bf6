"""Conclusion of a diagnosis: how much further the weights are from isometries than those of a reference."""

from collections.abc import Iterable
from math import exp, isfinite, log

_DRIFTED, _STEADY = 1.5, 1.2  # against a checkpoint of a time when the network learned well
_USUAL, _FAR = 2.0, 6.0  # against new weights
_LEAST = 0.01  # lower bound of a ratio, so that one weight at an isometry does not decide alone


def drift(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean of the ratios of DfI to its reference; None if there is none.

    Args:
        ratios: One for each weight; NaN and Inf are left out.

    Example:
        >>> drift([2.0, 8.0, float("nan")])
        4.0
    """
    logs = [log(max(ratio, _LEAST)) for ratio in ratios if isfinite(ratio)]
    return exp(sum(logs) / len(logs)) if logs else None


def verdict(ratio: float | None, against_checkpoint: bool) -> str:
    """Return the conclusion from a drift in one sentence, with the reason.

    The bounds come from small networks trained on two streams (docs/checkpoints.md).

    Args:
        ratio: What `drift` returned.
        against_checkpoint: Whether the reference is a checkpoint; otherwise it is new weights.
    """
    if ratio is None:
        return "no conclusion: no weight has a reference"
    found = f"DfI × {ratio:.3g} that of {'the reference' if against_checkpoint else 'new weights'} (geometric mean)"
    if against_checkpoint:
        if ratio > _DRIFTED:
            return f"drifted: {found}; networks that stopped learning had × 1.7 to 2.8: try FIRE at the next new data"
        if ratio < _STEADY:
            return f"steady: {found}: no sign of lost plasticity, FIRE would cost more than it gains"
        return f"undecided: {found}: between steady (below × {_STEADY}) and drifted (above × {_DRIFTED})"
    if ratio < _USUAL:
        return f"near new weights: {found}: no sign of lost plasticity"
    if ratio > _FAR:
        return f"far: {found}; networks that stopped learning had × 5.6 to 14, those that still learned × 0.1 to 5.7"
    return (
        f"undecided: {found}, as trained networks have whether they still learn or not: give an earlier checkpoint,"
        " of a time when it learned well, as --reference"
    )
