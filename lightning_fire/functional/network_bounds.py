"""What the paper's theorems promise of a whole network: features that stay, a loss that is not sharp.

Weights are `(out, in)` and a layer computes `activation(h @ weight.mT)`, without bias: the paper's W is `weight.mT`.
The DfI of its theorems, ‖WᵀW − I‖_F² with W of shape (in, out), is `dfi(weight.mT)`, which is
`dfi(weight) + out − in`. Where each theorem ends is measured in docs/theorems.md.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fire.functional.measures import sfe


def feature_covariance_bound(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    input_norm: float,
    feature_norm: float,
    lipschitz: Sequence[float] | None = None,
) -> Tensor:
    """Bound how far features turn when weights change: an upper bound of ‖C − C̃‖_F, not squared.

    C = HHᵀ/‖H‖_F² is the normalised covariance between samples, shape (samples, samples), of the features H that the
    network `before` gives to the inputs, and C̃ that of `after`. Their distance is never above √2: a larger bound says
    nothing. The constant 4 in it is the paper's; the bound divided by 2√2 holds as well.

    Assumes no biases, elementwise activations with σ(0) = 0 (ReLU and tanh; not the sigmoid), and features that are
    not all 0.

    Source: paper, theorem "SFE bounds output feature covariance between two deep neural networks".

    Args:
        before: Weights of the layers up to the one whose features are compared, in order, each `(out, in)`.
        after: As many weights, of the same shapes.
        input_norm: ‖Z‖_F of the inputs Z, shape (samples, in).
        feature_norm: The smaller of ‖H‖_F and ‖H̃‖_F, above 0.
        lipschitz: Lipschitz constant of each layer's activation; all 1 if None.

    Returns:
        Shape `()`, at least 0; of the dtype of `sfe`.

    Raises:
        ValueError: If the lists are empty or differ in length, a pair of weights is not of one shape, a weight is not a
            matrix, or a number is out of its range.

    Example:
        >>> import torch
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
    _require_at_least_zero(input_norm=input_norm, lipschitz=min(lipschitz))
    if not feature_norm > 0:
        raise ValueError(f"`feature_norm` must be above 0, got {feature_norm}")
    for old in before:
        if old.ndim != 2:
            raise ValueError(f"`before` must hold matrices, got one of shape {tuple(old.shape)}")
    change = torch.stack([sfe(old, new) for old, new in zip(before, after, strict=True)]).sum()
    norms = torch.stack([torch.maximum(_norm(old), _norm(new)) for old, new in zip(before, after, strict=True)])
    gain = _products_of_others(norms).square().sum().sqrt()
    return 4 * input_norm / feature_norm * norms.new_tensor(lipschitz).prod() * gain * change.sqrt()


def hessian_bound(
    dfi: Tensor, output_curvature: float, output_gradient: float, input_eigenvalue: float = 1.0
) -> Tensor:
    """Bound the sharpness of the loss, where all samples switch the same ReLUs on: ‖∇²L‖₂ over all weights.

    This is the paper's theorem. Its proof needs one pattern of active units for all samples, as in a linear network;
    where each sample has its own, as in any ReLU network, the Hessian can exceed it: take `relu_hessian_bound`.

    With ν = 1 + √DfI of each layer, λ = `input_eigenvalue`, β and γ the two properties of the loss:
    βλ Σ_k Π_{j≠k} ν_j + 2γ√λ Σ_{k<l} Π_{j≠k,l} ν_j. The last layer is linear, and there are no biases.

    Source: paper, theorem "Hessian spectral norm bounded by layerwise DfIs", where λ = 1.

    Args:
        dfi: DfI of each layer, shape `(..., layers)`, at least 0: `dfi(weight.mT)`, or `dfi(weight)`, which holds too;
            the smaller of the two gives the tighter bound.
        output_curvature: β, the largest eigenvalue, over the samples, of the Hessian of a sample's loss with respect to
            the outputs: 1 for ½‖u − y‖², at most ½ for the cross-entropy.
        output_gradient: γ, the largest norm of the gradient there: ‖u − y‖, at most √2 for the cross-entropy.
        input_eigenvalue: Largest eigenvalue of ZᵀZ/n, the second moments of the inputs Z, shape (n, in); 1 if whitened.

    Returns:
        Upper bounds of the largest absolute eigenvalue of the Hessian of the mean loss, shape `(...)`, float64.

    Raises:
        ValueError: If `dfi` has no dimension, or a value is negative or NaN.

    Example:
        >>> import torch
        >>> hessian_bound(torch.zeros(3), output_curvature=1.0, output_gradient=0.5)  # 3 layers, 3 pairs of layers
        tensor(6., dtype=torch.float64)
    """
    return _curvature(dfi, output_curvature, output_gradient, input_eigenvalue, input_eigenvalue)


