"""How sharply a loss bends: the largest eigenvalue of its Hessian, from products of the Hessian with vectors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


class Eigenvalue(NamedTuple):
    """An eigenvalue that was computed step by step.

    Attributes:
        value: The eigenvalue.
        residual: ‖A·x − λ·x‖ for its unit vector x: some eigenvalue of A lies within this distance. The error is far
            smaller where that eigenvalue stands apart from the others: residual² / gap.
        products: Products with A that it took.
    """

    value: float
    residual: float
    products: int


def largest_eigenvalue(
    product: Product, start: Tensor, tolerance: float = 0.01, max_products: int = 100, min_products: int = 1
) -> Eigenvalue:
    """Return the largest (not the largest in size) eigenvalue of a symmetric matrix, by Lanczos' iteration.

    Every new vector is made orthogonal to all before it, twice, so that no eigenvalue appears as a ghost. It stops when
    the residual says so; memory grows by one vector with each product.

    Args:
        product: From a vector, shape `(n,)`, to the product of the matrix with it, same shape and dtype.
        start: First vector, shape `(n,)`, float32 or float64, not 0; a random one surely has a part of
            every eigenvector.
        tolerance: Stop when the residual is at most this share of the eigenvalue.
        max_products: Stop after so many products in any case.
        min_products: Do not stop before. A small residual only says that some eigenvalue is near: if the largest one
            hardly shows in the first vectors, more of them find it.

    Returns:
        The eigenvalue; its residual tells whether the tolerance was reached.

    Raises:
        ValueError: If an argument is out of range, or a product has a NaN or Inf.

    Example:
        >>> matrix = torch.diag(torch.tensor([-9.0, 1.0, 4.0]))
        >>> round(largest_eigenvalue(lambda vector: matrix @ vector, torch.ones(3), tolerance=1e-6).value, 4)
        4.0
    """
    if start.ndim != 1 or not start.numel():
        raise ValueError(f"`start` must have shape (n,) with n of at least 1, got {tuple(start.shape)}")
    if tolerance <= 0:
        raise ValueError(f"`tolerance` must be above 0, got {tolerance}")
    if max_products < 1:
        raise ValueError(f"`max_products` must be at least 1, got {max_products}")
    length = start.norm()
    if not 0 < length < torch.inf:
        raise ValueError(f"`start` must be finite and not 0, got one of norm {length.item()}")
    basis = [start / length]
    diagonal: list[float] = []
    beside: list[float] = []
    rounding = 8 * torch.finfo(start.dtype).eps
    while True:
        vector = product(basis[-1])
        diagonal.append(float(vector @ basis[-1]))
        vector = vector.clone()
        for _ in range(2):
            for other in basis:
                vector.addcmul_(other, vector @ other, value=-1)
        beside.append(float(vector.norm()))
        if not torch.tensor(diagonal[-1:] + beside[-1:]).isfinite().all():
            raise ValueError("the matrix has a NaN or Inf: its product with a vector is not finite")
        values, vectors = _tridiagonal(diagonal, beside[:-1])
        value, residual = float(values[-1]), beside[-1] * float(vectors[-1, -1].abs())
        enough = max(tolerance * abs(value), rounding * float(values.abs().max()))
        exhausted = beside[-1] <= rounding * float(values.abs().max())  # nothing is left to find
        converged = residual <= enough and (len(basis) >= min_products or exhausted)
        if converged or len(basis) == min(max_products, start.numel()):
            return Eigenvalue(value, residual, len(basis))
        basis.append(vector / beside[-1])


def hessian_product(loss: Tensor, parameters: Sequence[Tensor]) -> Product:
    """Return the product of the Hessian of a loss with vectors, by differentiating twice; it keeps the graph alive.

    Args:
        loss: Scalar with its graph, of operations that can be differentiated twice: not fused attention kernels, see
            `torch.nn.attention.sdpa_kernel`, and not what is marked `once_differentiable`, which torch takes for
            constant here.
        parameters: What to derive by, each once, all on one device; what the loss does not depend on counts as flat.

    Returns:
        From a vector, shape `(n,)` with n entries in all parameters, to the product, same shape, float32 or, where a
        parameter is, float64. `.grad` stays as it is.

    Raises:
        ValueError: If `loss` is no scalar, or there are no parameters.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> hessian_product((x**3).sum(), [x])(torch.tensor([1.0, 1.0]))
        tensor([ 6., 12.])
    """
    return gradient_and_product(loss, parameters)[1]


def gradient_and_product(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Product]:
    """Return the gradient of a loss, and what `hessian_product` returns, for the price of the latter.

    Args:
        loss: As for `hessian_product`.
        parameters: As for `hessian_product`.

    Returns:
        The gradient as one vector, shape `(n,)`, of the dtype of the products, and the product.

    Raises:
        ValueError: If `loss` is no scalar, or there are no parameters.
    """
    if loss.numel() != 1:
        raise ValueError(f"`loss` must be a scalar, got shape {tuple(loss.shape)}")
    if not parameters:
        raise ValueError("`parameters` must hold at least one, got none")
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    bent = [i for i, gradient in enumerate(gradients) if gradient is not None and gradient.requires_grad]
    sizes = [parameter.numel() for parameter in parameters]
    flat_gradient = _flat(gradients, parameters, _dtype(parameters))

    def product(vector: Tensor) -> Tensor:
        parts = torch.split(vector.detach(), sizes)
        if not bent:
            return torch.zeros_like(vector)
        columns = torch.autograd.grad(
            [gradients[i] for i in bent],
            parameters,
            [parts[i].view_as(parameters[i]).to(gradients[i].dtype) for i in bent],
            retain_graph=True,
            allow_unused=True,
        )
        return _flat(columns, parameters, vector.dtype)

    return flat_gradient, product


def random_start(parameters: Sequence[Tensor], seed: int = 0) -> Tensor:
    """Return a random vector with an entry for each entry of some parameters, the same on every device.

    Args:
        parameters: Any tensors.
        seed: Of the draw; the global random state is left alone.

    Returns:
        Shape `(n,)`, standard normal, on their device; float32, or float64 where a parameter is.
    """
    size = sum(parameter.numel() for parameter in parameters)
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return vector.to(parameters[0].device, _dtype(parameters))


def near_gradient(gradient: Tensor, random: Tensor) -> Tensor:
    """Return a first vector for `largest_eigenvalue`: the gradient, and a random vector in equal parts.

    The gradient of a loss lies mostly among the eigenvectors of large eigenvalues, of which a random vector of millions
    of entries has next to nothing; that makes up for what the gradient may lack.

    Args:
        gradient: Shape `(n,)`; left out where it is 0 or not finite.
        random: Likewise, see `random_start`.
    """
    length = gradient.norm()
    return gradient / length + random / random.norm() if 0 < length < torch.inf else random


def loss_curvature(
    loss: Tensor, parameters: Sequence[Tensor], tolerance: float = 0.01, max_products: int = 100, seed: int = 0
) -> Eigenvalue:
    """Return the largest eigenvalue of the Hessian of a loss, λ_max (paper, section "Ablation study").

    Costs 2 to 3 gradients a product, and some 4 to 10 products. Modes are the caller's: dropout off and BatchNorm
    in evaluation mode give the curvature of one function.

    Args:
        loss: Scalar with its graph, see `hessian_product`.
        parameters: What to derive by.
        tolerance: Stop when the residual is at most this share of the eigenvalue.
        max_products: Stop after so many products in any case.
        seed: Of the random part of the first vector.

    Returns:
        The eigenvalue, negative only where the loss bends down in every direction that was found.

    Raises:
        ValueError: If an argument is out of range, or the loss has no finite second derivatives.

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
    """Return derivatives by some parameters as one vector, shape `(n,)`, detached; None is 0."""
    return torch.cat(
        [
            torch.zeros_like(parameter, dtype=dtype).flatten() if part is None else part.detach().flatten().to(dtype)
            for part, parameter in zip(parts, parameters, strict=True)
        ]
    )


def _tridiagonal(diagonal: Sequence[float], beside: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of a symmetric tridiagonal matrix, in float64 on the CPU."""
    off = torch.tensor(beside, dtype=torch.float64)
    matrix = torch.tensor(diagonal, dtype=torch.float64).diag() + off.diag(1) + off.diag(-1)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors
