"""Weights of layers as whole tensors, for methods that treat every entry alike, such as clipping."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.methods.base.loop import Loop
from lightning_fire.where import Weights, weight_layers
from lightning_fire.where.layers import biases_of, plain
from lightning_fire.where.trained import why_not_trained


class LayerWeight(NamedTuple):
    """A weight of a layer, with its trained biases, each with the index of its part.

    Attributes:
        fan_in: Number of inputs of each output, as torch computes it for the bounds of its initialization.
    """

    name: str
    parameter: Parameter
    fan_in: int
    biases: list[tuple[Tensor, Any]]


def layer_weights(model: nn.Module, training: Loop, where: Weights | None = None) -> Iterator[LayerWeight]:
    """Iterate in module order over the trained weights of layers, tied ones once.

    Default: those of all Linear and convolution layers, depthwise ones included, of attention and of recurrent layers.

    Args:
        where: Selection whose weights to take instead; of a fused weight the whole tensor.
    """
    trained, layers, seen = training.trained(model), set(weight_layers(model)), set[Tensor]()
    selected = None if where is None else {view.parameter for view in where.select(model, trained)}
    for path, module in model.named_modules():
        usual = module in layers or isinstance(module, nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase)
        for leaf, parameter in nn.Module.named_parameters(module, recurse=False):
            of_layer = usual and parameter.ndim > 1 and not leaf.startswith("bias_")  # of attention: (1, 1, n)
            chosen = of_layer if selected is None else parameter in selected
            if not chosen or parameter in seen or why_not_trained(parameter, trained):
                continue
            seen.add(parameter)
            in_out = hasattr(module, "nf") and not hasattr(module, "in_features")  # Conv1D of Hugging Face
            fan_in = parameter.shape[0] if in_out else math.prod(parameter.shape[1:])
            name = plain(f"{path}.{leaf}".lstrip("."))
            yield LayerWeight(name, parameter, fan_in, [*biases_of(module, leaf, trained)])
