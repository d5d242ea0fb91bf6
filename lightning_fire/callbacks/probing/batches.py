"""Run a module without side effects on the current batch and on the next ones."""

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_fire._lightning import attached_trainer, loss_scaler, random_states, set_random_states
from lightning_fire._private import is_compiled
from lightning_fire.callbacks.probing.next_batches import next_batches
from lightning_fire.contracts import HasLossOn, implements
from lightning_fire.distributed import is_expanded, local
from lightning_fire.methods.base.loop import gradients_of
from lightning_fire.methods.base.passes import ignored_passes, keeping_modes, same_buffers

_CONTAINERS = list, dict, set, deque
Loss = Callable[[Any, Any], Tensor]  # of a module and a batch
Forward = Callable[[LightningModule, Any], Any]


@dataclass(frozen=True)
class BatchInHand:
    """The batch given to `on_train_batch_start`, on which training is about to step, and the batches after it.

    Each run gets a copy of it.
    """

    trainer: Trainer
    module: LightningModule
    batch: Any

    def gradients(self, parameters: Sequence[Tensor], number: int = 1) -> Iterator[list[Tensor]]:
        """Yield the gradient of the training loss on this batch, then on the next ones.

        Gradients, buffers, metrics, logs and random states are not changed, and training gets the same batches as
        without this. Each rank computes the gradients of its own batches, at most the remaining ones of the epoch.
        """
        scaler = loss_scaler(self.trainer)
        scale = 1.0 if scaler is None else scaler.get_scale()
        for value in self._run(training_loss, number):
            yield [gradient / scale for gradient in gradients_of(value * scale, parameters)]

    def forward(self, number: int = 1, forward: Forward | None = None) -> None:
        """Run the module and its hooks, by default its `loss_on` or `training_step`, on this batch and the next ones.

        Compiled parts run without `torch.compile`.
        """
        with as_written(self.module):
            for _ in self._run(training_output if forward is None else forward, number):
                pass

    def _run(self, function: Forward, number: int) -> Iterator[Any]:
        if reason := why_not_run(self.trainer, self.module):
            raise MisconfigurationException(reason)
        with (
            closing(self._batches(number)) as batches,
            without_side_effects(self.module),
            torch.enable_grad(),  # some training steps compute derivatives
        ):
            for batch in batches:
                with self.trainer.precision_plugin.train_step_context():
                    result = function(self.module, batch)
                yield result

    def _batches(self, number: int) -> Generator[Any, None, None]:
        yield copied(self.batch)
        if number > 1:
            yield from next_batches(self.trainer, number - 1)


def copied(batch: Any) -> Any:
    """Copy a batch, as a training step may change it; return itself if it cannot be copied."""
    try:
        return copy.deepcopy(batch)
    except Exception:  # of a user's class
        return batch


def why_not_run(trainer: Trainer, pl_module: LightningModule) -> str:
    """Return why a module cannot run on the current batch without training on it; empty if it can."""
    if weights_are_sharded(trainer):
        return "the weights are sharded, and a forward pass without its backward pass would disturb the strategy"
    if is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True):
        return "training_step takes its batches itself, from dataloader_iter, and callbacks are given none"
    if pl_module.automatic_optimization or implements(pl_module, HasLossOn):
        return ""
    return (
        "the training_step of manual optimization takes optimizer steps by itself; say how to run the module on a"
        " batch, by a method loss_on(batch) of the module"
    )


def weights_are_sharded(trainer: Trainer) -> bool:
    """Return whether the strategy of a Trainer shards weights (FSDP2, tensor parallelism)."""
    return any(kind.__name__ == "ModelParallelStrategy" for kind in type(trainer.strategy).__mro__)


def training_loss(pl_module: LightningModule, batch: Any) -> Tensor:
    """Return the module's loss on a batch, by its `loss_on(batch)` if it has one, otherwise by `training_step`."""
    output = training_output(pl_module, batch)
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        function = "loss_on" if implements(pl_module, HasLossOn) else "training_step"
        raise ValueError(f"{function} has returned {loss!r} instead of a loss")
    return loss


