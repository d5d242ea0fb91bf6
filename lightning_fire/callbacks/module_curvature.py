"""How sharply the loss of a module bends on a batch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from lightning_fire.callbacks.no_trace import evaluating, leaving_no_trace
from lightning_fire.callbacks.probe import Loss, training_loss
from lightning_fire.functional import Eigenvalue, largest_eigenvalue
from lightning_fire.functional.curvature import gradient_and_product, near_gradient, random_start

_HALF = (torch.float16, torch.bfloat16)
_AT_LEAST = 4  # products, so that no lucky vector of a lesser eigenvalue ends it


def module_curvature(
    module: nn.Module,
    batch: Any,
    loss: Loss | None = None,
    tolerance: float = 0.01,
    max_products: int = 50,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Eigenvalue:
    """Return the largest eigenvalue of the Hessian of a module's loss on a batch, by all its trainable parameters.

    The module is taken as one function: in evaluation mode (no dropout, BatchNorm with its running statistics), in
    float32 or better, without autocast, `torch.compile` and fused attention, whose results have no second derivatives.
    Its parameters, gradients, buffers, metrics, logs, modes and the random states are left as they are.

    Args:
        module: A LightningModule, or with `loss` any module.
        batch: A batch, on the device of the module.
        loss: From the module and a batch to the loss, a scalar. Default: the module's `loss_on(batch)` if it
            has one, otherwise what `training_step` returns; what that logs is dropped.
        tolerance: Stop when the residual is at most this share of the eigenvalue.
        max_products: Products with the Hessian at most, each of 2 to 3 gradients.
        reduce: Makes of a product the mean over ranks. Default: this process alone.

    Returns:
        The eigenvalue, its residual and the number of products.

    Raises:
        ValueError: If the Hessian has a NaN or Inf, or there is nothing to train.
        RuntimeError: If some operation of the module cannot be differentiated twice.

    Example:
        >>> net = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        >>> round(module_curvature(net, x, lambda module, batch: module(batch).square().sum(), 1e-6).value, 3)
        18.0
    """
    with_loss = _WithLoss(module, training_loss if loss is None else loss)
    state = {**dict(with_loss.named_parameters()), **dict(with_loss.named_buffers())}
    values = {name: _widened(value) for name, value in state.items()}
    parameters = [values[name] for name, parameter in with_loss.named_parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the module has nothing to train")
    failures: list[Exception] = []
    start = random_start(parameters)
    gradient = torch.full_like(start, torch.nan)
    with _differentiable_twice(module, parameters[0]), torch.enable_grad():
        try:
            value = functional_call(with_loss, values, (tree_map(_widened, batch),))
            gradient, product = gradient_and_product(value, parameters)
        except Exception as error:
            if reduce is None:
                raise
            failures.append(error)

        def mean(vector: Tensor) -> Tensor:  # of the others too: none may wait for one that has failed
            own = torch.full_like(vector, torch.nan)
            if not failures:
                try:
                    own = product(vector)
                except Exception as error:
                    failures.append(error)
            return reduce(own)

        start = near_gradient(gradient if reduce is None else reduce(gradient), start)
        try:
            return largest_eigenvalue(product if reduce is None else mean, start, tolerance, max_products, _AT_LEAST)
        except ValueError:
            if failures:
                raise failures[0] from None
            raise


class _WithLoss(nn.Module):
    """A module, to be called with a batch for its loss."""

    def __init__(self, module: nn.Module, loss: Loss):
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
def _differentiable_twice(module: nn.Module, parameter: Tensor) -> Iterator[None]:
    """Let no fused kernel run whose result has no second derivative: attention, and cuDNN's recurrent layers."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else contextlib.nullcontext()
    full = torch.autocast(parameter.device.type, enabled=False)
    with evaluating(module), leaving_no_trace(module), sdpa_kernel(SDPBackend.MATH), cudnn, full:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if parameter.dtype == torch.float64 else torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)
