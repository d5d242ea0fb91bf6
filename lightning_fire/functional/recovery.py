"""What an event costs in accuracy, and how soon it is made good."""

import torch
from torch import Tensor


def accuracy_drop(before: Tensor, after: Tensor) -> Tensor:
    """Return what an event takes away at once: accuracy before it minus accuracy right after it.

    Args:
        before: Accuracy before the event, fraction in [0, 1], any shape.
        after: Accuracy on the same samples after the event and before any training, same shape.

    Returns:
        Same shape; negative where the event helps.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> import torch
        >>> accuracy_drop(torch.tensor(0.75), torch.tensor(0.25))
        tensor(0.5000)
    """
    if before.shape != after.shape:
        raise ValueError(
            f"`before` and `after` must have one shape, got {tuple(before.shape)} and {tuple(after.shape)}"
        )
    return before - after


def recovery_time(accuracy: Tensor, reference: Tensor | float) -> Tensor:
    """Return how many epochs of training after an event it takes to reach a reference for the first time.

    Reaching is `≥`; what comes after the first time does not matter. A curve that never reaches it has time Inf, longer
    than was observed: comparisons and medians of times then stay right, and a mean says that there is none.

    Args:
        accuracy: Accuracy after each epoch since the event, the first entry after one epoch; shape `(..., epochs)`. NaN
            reaches nothing.
        reference: Accuracy to reach, such as that before the event; shape `(...)`, or a number for all.

    Returns:
        Epochs, whole numbers from 1, or Inf; shape `(...)`, float32.

    Raises:
        ValueError: If `accuracy` has no dimension, or `reference` neither one number nor one for each curve.

    Example:
        >>> import torch
        >>> recovery_time(torch.tensor([[0.2, 0.6, 0.5], [0.1, 0.2, 0.3]]), 0.5)
        tensor([2., inf])
    """
    if accuracy.ndim == 0:
        raise ValueError("`accuracy` must have at least 1 dimension, the epochs")
    reference = torch.as_tensor(reference, dtype=accuracy.dtype, device=accuracy.device)
    if reference.ndim and reference.shape != accuracy.shape[:-1]:
        raise ValueError(
            f"`reference` must be a number or of shape {tuple(accuracy.shape[:-1])}, got {tuple(reference.shape)}"
        )
    epochs = torch.arange(1, accuracy.shape[-1] + 1, dtype=torch.float32, device=accuracy.device)
    times = torch.where(accuracy >= reference.unsqueeze(-1), epochs, torch.inf)
    return torch.cat([times, times.new_full((*times.shape[:-1], 1), torch.inf)], -1).amin(-1)
