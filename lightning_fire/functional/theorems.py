"""The paper's theorems as bounds: effective rank and dormancy of a layer; features and Hessian of a network.

The two bounds for a layer use the DfI of the paper's W of shape (in, out), ‖WᵀW − I‖_F². Weights here are `(out, in)`,
so this is `dfi(weight.mT)`, which equals `dfi(weight) + out − in`. It must be below 1, which is impossible with more
outputs than inputs; from 1 on the functions return the trivial bound. Neither bound depends on the scale of the weight,
so for `out <= in` the smallest DfI over all scales can be given: `out * x / (1 + x)` with x = `dfi_normalized(weight)`.
An argument out of range or of a wrong shape raises a ValueError.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fire.functional.checks import at_least, precise
from lightning_fire.functional.metrics import sfe


def srank_bound(dfi: Tensor, rank: int, delta: float = 0.01, eigenvalue_ratio: float = 1.0) -> Tensor:
    """Lower bound of the effective rank `srank` of a layer's outputs Φ = Z Wᵀ, without bias and activation.

    With ρ² = (1 + ε)/(1 − ε) · `eigenvalue_ratio` and ε = √DfI < 1 it is ⌈(1 − δ)d / (δρ + 1 − δ)⌉, d = `rank`.

    Source: paper, theorem "DfI controls effective rank": its first inequality, and its second one (whitened inputs)
    with `rank=out` and `eigenvalue_ratio=1`. δ = 0.01 is from Kumar et al., ICLR 2021.

    Args:
        dfi: `dfi(weight.mT)` of a weight `(out, in)`, shape `(...)`, at least 0. For `out > in`, which the paper leaves
            out, `dfi(weight)` with the rank of Z and the eigenvalues of ZᵀZ.
        rank: d, the rank of Φ; `out` if ZᵀZ is of full rank.
        delta: δ, the fraction of the sum of the singular values that may be missing, in (0, 1).
        eigenvalue_ratio: η₁/η_d, largest through smallest positive eigenvalue of QZᵀZQᵀ with Q the polar factor of the
            weight, at least 1. If ZᵀZ has full rank, its own ratio is an upper bound and can be given instead.

    Returns:
        Shape `(...)`, int64, in [min(1, rank), rank]; `min(1, rank)` where `dfi` is 1 or more.

    Example:
        >>> srank_bound(torch.tensor([0.0, 0.25, 1.0]), rank=64)
        tensor([64, 63,  1])
    """
    spread = _spread(dfi)
    at_least(0, rank=rank)
    if not 0 < delta < 1:
        raise ValueError(f"`delta` must be in (0, 1), got {delta}")
    at_least(1, whole=False, eigenvalue_ratio=eigenvalue_ratio)
    bound: Tensor = (1 - delta) * rank / (delta * spread * eigenvalue_ratio**0.5 + 1 - delta)
    return (bound * (1 - 1e-6)).ceil().long().clamp_min(min(1, rank))  # rounding errors must not raise it


def activity_score_bounds(dfi: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the activity scores of a layer's neurons, s_i = E|h_i| / mean_k E|h_k|.

    Assumes inputs z ~ N(0, I), no bias, and an activation with σ(at) = aσ(t) for a ≥ 0, such as ReLU or none. Whitened
    inputs are not enough: their distribution must look the same from all directions.

    Source: paper, theorem "Minimizing DfI increases neuron activity score".

    Args:
        dfi: `dfi(weight.mT)` of a weight `(out, in)`, shape `(...)`, at least 0.

    Returns:
        √((1 − ε)/(1 + ε)), ε = √DfI, and its inverse; each of shape `(...)`, float64. 0 and infinity where `dfi` is 1
        or more.

    Example:
        >>> activity_score_bounds(torch.tensor(0.36))
        (tensor(0.5000, dtype=torch.float64), tensor(2.0000, dtype=torch.float64))
    """
    upper = _spread(dfi)
    return 1 / upper, upper