def training_output(pl_module: LightningModule, batch: Any) -> Any:
    """Run the module on a batch, by its `loss_on(batch)` if it has one, otherwise by `training_step`."""
    if implements(pl_module, HasLossOn):
        return pl_module.loss_on(batch)
    with_index = is_param_in_hook_signature(pl_module.training_step, "batch_idx", min_args=2)
    trainer = attached_trainer(pl_module)
    index = 0 if trainer is None else max(0, trainer.fit_loop.batch_idx)
    return pl_module.training_step(batch, *([index] if with_index else []))


def on_all_ranks(trainer: Trainer, done: bool) -> bool:
    """Return whether a flag is set on all ranks. Every rank must call this."""
    if trainer.world_size == 1:
        return done
    flag = torch.tensor(float(done), device=trainer.strategy.root_device)
    return bool(trainer.strategy.reduce(flag, reduce_op="mean") == 1.0)


def as_written(module: nn.Module) -> AbstractContextManager[Any]:
    """Context manager: run a module without `torch.compile`, so that hooks registered after compiling run."""
    return torch.compiler.set_stance("force_eager") if is_compiled(module) else nullcontext()


@contextmanager
def without_side_effects(module: nn.Module) -> Iterator[None]:
    """Context manager: run a module, then restore what its step changes.

    Restored are the global random states, buffers, frozen parameters such as those of an EMA, metrics of torchmetrics,
    and attributes of the module, with the content of tensors, lists, dicts and sets. Logs are dropped. What a step
    changes elsewhere, such as generators and iterators of its own, stays changed.
    """
    trainer, states = attached_trainer(module), random_states()
    loggers = [] if trainer is None else trainer.loggers
    frozen = [(tensor, tensor.clone()) for tensor in map(local, _frozen(module)) if not is_expanded(tensor)]
    owners = [module, *(part for part in module.modules() if isinstance(part, Metric) and part is not module)]
    attributes = [(vars(owner), dict(vars(owner))) for owner in owners]
    public = (value for _, former in attributes for name, value in former.items() if name[0] != "_")
    restorers = [_restorer(value) for value in public]
    if loggers:
        trainer.loggers = [DummyLogger() for _ in loggers]
    vars(module)["log"] = _drop
    try:
        with ignored_passes(module), same_buffers(module):
            yield
    finally:
        for own, former in attributes:
            own.clear()
            own.update(former)
        if loggers:
            trainer.loggers = loggers
        set_random_states(states)
        for restore in restorers:
            restore()
        for tensor, value in frozen:
            tensor.copy_(value)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager: run a module in evaluation mode and without `torch.compile`."""
    with keeping_modes(module):
        module.eval()
        with as_written(module):
            yield


def _frozen(module: nn.Module) -> list[Tensor]:
    """Return the frozen parameters of a module, unless they are those of a large frozen model."""
    frozen: list[Tensor] = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    trainable = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return frozen if sum(parameter.numel() for parameter in frozen) <= 2 * trainable else []


def _restorer(value: Any) -> Callable[[], object]:
    """Return a function that restores the content of a tensor or container, and of containers in it."""
    if isinstance(value, Tensor) and not (is_expanded(value) or value.is_inference()):
        return partial(value.detach().copy_, value.detach().clone())
    if not isinstance(value, _CONTAINERS):
        return _drop
    former: Any = copy.copy(value)
    parts = former.values() if isinstance(former, dict) else former
    inner = [_restorer(each) for each in parts if isinstance(each, _CONTAINERS)]

    def restore() -> None:
        value.clear()
        (value.update if isinstance(value, dict | set) else value.extend)(former)
        for each in inner:
            each()

    return restore


def _drop(*args: Any, **kwargs: Any) -> None:
    """Do nothing, also instead of `LightningModule.log`."""
