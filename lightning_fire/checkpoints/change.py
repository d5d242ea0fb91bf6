"""What is done to each tensor of a checkpoint."""

from collections.abc import Callable

from torch import Tensor

Change = Callable[[str, Tensor], None]
"""Gets the name of a tensor and the tensor as stored, and changes it in place."""
