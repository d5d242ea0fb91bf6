"""Curvature of a loss: the largest eigenvalue of its Hessian, from products of the Hessian with vectors.

Arguments out of range, and NaN or Inf in values or derivatives, raise a ValueError.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_fire.functional.checks import at_least, full_precision

Product = Callable[[Tensor], Tensor]


class Eigenvalue(NamedTuple):
    """Eigenvalue of a matrix A, approximated by products with vectors.

    Attributes:
        value: The eigenvalue λ.
        residual: ‖A·x − λ·x‖ for its unit vector x: some eigenvalue of A lies within this distance. The error is far
            smaller if that eigenvalue is far from the others: residual² / gap.
        products: Number of products with A.
    """

    value: float
    residual: float
    products: int


@full_precision
def largest_eigenvalue(
    product: Product, start: Tensor, tolerance: float = 0.01, max_products: int = 100, min_products: int = 1
) -> Eigenvalue:
    """Return the largest eigenvalue (with its sign) of a symmetric matrix, by the Lanczos iteration.

    Each new vector is made orthogonal to all before it, twice, so that no eigenvalue appears as a ghost. Memory grows
    by one vector with each product.

    Args:
        product: From a vector, shape `(n,)`, to the product of the matrix with it, same shape and dtype.
        start: First vector, shape `(n,)`, float32 or float64, not 0; a random one has a part of every eigenvector.
        tolerance: Stop when the residual is at most this fraction of the eigenvalue, above 0.
        max_products: Maximum number of products, at least 1.
        min_products: Minimum number of products. A small residual only shows that some eigenvalue is near: if the first
            vectors have little of the largest one, more of them find it.

    Returns:
        The eigenvalue; its residual shows whether the tolerance was reached.

    Example:
        >>> matrix = torch.diag(torch.tensor([-9.0, 1.0, 4.0]))
        >>> round(largest_eigenvalue(lambda vector: matrix @ vector, torch.ones(3), tolerance=1e-6).value, 4)
        4.0
    """
    if start.ndim != 1 or not start.numel():
        raise ValueError(f"`start` must have shape (n,) with n of at least 1, got {tuple(start.shape)}")
    if tolerance <= 0:
        raise ValueError(f"`tolerance` must be above 0, got {tolerance}")
    at_least(1, max_products=max_products)
    length = start.norm()
    if not 0 < (norm := length.item()) < torch.inf:
        raise ValueError(f"`start` must be finite and not 0, got one of norm {norm}")
    basis = [start / length]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        vector = product(basis[-1])
        along = vector @ basis[-1]
        vector = vector.clone()
        for _ in range(2):
            for other in basis:
                vector.addcmul_(other, vector @ other, value=-1)
        for numbers, value in zip((diagonal, beside), torch.stack([along, vector.norm()]).tolist(), strict=True):
            numbers.append(value)
        if not (math.isfinite(diagonal[-1]) and math.isfinite(beside[-1])):
            raise ValueError("the matrix has a NaN or Inf: its product with a vector is not finite")
        off = torch.tensor(beside[:-1], dtype=torch.float64, device="cpu")
        tridiagonal = torch.tensor(diagonal, dtype=torch.float64, device="cpu").diag() + off.diag(1) + off.diag(-1)
        values, vectors = torch.linalg.eigh(tridiagonal)
        value, residual = float(values[-1]), beside[-1] * float(vectors[-1, -1].abs())
        rounding = 8 * torch.finfo(start.dtype).eps * float(values.abs().max())
        enough = len(basis) >= min_products or beside[-1] <= rounding  # or the vectors span all that can be found
        converged = enough and residual <= max(tolerance * abs(value), rounding)
        if converged or len(basis) == min(max_products, start.numel()):
            return Eigenvalue(value, residual, len(basis))
        basis.append(vector / beside[-1])


def hessian_product(loss: Tensor, parameters: Sequence[Tensor]) -> Product:
    """Return the product of the Hessian of a loss with vectors, by differentiating twice; it keeps the graph alive.

    Args:
        loss: Scalar with its graph, of operations that can be differentiated twice: not fused attention kernels, see
            `torch.nn.attention.sdpa_kernel`, and not operations marked `once_differentiable`, which torch treats as
            constant here.
        parameters: Tensors to differentiate with respect to, at least one, without duplicates, all on one device.
            Derivatives are 0 for tensors that the loss does not depend on.

    Returns:
        From a vector, shape `(n,)` with n entries in all parameters, to the product, same shape, float32, or float64 if
        a parameter is. `.grad` is unchanged.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> hessian_product((x**3).sum(), [x])(torch.tensor([1.0, 1.0]))
        tensor([ 6., 12.])
    """
    return gradient_and_product(loss, parameters)[1]


NO_GRADIENT = (
    "the loss has no gradient with respect to any of the weights: it was computed without them, or in"
    " torch.utils.checkpoint.checkpoint(…), which needs use_reentrant=False here"
)


@full_precision
def gradient_and_product(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Product]:
    """Return the gradient of a loss, shape `(n,)`, and its `hessian_product` at the cost of the latter alone."""
    if loss.numel() != 1:
        raise ValueError(f"`loss` must be a scalar, got shape {tuple(loss.shape)}")
    if not parameters:
        raise ValueError("`parameters` must hold at least one, got none")
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ValueError(NO_GRADIENT)
    sizes = [parameter.numel() for parameter in parameters]
    curved = [i for i, gradient in enumerate(gradients) if gradient is not None and gradient.requires_grad]

    @full_precision
    def product(vector: Tensor) -> Tensor:
        if not curved:
            return torch.zeros_like(vector)
        parts = torch.split(vector.detach(), sizes)
        columns = torch.autograd.grad(
            [gradients[i] for i in curved],
            parameters,
            [parts[i].view_as(parameters[i]).to(gradients[i].dtype) for i in curved],
            retain_graph=True,
            allow_unused=True,
        )
        return _flat(columns, parameters, vector.dtype)

    return _flat(gradients, parameters, _dtype(parameters)), product


def random_start(parameters: Sequence[Tensor], seed: int = 0) -> Tensor:
    """Return a standard normal vector, shape `(n,)`, with an entry for each entry of some parameters, on their device.

    It is the same on every device; the global random state is unchanged.
    """
    size = sum(parameter.numel() for parameter in parameters)
    vector = torch.randn(size, generator=torch.Generator("cpu").manual_seed(int(seed)), device="cpu")
    device = parameters[0].device
    return vector.to(_dtype(parameters)).to(device, non_blocking=device.type == "cuda")


def near_gradient(gradient: Tensor, random: Tensor) -> Tensor:
    """Return a first vector for `largest_eigenvalue`: the gradient, if it is finite and not 0, plus a random vector.

    The gradient of a loss lies mostly among the eigenvectors of large eigenvalues, which a random vector of millions of
    entries barely contains; the random vector adds directions that the gradient may lack.
    """
    length = gradient.norm()
    both = gradient / length + random / random.norm()
    return torch.where((length > 0) & (length < torch.inf), both, random)


@full_precision
def loss_curvature(
    loss: Tensor, parameters: Sequence[Tensor], tolerance: float = 0.01, max_products: int = 100, seed: int = 0
) -> Eigenvalue:
    """Return the largest eigenvalue of the Hessian of a loss, λ_max (paper, section "Ablation study").

    Takes about 4 to 10 products, each as expensive as 2 to 3 gradients. The caller sets the modes: without dropout and
    with BatchNorm in evaluation mode it is the curvature of one function.

    Args:
        loss: Scalar with its graph, see `hessian_product`.
        parameters: Tensors to differentiate with respect to.
        tolerance: Stop when the residual is at most this fraction of the eigenvalue, above 0.
        max_products: Maximum number of products, at least 1.
        seed: Seed of the random part of the first vector.

    Returns:
        The eigenvalue, negative only if the loss is concave in every direction that was found.

    Example:
        >>> x = torch.tensor([3.0, 5.0], requires_grad=True)
        >>> round(loss_curvature(2 * x[0] ** 2 + x[1] ** 2, [x], tolerance=1e-6).value, 4)
        4.0
    """
    gradient, product = gradient_and_product(loss, parameters)
    start = near_gradient(gradient, random_start(parameters, seed))
    return largest_eigenvalue(product, start, tolerance, max_products)


def _dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    wide = any(parameter.dtype == torch.float64 for parameter in parameters)
    return torch.float64 if wide else torch.float32


def _flat(parts: Sequence[Tensor | None], parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Concatenate derivatives with respect to some parameters, shape `(n,)`, detached; None becomes 0."""
    pairs = zip(parts, parameters, strict=True)
    full = [torch.zeros_like(parameter) if part is None else part.detach() for part, parameter in pairs]
    return torch.cat([part.flatten().to(dtype) for part in full])
