"""Transfers between the host and its devices: each at which the host waits drains the queue of a GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def read(values: Sequence[Tensor]) -> list[Any]:
    """Return tensors of one shape, on any devices, as numbers or lists of them. The host waits once."""
    return torch.stack([value.to(values[0].device) for value in values]).tolist() if values else []


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. The host does not wait until one of the CPU has arrived on a GPU."""
    return tensor.to(device, non_blocking=device.type == "cuda")