def dfi_without_dormancy(threshold: float = 0.025) -> float:
    """DfI below which a layer has no dormant neuron: ((1 − τ²)/(1 + τ²))², assumptions of `activity_score_bounds`.

    Source: paper, corollary "Absence of τ-dormant neurons", and 0.9975 for the threshold of Sokar et al., ICML 2023.

    Args:
        threshold: τ, the score up to which a neuron counts as dormant, in [0, 1).

    Returns:
        A value of `dfi(weight.mT)`, in (0, 1]. At the value itself a score may be as low as τ.

    Example:
        >>> round(dfi_without_dormancy(0.025), 4)
        0.9975
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"`threshold` must be in [0, 1), got {threshold}")
    return ((1 - threshold**2) / (1 + threshold**2)) ** 2


def feature_covariance_bound(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    input_norm: float,
    feature_norm: float,
    lipschitz: Sequence[float] | None = None,
) -> Tensor:
    """Upper bound of `feature_covariance_shift`, ‖C − C̃‖_F, between two networks.

    The shift is never above √2, so a larger bound is vacuous. The factor 4 is the paper's; the bound divided by 2√2
    holds as well. Assumes no biases, elementwise activations with σ(0) = 0 (ReLU and tanh; not the sigmoid), and
    features that are not all 0.

    Source: paper, theorem "SFE bounds output feature covariance between two deep neural networks".

    Args:
        before: Weights of the layers up to the one whose features are compared, in order, each `(out, in)`.
        after: As many weights, of the same shapes.
        input_norm: ‖Z‖_F of the inputs Z, shape (samples, in).
        feature_norm: The smaller of the norms of the features, ‖H‖_F and ‖H̃‖_F, above 0.
        lipschitz: Lipschitz constant of each layer's activation; all 1 if None.

    Returns:
        Shape `()`, at least 0; of the dtype of `sfe`.

    Example:
        >>> before, after = [torch.eye(2), torch.eye(2)], [torch.eye(2), 2 * torch.eye(2)]
        >>> feature_covariance_bound(before, after, input_norm=1.0, feature_norm=1.0)  # 4 · √(2² + 1²) · √2
        tensor(12.6491)
    """
    lipschitz = [1.0] * len(before) if lipschitz is None else lipschitz
    if not len(before) == len(after) == len(lipschitz) > 0:
        raise ValueError(
            "`before`, `after` and `lipschitz` must have one entry for each of at least 1 layer, "
            f"got {len(before)}, {len(after)} and {len(lipschitz)}"
        )
    at_least(0, whole=False, input_norm=input_norm, lipschitz=min(lipschitz))
    if not feature_norm > 0:
        raise ValueError(f"`feature_norm` must be above 0, got {feature_norm}")
    for old in before:
        if old.ndim != 2:
            raise ValueError(f"`before` must hold matrices, got one of shape {tuple(old.shape)}")
    pairs = list(zip(before, after, strict=True))
    change = torch.stack([sfe(old, new) for old, new in pairs]).sum()
    norms = torch.stack([torch.maximum(_spectral_norm(old), _spectral_norm(new)) for old, new in pairs])
    gain = _without_each(norms).prod(-1).square().sum().sqrt()
    return 4 * input_norm / feature_norm * norms.new_tensor(lipschitz).prod() * gain * change.sqrt()


def hessian_bound(
    dfi: Tensor, output_curvature: float, output_gradient: float, input_eigenvalue: float = 1.0
) -> Tensor:
    """Upper bound of ‖∇²L‖₂, the Hessian of the mean loss in all weights, if all samples activate the same ReLUs.

    This is the paper's theorem. Its proof needs one pattern of active units for all samples, as in a linear network;
    if samples differ in it, as in any ReLU network, the Hessian can exceed the bound: use `relu_hessian_bound`.

    With ν = 1 + √DfI of each layer, λ = `input_eigenvalue`, β and γ the two properties of the loss:
    βλ Σ_k Π_{j≠k} ν_j + 2γ√λ Σ_{k<l} Π_{j≠k,l} ν_j. The last layer is linear, and no layer has a bias.

    Source: paper, theorem "Hessian spectral norm bounded by layerwise DfIs", where λ = 1.

    Args:
        dfi: DfI of each layer, shape `(..., layers)`, at least 0: `dfi(weight.mT)`, or `dfi(weight)`, which holds too;
            the smaller of the two gives the tighter bound.
        output_curvature: β, the largest eigenvalue, over the samples, of the Hessian of a sample's loss with respect to
            the outputs: 1 for ½‖u − y‖², at most ½ for the cross-entropy.
        output_gradient: γ, the largest norm of the gradient there: ‖u − y‖, at most √2 for the cross-entropy.
        input_eigenvalue: Largest eigenvalue of ZᵀZ/n, the second moments of the inputs Z, shape (n, in); 1 if whitened.

    Returns:
        Shape `(...)`, float64.

    Example:
        >>> hessian_bound(torch.zeros(3), output_curvature=1.0, output_gradient=0.5)  # 3 layers, 3 pairs of layers
        tensor(6., dtype=torch.float64)
    """
    return _hessian_bound(dfi, output_curvature, output_gradient, input_eigenvalue, input_eigenvalue)


def relu_hessian_bound(
    dfi: Tensor, output_curvature: float, output_gradient: float, input_trace: float, input_eigenvalue: float = 1.0
) -> Tensor:
    """Upper bound as `hessian_bound`, for ReLU networks in which each sample has its own active units.

    In all terms but those of the first layer the trace of ZᵀZ/n replaces its largest eigenvalue: ReLU can raise the
    largest eigenvalue of the second moments of a layer's inputs, but not their trace. The input dimension is thus a
    factor, which is necessary for wide layers.

    Source: ours; the paper's proof with its lemma "Covariance/spectral growth through layers" repaired.

    Args:
        dfi: DfI of each layer, shape `(..., layers)`, see `hessian_bound`.
        output_curvature: β, see `hessian_bound`.
        output_gradient: γ, see `hessian_bound`.
        input_trace: Trace of ZᵀZ/n, the mean squared norm of an input; the input dimension if whitened.
        input_eigenvalue: Largest eigenvalue of ZᵀZ/n; 1 if whitened.

    Returns:
        Shape `(...)`, float64.

    Example:
        >>> relu_hessian_bound(torch.zeros(2), output_curvature=1.0, output_gradient=0.0, input_trace=64.0)
        tensor(65., dtype=torch.float64)
    """
    if not input_trace >= input_eigenvalue:
        raise ValueError(f"`input_trace` must be at least `input_eigenvalue` {input_eigenvalue}, got {input_trace}")
    return _hessian_bound(dfi, output_curvature, output_gradient, input_eigenvalue, input_trace)


def _hessian_bound(dfi: Tensor, output_curvature: float, output_gradient: float, first: float, later: float) -> Tensor:
    """Sum over the layers and over their pairs; `first` and `later`: moment of the inputs in layer 1 and after it."""
    if dfi.ndim == 0 or not (dfi >= 0).all():
        raise ValueError(f"`dfi` must be of shape (..., layers) and at least 0, got {dfi}")
    at_least(0, whole=False, output_curvature=output_curvature, output_gradient=output_gradient, input_eigenvalue=first)
    growth = 1 + dfi.detach().double().sqrt()
    moments = torch.full_like(growth, later)
    moments[..., :1] = first
    others = _without_each(growth)  # (..., layer left out, layers)
    one = (moments * others.prod(-1)).sum(-1)
    two = (moments.sqrt().unsqueeze(-1) * _without_each(others).prod(-1)).triu(1).sum((-2, -1))
    return output_curvature * one + 2 * output_gradient * two


def _spread(dfi: Tensor) -> Tensor:
    """√((1 + ε)/(1 − ε)), the largest ratio of two singular values of a weight with this DfI; infinity from 1 on."""
    if not (dfi >= 0).all():
        raise ValueError(f"`dfi` must be at least 0, got {dfi}")
    deviation = dfi.detach().double().sqrt().clamp_max(1)
    return ((1 + deviation) / (1 - deviation)).sqrt()


def _without_each(values: Tensor) -> Tensor:
    """Copies of the last dimension, `(..., n, n)`, the k-th with 1 instead of its k-th value; values may be 0."""
    diagonal = torch.eye(values.shape[-1], dtype=torch.bool, device=values.device)
    return torch.where(diagonal, 1, values.unsqueeze(-2))


def _spectral_norm(weight: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(precise(weight.detach()), 2)
    return norm
