"""Labels of a data set, subsets of tensors, transforms of samples, and normalization of batches of images."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset


def labels_of(dataset: Dataset[Any]) -> Tensor | None:
    """Return the class numbers int64 (N,) of a `TensorDataset`, or of an attribute `targets` or `labels`, or None."""
    if isinstance(dataset, TensorDataset):
        labels = dataset.tensors[1] if len(dataset.tensors) > 1 else None
    elif (labels := getattr(dataset, "targets", None)) is None:
        labels = getattr(dataset, "labels", None)
    try:
        labels = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):  # None, or boxes, words etc.
        return None
    return labels.to(torch.int64) if labels.ndim == 1 and not labels.is_floating_point() else None


def is_tensors(dataset: object) -> TypeGuard[TensorDataset]:
    """Return whether a data set can be indexed with a tensor of sample indices."""
    return type(dataset) is TensorDataset  # a subclass may behave differently


class TensorSubset(Dataset[tuple[Tensor, ...]]):
    """Samples `indices`, int64 (n,), of a `TensorDataset`; a tensor of indices gives a whole batch."""

    def __init__(self, dataset: TensorDataset, indices: Tensor):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int | slice | Tensor) -> tuple[Tensor, ...]:
        rows = self.indices[index]
        if not rows.ndim:
            return tuple(tensor[rows] for tensor in self.dataset.tensors)
        # copies row by row; `tensor[rows]` goes element by element, and takes 20 times as long for small images
        return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.dataset.tensors)

    def __len__(self) -> int:
        return len(self.indices)


class Transformed(Dataset[Any]):
    """Data set of sequences with a function applied to their first entry, the input."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]):
        self.dataset, self.transform = dataset, transform

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image, *rest = self.dataset[index]
        return (self.transform(image), *rest)

    def __len__(self) -> int:
        return len(self.dataset)


def normalize(images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Tensor:
    """Return images (..., C, H, W), uint8 in [0, 255] or float in [0, 1], as (images − mean) / std in floats.

    `mean` and `std` have one number per channel, in units of [0, 1]; without them only uint8 is scaled to float32.
    Other dtypes are returned unchanged.

    Example:
        >>> normalize(torch.full((1, 1, 1, 2), 51, dtype=torch.uint8), mean=[0.1], std=[0.5])
        tensor([[[[0.2000, 0.2000]]]])
    """
    own = images.dtype == torch.uint8
    if own:
        images = images.float().div_(255)
    if mean is None or not images.is_floating_point():
        return images
    if images.ndim < 3 or images.shape[-3] != len(mean):
        raise ValueError(f"`mean` must have one number per channel of images (..., C, H, W): {mean} for {images.shape}")
    shift, scale = (
        torch.tensor(values, dtype=images.dtype).to(images.device, non_blocking=True).view(-1, 1, 1)
        for values in (mean, std)
    )
    return (images.sub_(shift) if own else images - shift).div_(scale)