def relu_hessian_bound(
    dfi: Tensor, output_curvature: float, output_gradient: float, input_trace: float, input_eigenvalue: float = 1.0
) -> Tensor:
    """Bound the sharpness of the loss of a ReLU network, each sample with its own active units: ‖∇²L‖₂.

    As `hessian_bound`, with the trace of the second moments of the inputs in place of their largest eigenvalue in all
    terms but those of the first layer: ReLU can raise the largest eigenvalue of the second moments of what a layer
    gets, but never their trace. The number of inputs is thus a factor, and for wide layers it must be.

    Source: ours; the paper's proof with its lemma "Covariance/spectral growth through layers" repaired.

    Args:
        dfi: As in `hessian_bound`, shape `(..., layers)`.
        output_curvature: β, as in `hessian_bound`.
        output_gradient: γ, as in `hessian_bound`.
        input_trace: Trace of ZᵀZ/n, the mean squared norm of an input; the number of inputs if whitened.
        input_eigenvalue: Largest eigenvalue of ZᵀZ/n; 1 if whitened.

    Returns:
        Upper bounds of the largest absolute eigenvalue of the Hessian of the mean loss, shape `(...)`, float64.

    Raises:
        ValueError: If `dfi` has no dimension, a value is negative or NaN, or the trace is below the eigenvalue.

    Example:
        >>> import torch
        >>> relu_hessian_bound(torch.zeros(2), output_curvature=1.0, output_gradient=0.0, input_trace=64.0)
        tensor(65., dtype=torch.float64)
    """
    if not input_trace >= input_eigenvalue:
        raise ValueError(f"`input_trace` must be at least `input_eigenvalue` {input_eigenvalue}, got {input_trace}")
    return _curvature(dfi, output_curvature, output_gradient, input_eigenvalue, input_trace)


def _curvature(dfi: Tensor, output_curvature: float, output_gradient: float, first: float, later: float) -> Tensor:
    """Sum over the layers and over their pairs; `first` and `later`: moment of the inputs in layer 1 and after it."""
    if dfi.ndim == 0 or not (dfi >= 0).all():
        raise ValueError(f"`dfi` must be of shape (..., layers) and at least 0, got {dfi}")
    _require_at_least_zero(output_curvature=output_curvature, output_gradient=output_gradient, input_eigenvalue=first)
    growth = 1 + dfi.detach().double().sqrt()
    moments = torch.full_like(growth, later)
    moments[..., :1] = first
    one = (moments * _products_of_others(growth)).sum(-1)
    pairs = growth.unsqueeze(-2).expand(*growth.shape, growth.shape[-1])  # the layer left out, all layers
    earlier = torch.where(_diagonal(growth), 1, pairs)
    two = (moments.sqrt().unsqueeze(-1) * _products_of_others(earlier)).triu(1).sum((-2, -1))
    return output_curvature * one + 2 * output_gradient * two


def _products_of_others(values: Tensor) -> Tensor:
    """Π_{j≠k} of the last dimension, `(..., n)` to `(..., n)`; no division: a factor may be 0."""
    repeated = values.unsqueeze(-2).expand(*values.shape, values.shape[-1])
    return torch.where(_diagonal(values), 1, repeated).prod(-1)


def _diagonal(values: Tensor) -> Tensor:
    return torch.eye(values.shape[-1], dtype=torch.bool, device=values.device)


def _norm(weight: Tensor) -> Tensor:
    """Spectral norm, of the dtype that `sfe` has."""
    return torch.linalg.matrix_norm(weight.detach().to(torch.promote_types(weight.dtype, torch.float32)), 2)


def _require_at_least_zero(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= 0:
            raise ValueError(f"`{name}` must be at least 0, got {number}")
