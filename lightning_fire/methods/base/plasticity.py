"""Plasticity metrics of a network: of its weights, hidden units and last features."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_fire.distributed import to_list
from lightning_fire.functional import dormant, entropy_rank_of, srank_of, stable_rank_of
from lightning_fire.functional.ranks import singular_values_of_finite_gram
from lightning_fire.methods.base.change import measurable
from lightning_fire.methods.base.report import Report, health
from lightning_fire.where import UnitLayer, WeightView, weight_layers


def report_of_weights(model: nn.Module, weights: Sequence[WeightView] | None = None) -> Report:
    """Return the metrics of weights, by default of those that `Weights()` selects; empty without weights."""
    weights = measurable(model, set(model.parameters())) if weights is None else weights
    return health(weights) if weights else Report()


def report_of_units(layers: Sequence[UnitLayer], means: Tensor, threshold: float) -> Report:
    """Return the dormant fraction of each layer that has run, from the mean |h| of all units, shape (units,)."""
    activities = means.split([layer.size for layer in layers])
    found = to_list([torch.stack([each.isnan().any(), dormant(each, threshold).sum()]) for each in activities])
    counts = {layer: number for layer, (is_nan, number) in zip(layers, found, strict=True) if not is_nan}
    if not counts:
        return Report()
    fractions = {layer.name: count / layer.size for layer, count in counts.items()}
    total = sum(counts.values()) / sum(layer.size for layer in counts)
    return Report({"dormant_fraction": total}, layers={"dormant_fraction": fractions})


def report_of_features(gram: Tensor) -> Report:
    """Return the ranks of features from their Gram matrix hᵀh, (features, features); empty for a NaN or Inf."""
    if not gram.isfinite().all():
        return Report()
    singular = singular_values_of_finite_gram(gram)
    ranks = {"srank": srank_of, "stable_rank": stable_rank_of, "entropy_rank": entropy_rank_of}
    return Report(dict(zip(ranks, to_list([rank(singular) for rank in ranks.values()]), strict=True)))


def gram_of_last_features(model: nn.Module, forwards: Iterable[Callable[[], object]]) -> Tensor:
    """Return the sum of hᵀh over inputs h of the Linear or convolution layer that runs last, `(features, features)`.

    In float64, over all samples and positions of some forward passes with gradients. Features without gradients, such
    as those of a target network, count only if all features are without gradients.
    """
    last: tuple[nn.Module, Tensor] | None = None
    gram = torch.zeros(())

    def watch(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal last
        value = args[0] if args else next(iter(kwargs.values()))
        if last is None or value.requires_grad or not last[1].requires_grad:
            last = layer, value

    handles = [layer.register_forward_pre_hook(watch, with_kwargs=True) for layer in weight_layers(model)]
    try:
        for forward in forwards:
            forward()
            if last is None:
                raise ValueError("no Linear or convolution layer has run")
            features, last = features_of(*last).detach(), None
            wide = features.to("cpu" if features.device.type == "mps" else features.device, torch.float64)
            gram = gram.to(wide) + wide.mT @ wide
    finally:
        for handle in handles:
            handle.remove()
    return gram


def features_of(layer: nn.Module, value: Tensor) -> Tensor:
    """Return the input of a Linear or convolution layer as rows, shape `(samples and positions, features)`.

    Example:
        >>> features_of(nn.Conv2d(3, 8, 2), torch.ones(4, 3, 5, 5)).shape
        torch.Size([100, 3])
    """
    kernel: Sequence[int] = () if isinstance(layer, nn.Linear) else getattr(layer, "kernel_size", ())
    value = value.movedim(-1 - len(kernel), -1)
    return value.reshape(-1, value.shape[-1])
