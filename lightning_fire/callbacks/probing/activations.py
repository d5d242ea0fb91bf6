"""How active hidden units are on batches of the training data."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_fire.callbacks.probing.batches import forward_on_new_data, training_loss
from lightning_fire.where import weight_layers


class LastFeatures:
    """Watches what goes into the Linear or convolution layer that runs last, while a module runs.

    Features without gradients, as those that a target network gives, count only where there are no others.

    Args:
        module: The module.

    Attributes:
        gram: Sum of hᵀh over all that `take` has returned, shape `(features, features)`, float64; None before.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> with LastFeatures(net) as features:
        ...     _ = net(torch.ones(4, 3))
        ...     features.take().shape
        torch.Size([4, 2])
    """

    def __init__(self, module: nn.Module):
        self.gram: Tensor | None = None
        self._layers: Sequence[nn.Module] = weight_layers(module)
        self._handles: list[RemovableHandle] = []
        self._last: Tensor | None = None

    def __enter__(self) -> "LastFeatures":
        self._handles = [layer.register_forward_pre_hook(self._see, with_kwargs=True) for layer in self._layers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._last = None

    def take(self) -> Tensor:
        """Return the features of the batch that has run, and add them to `gram`.

        Returns:
            Shape `(samples and places, features)`, detached.

        Raises:
            ValueError: If no such layer has run.
        """
        if self._last is None:
            raise ValueError("no Linear or convolution layer has run")
        features, self._last = self._last.detach(), None
        wide = features.to("cpu" if features.device.type == "mps" else features.device, torch.float64)
        gram = wide.mT @ wide
        self.gram = gram if self.gram is None else self.gram + gram
        return features

    def _see(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = args[0] if args else next(iter(kwargs.values()))
        if self._last is not None and self._last.requires_grad and not value.requires_grad:
            return
        channels_first = not isinstance(layer, nn.Linear) and hasattr(layer, "kernel_size")
        value = value.movedim(-1 - len(layer.kernel_size), -1) if channels_first else value
        self._last = value.reshape(-1, value.shape[-1])


@torch.no_grad()
def gram_of_last_features(trainer: Trainer, pl_module: LightningModule, num_batches: int) -> Tensor:
    """Return the sum of hᵀh over the features h of all samples and places of this rank.

    Args:
        num_batches: Batches to look at, at most an epoch of them.

    Returns:
        Shape `(features, features)`, float64.
    """

    def run_and_take(module: LightningModule, batch: Any) -> None:
        training_loss(module, batch)
        features.take()

    with LastFeatures(pl_module) as features:
        forward_on_new_data(trainer, pl_module, num_batches, run_and_take)
    if features.gram is None:
        raise ValueError("the epoch has no batches to look at")
    return features.gram
