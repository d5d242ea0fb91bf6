"""The check that the metrics share."""

import torch
from torch import Tensor


def real(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor of matrices in float32, or in float64 if it is float64, without its gradient.

    Args:
        tensor: Shape `(..., m, n)`, real floating dtype.
        name: Name of the caller's argument, for errors.

    Raises:
        TypeError: If `tensor` is not of a real floating dtype.
        ValueError: If `tensor` has fewer than 2 dimensions.
    """
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` must be of a real floating dtype, got {tensor.dtype}")
    if tensor.ndim < 2:
        raise ValueError(f"`{name}` must have at least 2 dimensions, got shape {tuple(tensor.shape)}")
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
