"""Largest eigenvalue of the Hessian of a module's loss on a batch."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightning_fire._private import tree_map
from lightning_fire.callbacks.probing.batches import (
    BatchInHand,
    Loss,
    copied,
    evaluating,
    training_loss,
    without_side_effects,
)
from lightning_fire.functional import Eigenvalue, largest_eigenvalue
from lightning_fire.functional.curvature import gradient_and_product, near_gradient, random_start
from lightning_fire.messages import rank_zero_warn, tell_once

Mode = Callable[[nn.Module], contextlib.AbstractContextManager[Any]]
_HALF = (torch.float16, torch.bfloat16)
_AT_LEAST = 4  # minimum of products, in case the first vector is close to another eigenvector


def module_curvature(
    module: nn.Module,
    batch: Any,
    loss: Loss | None = None,
    tolerance: float = 0.01,
    max_products: int = 50,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Eigenvalue:
    """Largest eigenvalue of the Hessian of a module's loss on a batch with respect to all trainable parameters.

    The module runs in evaluation mode (no dropout, BatchNorm with its running statistics), in float32 or better, and
    without autocast, `torch.compile`, fused attention (which has no second derivatives) and side effects.

    Args:
        module: A LightningModule, or with `loss` any module.
        batch: A batch, on the device of the module.
        loss: Function of the module and a batch that returns the loss, a scalar. Default: the module's `loss_on(batch)`
            if it has one, otherwise `training_step`.
        tolerance: Stop when the residual is at most this fraction of the eigenvalue.
        max_products: Largest number of products with the Hessian; each costs 2 to 3 gradients.
        reduce: Function that returns the mean of a vector over ranks. Default: no other ranks.

    Returns:
        The eigenvalue, its residual and the number of products.

    Raises:
        ValueError: If the Hessian has a NaN or Inf, or the module has no trainable parameters.
        RuntimeError: If an operation of the module cannot be differentiated twice.

    Example:
        >>> net = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        >>> round(module_curvature(net, x, lambda module, batch: module(batch).square().sum(), 1e-6).value, 3)
        18.0
    """
    with_loss = WithLoss(module, training_loss if loss is None else loss)
    state = {**dict(with_loss.named_parameters()), **dict(with_loss.named_buffers())}
    values = {name: widened(value) for name, value in state.items()}
    parameters = [values[name] for name, parameter in with_loss.named_parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the module has no trainable parameters")
    failures: list[Exception] = []
    start = random_start(parameters)
    gradient = torch.full_like(start, torch.nan)
    with _differentiable_twice(module, parameters[0]), torch.enable_grad():
        try:
            value = functional_call(with_loss, values, (tree_map(widened, batch),))
            gradient, product = gradient_and_product(value, parameters)
        except Exception as error:
            if reduce is None:
                raise
            failures.append(error)

        def mean(vector: Tensor) -> Tensor:  # also after a failure: the other ranks wait for this
            own = torch.full_like(vector, torch.nan)
            if not failures:
                try:
                    own = product(vector)
                except Exception as error:
                    failures.append(error)
            return own if reduce is None else reduce(own)

        start = near_gradient(gradient if reduce is None else reduce(gradient), start)
        try:
            return largest_eigenvalue(product if reduce is None else mean, start, tolerance, max_products, _AT_LEAST)
        except ValueError:
            if failures:
                raise failures[0] from None
            raise


class WithLoss(nn.Module):
    """Module whose output is the loss of another module on a batch."""

    def __init__(self, module: nn.Module, loss: Loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.module, batch)


def widened(value: Any) -> Any:
    """Return a tensor of half precision in float32, with gradients if it had them; anything else unchanged."""
    if not isinstance(value, Tensor) or value.dtype not in _HALF:
        return value
    return value.detach().float().requires_grad_(value.requires_grad)


@contextlib.contextmanager
def _differentiable_twice(module: nn.Module, parameter: Tensor) -> Iterator[None]:
    """Context manager: run without fused kernels that have no second derivative (attention, cuDNN's recurrent ones)."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else contextlib.nullcontext()
    with in_full_precision(module, parameter), sdpa_kernel(SDPBackend.MATH), cudnn:
        yield


@contextlib.contextmanager
def in_full_precision(module: nn.Module, parameter: Tensor, mode: Mode = evaluating) -> Iterator[None]:
    """Context manager: run a module in float32 or better, without side effects and autocast; default: eval mode."""
    full = torch.autocast(parameter.device.type, enabled=False)
    with mode(module), without_side_effects(module), full:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if parameter.dtype == torch.float64 else torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


# An event then costs about three training steps of a ResNet-18 on 128 images: a product on 8 images costs 0.15 to 0.2.
# More products change λ_max by some percent, other 8 samples by a factor of up to 4. Starting the second iteration of
# an event from the eigenvector of the first saves no products.
_SAMPLES = 8
_PRODUCTS = 5
_TOLERANCE = 0.1  # of the residual; the eigenvalue is off by its square, divided by the gap


def lambda_max(given: BatchInHand) -> Eigenvalue:
    """Largest eigenvalue of the Hessian of the loss on 8 samples of the current batch.

    With several ranks the loss is their mean.
    """
    strategy = given.trainer.strategy
    several = given.trainer.world_size > 1
    mean = (lambda vector: strategy.reduce(vector, reduce_op="mean")) if several else None
    batch = copied(first_samples(given.batch, _SAMPLES))
    return module_curvature(given.module, batch, None, _TOLERANCE, _PRODUCTS, mean)


def measured_lambda_max(given: BatchInHand, key: str) -> dict[str, float]:
    """Return λ_max and, as `{key}_residual`, its residual. If not computable, return {} and log the reason once."""
    try:
        found = lambda_max(given)
    except ValueError as error:
        tell_once(given.trainer, f"{key} is not logged: {error}.")
        return {}
    except Exception as error:  # a measurement must not end training
        kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        message = f"{key} is not logged: {kind}{error}. log=Log(curvature=False) switches it off."
        tell_once(given.trainer, message, partial(rank_zero_warn, category=RuntimeWarning))
        return {}
    return {key: found.value, f"{key}_residual": found.residual}


def first_samples(batch: Any, number: int) -> Any:
    """Return the first samples of a batch; the whole batch if its tensors differ in length or it has strings.

    Example:
        >>> import torch
        >>> images, labels = first_samples([torch.zeros(8, 3, 4, 4), torch.arange(8)], 3)
        >>> images.shape, labels
        (torch.Size([3, 3, 4, 4]), tensor([0, 1, 2]))
    """
    return batch if num_samples(batch) is None else samples(batch, slice(number))


def num_samples(batch: Any) -> int | None:
    """Return the number of samples in a batch; None if its tensors differ in length or it has strings."""
    lengths: set[int] = set()
    words: list[str] = []
    apply_to_collection(batch, Tensor, lambda tensor: lengths.update(tensor.shape[:1]))
    apply_to_collection(batch, str, words.append)
    return lengths.pop() if len(lengths) == 1 and not words else None


def samples(batch: Any, which: slice) -> Any:
    """Return some samples of a batch for which `num_samples` is not None."""
    return apply_to_collection(batch, Tensor, lambda tensor: tensor[which] if tensor.ndim else tensor)
