"""Run a module without side effects on the current batch and on the next ones."""

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor

from lightning_fire._lightning import attached_trainer, loss_scaler
from lightning_fire.callbacks.probing.next_batches import next_batches
from lightning_fire.callbacks.probing.side_effects import as_written, without_side_effects
from lightning_fire.contracts import HasLossOn, offers
from lightning_fire.methods.base.training import gradients_of

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
            contextlib.closing(self._batches(number)) as batches,
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
    if pl_module.automatic_optimization or offers(pl_module, HasLossOn):
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
        function = "loss_on" if offers(pl_module, HasLossOn) else "training_step"
        raise ValueError(f"{function} has returned {loss!r} instead of a loss")
    return loss


def training_output(pl_module: LightningModule, batch: Any) -> Any:
    """Run the module on a batch, by its `loss_on(batch)` if it has one, otherwise by `training_step`."""
    if offers(pl_module, HasLossOn):
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
