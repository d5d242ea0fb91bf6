"""Features of a network on upcoming batches."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_fire.callbacks.probing.batches import BatchInHand, training_loss
from lightning_fire.where import weight_layers


def features_of(layer: nn.Module, value: Tensor) -> Tensor:
    """Return the input of a Linear or convolution layer as rows, shape `(samples and positions, features)`.

    Example:
        >>> features_of(nn.Conv2d(3, 8, 2), torch.ones(4, 3, 5, 5)).shape
        torch.Size([100, 3])
    """
    kernel: Sequence[int] = () if isinstance(layer, nn.Linear) else getattr(layer, "kernel_size", ())
    value = value.movedim(-1 - len(kernel), -1)
    return value.reshape(-1, value.shape[-1])


@torch.no_grad()
def gram_of_last_features(given: Sequence[BatchInHand]) -> Tensor:
    """Return the sum of hᵀh over inputs h of the Linear or convolution layer that runs last, `(features, features)`.

    In float64, over all samples and positions of this rank in some batches of one module. Features without
    gradients, such as those of a target network, count only if all features are without gradients.
    """
    last: Tensor | None = None
    gram: Tensor | None = None

    def watch(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal last
        value = args[0] if args else next(iter(kwargs.values()))
        if last is None or value.requires_grad or not last.requires_grad:
            last = features_of(layer, value)

    def run(module: LightningModule, batch: Any) -> None:
        nonlocal last, gram
        training_loss(module, batch)
        if last is None:
            raise ValueError("no Linear or convolution layer has run")
        features, last = last.detach(), None
        wide = features.to("cpu" if features.device.type == "mps" else features.device, torch.float64)
        gram = wide.mT @ wide if gram is None else gram + wide.mT @ wide

    handles = [layer.register_forward_pre_hook(watch, with_kwargs=True) for layer in weight_layers(given[0].module)]
    try:
        for each in given:
            each.forward(forward=run)
    finally:
        for handle in handles:
            handle.remove()
    assert gram is not None  # of at least one batch
    return gram
