"""What is done to samples and batches: find the labels, transform one image, normalise a batch of images."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset


def labels_of(dataset: Dataset) -> Tensor | None:
    """Return the labels of a data set without loading its samples.

    Args:
        dataset: A `TensorDataset` of inputs and labels, or any data set with an attribute `targets` or `labels`.

    Returns:
        Class numbers, int64 (N,); None if the data set does not show such labels.
    """
    if isinstance(dataset, TensorDataset):
        labels = dataset.tensors[1] if len(dataset.tensors) > 1 else None
    else:
        labels = getattr(dataset, "targets", None)
        labels = getattr(dataset, "labels", None) if labels is None else labels
    try:
        labels = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):  # None, or boxes, words and the like
        return None
    return labels.to(torch.int64) if labels.ndim == 1 and not labels.is_floating_point() else None


def is_tensors(dataset: Dataset) -> bool:
    """Tell whether a data set can be indexed with a tensor of sample numbers."""
    return type(dataset) is TensorDataset  # a subclass may do anything


class TensorSubset(Dataset):
    """Some samples of a `TensorDataset`; by a tensor of numbers, a whole batch of them at once.

    Args:
        dataset: The data set.
        indices: Numbers of the samples, int64 (n,).
    """

    def __init__(self, dataset: TensorDataset, indices: Tensor):
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int | slice | Tensor) -> tuple[Tensor, ...]:
        rows = self.indices[index]
        if not rows.ndim:
            return self.dataset[rows]
        # copies row by row; `tensor[rows]` goes element by element, and takes 20 times as long for small images
        return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.dataset.tensors)

    def __len__(self) -> int:
        return len(self.indices)


class Transformed(Dataset):
    """A data set whose inputs go through a function.

    Args:
        dataset: Map-style data set of sequences whose first entry is the input.
        transform: Function of one input.
    """

    def __init__(self, dataset: Dataset, transform: Callable[[Any], Any]):
        self.dataset = dataset
        self.transform = transform

    def __getitem__(self, index: int) -> tuple:
        image, *rest = self.dataset[index]
        return (self.transform(image), *rest)

    def __len__(self) -> int:
        return len(self.dataset)


def normalize(images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Tensor:
    """Return images as floats, with `mean` taken away and divided by `std`.

    Args:
        images: (..., C, H, W), uint8 in [0, 255] or float in [0, 1]. Other dtypes are returned as they are.
        mean: One number per channel, in units of [0, 1]; None: do not normalise.
        std: Likewise.

    Returns:
        Float32 (..., C, H, W) for uint8 images; otherwise the dtype of `images`.

    Raises:
        ValueError: If the images have another number of channels than `mean`.

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
