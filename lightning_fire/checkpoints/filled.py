"""A weight of a file, with the values that the file holds."""

from dataclasses import replace

from torch import Tensor
from torch.nn import Parameter

from lightning_fire.where import WeightView


def filled(view: WeightView, tensor: Tensor) -> WeightView:
    """Return a selected weight with values.

    Args:
        view: A weight of a file, without values.
        tensor: The tensor that holds it, as stored. To write into the weight changes it.
    """
    return replace(view, parameter=Parameter(tensor, requires_grad=False))
