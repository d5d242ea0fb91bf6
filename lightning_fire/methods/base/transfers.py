"""Transfers between the host and its devices. A transfer that the host waits for drains the queue of a GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def read(values: Sequence[Tensor]) -> list[Any]:
    """Return tensors of one shape, on any devices, as numbers or (nested) lists. The host waits once."""
    return torch.stack([value.to(values[0].device) for value in values]).tolist() if values else []


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device. The host does not wait for a copy from CPU to GPU."""
    return tensor.to(device, non_blocking=device.type == "cuda")
