"""What the paper's theorems promise of one layer: outputs of high rank, no dormant neuron.

Both start from the DfI of the paper's W of shape (in, out), ‖WᵀW − I‖_F². Weights here are `(out, in)`: it is
`dfi(weight.mT)`, which is `dfi(weight) + out − in`, and must be below 1. With more outputs than inputs it never is.
From 1 on the functions return what holds of every layer.

Neither statement changes with the scale of the weight, so for `out <= in` the smallest DfI over all scales may be given
instead: `out * x / (1 + x)` with x = `dfi_normalized(weight)`.
"""

from torch import Tensor


def srank_bound(dfi: Tensor, rank: int, delta: float = 0.01, eigenvalue_ratio: float = 1.0) -> Tensor:
    """Bound the effective rank of a layer's outputs from below.

    The effective rank srank_δ of the outputs Φ = Z Wᵀ is the smallest k such that the k largest singular values sum to
    1 − δ of the sum of all. With ρ² = (1 + ε)/(1 − ε) · `eigenvalue_ratio` and ε = √DfI < 1 it is at least
    ⌈(1 − δ)d / (δρ + 1 − δ)⌉, d = `rank`.

    Assumes outputs without bias and before the activation.

    Source: paper, theorem "DfI controls effective rank": its first inequality, and its second one (whitened inputs)
    with `rank=out` and `eigenvalue_ratio=1`. δ = 0.01 is from Kumar et al., ICLR 2021.

    Args:
        dfi: `dfi(weight.mT)` of a weight `(out, in)`, shape `(...)`, at least 0. For `out > in`, which the paper leaves
            out, `dfi(weight)` with the rank of Z and the eigenvalues of ZᵀZ.
        rank: d, the rank of Φ; `out` if ZᵀZ is of full rank.
        delta: δ, the share of the sum that may be missing, in (0, 1).
        eigenvalue_ratio: η₁/η_d, largest through smallest positive eigenvalue of QZᵀZQᵀ with Q the polar factor of the
            weight, at least 1. If ZᵀZ is of full rank, its own ratio is an upper bound of it and may be given.

    Returns:
        Shape `(...)`, int64, in [min(1, rank), rank]; `min(1, rank)` where `dfi` is 1 or more. Before it is rounded up
        it is lowered by a millionth, so that rounding errors do not raise it.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> import torch
        >>> srank_bound(torch.tensor([0.0, 0.25, 1.0]), rank=64)
        tensor([64, 63,  1])
    """
    spread = _spread(dfi)
    if rank < 0:
        raise ValueError(f"`rank` must be at least 0, got {rank}")
    if not 0 < delta < 1:
        raise ValueError(f"`delta` must be in (0, 1), got {delta}")
    if not eigenvalue_ratio >= 1:
        raise ValueError(f"`eigenvalue_ratio` must be at least 1, got {eigenvalue_ratio}")
    bound = (1 - delta) * rank / (delta * spread * eigenvalue_ratio**0.5 + 1 - delta)
    return (bound * (1 - 1e-6)).ceil().long().clamp_min(min(1, rank))


def activity_score_bounds(dfi: Tensor) -> tuple[Tensor, Tensor]:
    """Bound how active each neuron of a layer is beside the others, s_i = E|h_i| / mean_k E|h_k|, from both sides.

    Assumes inputs z ~ N(0, I), no bias, and an activation with σ(at) = aσ(t) for a ≥ 0, such as ReLU or none. That
    the inputs are whitened is not enough: their distribution must look the same from all directions.

    Source: paper, theorem "Minimizing DfI increases neuron activity score".

    Args:
        dfi: `dfi(weight.mT)` of a weight `(out, in)`, shape `(...)`, at least 0.

    Returns:
        Lower bounds √((1 − ε)/(1 + ε)), ε = √DfI, and upper bounds, their inverses; each of shape `(...)`, float64.
        0 and infinity where `dfi` is 1 or more.

    Raises:
        ValueError: If a value is negative or NaN.

    Example:
        >>> import torch
        >>> activity_score_bounds(torch.tensor(0.36))
        (tensor(0.5000, dtype=torch.float64), tensor(2.0000, dtype=torch.float64))
    """
    upper = _spread(dfi)
    return 1 / upper, upper


def dfi_without_dormancy(threshold: float = 0.025) -> float:
    """Return the DfI below which no neuron of a layer is dormant: ((1 − τ²)/(1 + τ²))².

    Assumes what `activity_score_bounds` does.

    Source: paper, corollary "Absence of τ-dormant neurons", and 0.9975 for the threshold of Sokar et al., ICML 2023.

    Args:
        threshold: τ, the score up to which a neuron counts as dormant, in [0, 1).

    Returns:
        A value of `dfi(weight.mT)`, in (0, 1]. At the value itself a score may be as low as τ.

    Raises:
        ValueError: If `threshold` is outside [0, 1).

    Example:
        >>> round(dfi_without_dormancy(0.025), 4)
        0.9975
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"`threshold` must be in [0, 1), got {threshold}")
    return ((1 - threshold**2) / (1 + threshold**2)) ** 2


def _spread(dfi: Tensor) -> Tensor:
    """√((1 + ε)/(1 − ε)), the largest ratio of two singular values of a weight with this DfI; infinity from 1 on."""
    if not (dfi >= 0).all():
        raise ValueError(f"`dfi` must be at least 0, got {dfi}")
    deviation = dfi.detach().double().sqrt().clamp_max(1)
    return ((1 + deviation) / (1 - deviation)).sqrt()
