"""Losses of a copy of a module while it learns a task."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.optim import Optimizer

from lightning_fire._private import tree_map
from lightning_fire.callbacks.probing.batches import Loss, as_written, training_loss
from lightning_fire.callbacks.probing.curvature import WithLoss, in_full_precision, widened
from lightning_fire.methods.base.seeded import seeded


def learning_curve(
    module: nn.Module,
    batches: Iterable[Any],
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    loss: Loss | None = None,
) -> list[float]:
    """Train a copy of a module on some batches; return the loss on each before the update with it.

    The module itself is not changed. The copy runs in the module's modes, in float32 or better, without autocast and
    `torch.compile`, and with a fixed seed of torch.

    Args:
        module: A LightningModule, or with `loss` any module.
        batches: Batches on the device of the module, one for each step.
        optimizer: Function from the trainable parameters of the copy to its optimizer.
        loss: Function of the module and a batch that returns the loss, a scalar. Default: the module's `loss_on(batch)`
            if it has one, otherwise `training_step`.

    Raises:
        ValueError: If the module has no trainable parameters.

    Example:
        >>> net = nn.Linear(1, 1, bias=False)
        >>> nn.init.ones_(net.weight).shape
        torch.Size([1, 1])
        >>> x = torch.ones(1, 1)
        >>> learning_curve(net, [x, x, x], lambda p: torch.optim.SGD(p, lr=0.25), lambda net, x: net(x).square().sum())
        [1.0, 0.25, 0.0625]
        >>> net.weight.item()
        1.0
    """
    with_loss = WithLoss(module, training_loss if loss is None else loss)
    copies = {name: widened(p.detach().clone()) for name, p in with_loss.named_parameters()}
    trained = {name: nn.Parameter(copies[name]) for name, p in with_loss.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the module has no trainable parameters")
    state = {**copies, **trained, **{name: widened(buffer.clone()) for name, buffer in with_loss.named_buffers()}}
    first = next(iter(trained.values()))
    learner = optimizer(trained.values())
    losses = []
    with in_full_precision(module, first, as_written), seeded(0, [first.device]), torch.enable_grad():
        for batch in batches:
            value = functional_call(with_loss, state, (tree_map(widened, batch),))
            gradients = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
            for parameter, gradient in zip(trained.values(), gradients, strict=True):
                parameter.grad = gradient
            learner.step()
            losses.append(value.detach())
    return torch.stack(losses).tolist() if losses else []
