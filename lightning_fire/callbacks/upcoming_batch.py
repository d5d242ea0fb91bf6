"""What a network makes of the data that it is about to be trained on, right before and right after an event."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from lightning_fire.callbacks.probe import (
    Loss,
    batches_of,
    evaluating,
    leaving_no_trace,
    training_loss,
    why_not_look,
)
from lightning_fire.functional import Eigenvalue, hessian_product, largest_eigenvalue
from lightning_fire.functional.curvature import random_start

_HALF = (torch.float16, torch.bfloat16)


def curvature_around(
    trainer: Trainer,
    pl_module: LightningModule,
    act: Callable[[], Mapping[str, float]],
    prefix: str,
    loss: Loss | None = None,
) -> dict[str, float]:
    """Do something to a module, and measure how sharply its loss on the upcoming data bends before and after.

    Where that cannot be measured, it says so once and does the rest.

    Args:
        trainer: The Trainer, its data loaded.
        pl_module: Its module.
        act: Changes the module, and returns what to log about it.
        prefix: Of the keys.
        loss: The loss of a batch. Default: what `training_step` returns, of automatic optimization.

    Returns:
        What `act` returned; `{prefix}/lambda_max_before` and `…_after`, see `UpcomingBatch.lambda_max`; and
        `{prefix}/lambda_max_seconds`, the time that both took.
    """
    if reason := why_not_look(trainer, pl_module, explained=loss is not None):
        rank_zero_info(f"{prefix}/lambda_max is not logged: {reason}.")
        return dict(act())
    batch, start = UpcomingBatch(trainer, pl_module, loss), time.perf_counter()
    before, seconds = batch.measured(f"{prefix}/lambda_max_before"), time.perf_counter() - start
    values = act()
    if not before:
        return dict(values)
    start = time.perf_counter()
    after = batch.measured(f"{prefix}/lambda_max_after")
    return {**values, **before, **after, f"{prefix}/lambda_max_seconds": seconds + time.perf_counter() - start}


class UpcomingBatch:
    """The first batch of an epoch, for measuring: training will see it as if nobody had looked.

    Everything is measured in evaluation mode (no dropout, BatchNorm with its running statistics), in float32 or better,
    without `torch.compile` and fused attention, whose results have no second derivatives.

    Args:
        trainer: The Trainer, its data loaded.
        pl_module: Its module.
        loss: From the module and a batch to the loss, a scalar. Default: what `training_step` returns.

    Raises:
        ValueError: If the epoch has no batches.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, loss: Loss | None = None):
        self._trainer, self._module = trainer, pl_module
        self._loss = _WithLoss(pl_module, training_loss if loss is None else loss)
        with leaving_no_trace(pl_module), contextlib.closing(batches_of(trainer)) as batches:
            self._batch = next(batches, None)
        if self._batch is None:
            raise ValueError("the epoch has no batches to look at")

    def lambda_max(self, tolerance: float = 0.01, max_products: int = 50) -> Eigenvalue:
        """Return the largest eigenvalue of the Hessian of the loss, by all trainable parameters.

        Of several ranks: of the mean of their losses, the same on each.

        Args:
            tolerance: Stop when the residual is at most this share of the eigenvalue.
            max_products: Products with the Hessian at most.

        Raises:
            ValueError: If the Hessian has a NaN or Inf.
            RuntimeError: If some operation of the module cannot be differentiated twice.
        """
        values = {name: _widened(value) for name, value in self._state().items()}
        trainable = [name for name, parameter in self._loss.named_parameters() if parameter.requires_grad]
        parameters = [values[name] for name in trainable]
        with _differentiable_twice(self._module), torch.enable_grad():
            batch = tree_map(_widened, self._batch) if self._has_halves() else self._batch
            product = hessian_product(functional_call(self._loss, values, (batch,)), parameters)
            return largest_eigenvalue(
                lambda vector: self._trainer.strategy.reduce(product(vector), reduce_op="mean"),
                random_start(parameters),
                tolerance,
                max_products,
            )

    def measured(self, key: str) -> dict[str, float]:
        """Return λ_max under a key; nothing where it cannot be computed, and say why.

        Args:
            key: What to log it as.
        """
        try:
            return {key: self.lambda_max().value}
        except ValueError as error:
            rank_zero_info(f"{key} is not logged: {error}.")
        except RuntimeError as error:  # some operation has no second derivative, or too little memory
            rank_zero_warn(f"{key} is not logged: {error}. curvature=False does without it.", category=RuntimeWarning)
        return {}

    def _state(self) -> dict[str, Tensor]:
        return {**dict(self._loss.named_parameters()), **dict(self._loss.named_buffers())}

    def _has_halves(self) -> bool:
        return any(parameter.dtype in _HALF for parameter in self._module.parameters())


class _WithLoss(nn.Module):
    """A module, to be called with a batch for its loss."""

    def __init__(self, module: LightningModule, loss: Loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.module, batch)


def _widened(value: Any) -> Any:
    """Return tensors of half precision in float32, parameters ready for derivatives; anything else as it is."""
    if not isinstance(value, Tensor) or value.dtype not in _HALF:
        return value
    return value.detach().float().requires_grad_(value.requires_grad)


@contextlib.contextmanager
def _differentiable_twice(pl_module: LightningModule) -> Iterator[None]:
    """Let no fused kernel run whose result has no second derivative: attention, and cuDNN's recurrent layers."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in pl_module.modules())
    cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else contextlib.nullcontext()
    with evaluating(pl_module), leaving_no_trace(pl_module), sdpa_kernel(SDPBackend.MATH), cudnn:
        yield
