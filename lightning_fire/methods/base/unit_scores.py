"""Inputs of the scores of hidden units: outputs before and after the nonlinearity, and gradients."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_fire.methods.base.unit_reset import Forward, Output, by_unit, run_watched, watch_output
from lightning_fire.where import UnitLayer

Score = Literal[Output, "gradient"]


def incoming_weights(layers: Sequence[UnitLayer]) -> list[Parameter]:
    """Return the parameter that holds the incoming weights of each layer of units."""
    return [layer.incoming.parameter for layer in layers]


def mean_gradients(layers: Sequence[UnitLayer], batches: Iterable[Sequence[Tensor]]) -> Tensor:
    """Mean |∂loss/∂w| over the incoming weights w of each unit and over batches.

    Source: the code of Liu et al., Measure gradients, not activations!, 2025.

    Args:
        layers: Layers of units.
        batches: At least one; for each, the gradients of its loss with respect to `incoming_weights(layers)`.

    Returns:
        Shape (units of all layers,), float32, at least 0.
    """
    device = layers[0].incoming.parameter.device  # a model may be on several devices
    means = [
        torch.cat(
            [layer.incoming.of(g).read().flatten(1).abs().mean(1, dtype=torch.float32).to(device) for layer, g in pairs]
        )
        for pairs in (zip(layers, gradients, strict=True) for gradients in batches)
    ]
    return torch.stack(means).mean(0)


@torch.no_grad()
def mean_activities(layers: Sequence[UnitLayer], forward: Forward, output: Output = "activation") -> Tensor:
    """Mean magnitude of each unit of all layers over samples and positions; NaN for a layer that has not run.

    The magnitude is |h| of the activation h, or max(0, z) of the output z before normalization, as in the code of the
    FIRE paper's authors.
    """
    magnitude = torch.abs if output == "activation" else torch.relu
    sums = [torch.zeros(layer.size, device=layer.incoming.parameter.device) for layer in layers]
    counts = [0] * len(layers)

    def see(index: int, layer: UnitLayer, tensor: Tensor) -> None:
        if layer.counts_now():
            values = magnitude(by_unit(layer, output, tensor.detach()))
            sums[index] += values.sum(0, dtype=torch.float32).to(sums[index].device)
            counts[index] += len(values)

    handles = [watch_output(layer, output, partial(see, index, layer)) for index, layer in enumerate(layers)]
    run_watched(forward, handles)
    means = [total / count if count else total * math.nan for total, count in zip(sums, counts, strict=True)]
    return torch.cat([mean.to(sums[0].device) for mean in means])
