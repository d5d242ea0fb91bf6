"""Looks at the training loss on the data that is about to be trained on, and leaves no trace."""

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from lightning_fire._lightning import (
    before_batch_transfer,
    combined_like,
    combined_loader,
    copy_of_loader,
    tree_leaves,
    tree_map,
)
from lightning_fire.callbacks.probing.side_effects import as_written, leaving_no_trace
from lightning_fire.contracts import HasLossOn, HasPeekBatches, offers

Loss = Callable[[LightningModule, Any], Tensor]
Forward = Callable[[LightningModule, Any], Any]
_DEPTH = 6  # a sampler in a sampler of Lightning's, in a batch sampler, in a loader


def gradients_on_new_data(
    trainer: Trainer,
    pl_module: LightningModule,
    parameters: Sequence[Tensor],
    num_batches: int,
) -> Iterator[list[Tensor]]:
    """Yield the gradient of the training loss on each of the first batches of this epoch.

    Buffers, gradients, metrics, logs and random states stay as they are, and training will see these batches as if
    nobody had looked. Ranks do not talk: each sees its own share of the data.

    Args:
        parameters: What to derive by.
        num_batches: Batches at most.

    Raises:
        MisconfigurationException: If the module optimizes manually and has no `loss_on`.
    """
    if reason := _takes_steps(pl_module, "what the loss of a batch is"):
        raise MisconfigurationException(reason)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    scale = 1.0 if scaler is None else scaler.get_scale()
    with contextlib.closing(batches_of(trainer)) as batches, leaving_no_trace(pl_module), torch.enable_grad():
        for index, batch in enumerate(islice(batches, num_batches)):
            with trainer.precision_plugin.train_step_context():
                value = training_loss(pl_module, batch, index)
            gradients = torch.autograd.grad(value * scale, parameters, allow_unused=True)
            yield [
                torch.zeros_like(parameter) if gradient is None else gradient / scale
                for parameter, gradient in zip(parameters, gradients, strict=True)
            ]


def forward_on_new_data(
    trainer: Trainer,
    pl_module: LightningModule,
    num_batches: int,
    forward: Forward | None = None,
) -> None:
    """Run the module on the first batches of this epoch, for hooks to watch; leave no trace otherwise.

    What is compiled runs as it was written.

    Args:
        num_batches: Batches at most.
        forward: Runs the module on a batch. Default: its `loss_on(batch)` if it has one, otherwise `training_step`;
            what that logs is dropped.

    Raises:
        MisconfigurationException: If the module optimizes manually and has no `loss_on`.
    """
    if reason := _takes_steps(pl_module, "how the module runs on a batch"):
        raise MisconfigurationException(reason)
    with (
        contextlib.closing(batches_of(trainer)) as batches,
        leaving_no_trace(pl_module),
        torch.enable_grad(),  # some training steps derive by themselves
        as_written(pl_module),
    ):
        for index, batch in enumerate(islice(batches, num_batches)):
            with trainer.precision_plugin.train_step_context():
                _training_output(pl_module, batch, index) if forward is None else forward(pl_module, batch)


def why_not_look(trainer: Trainer, pl_module: LightningModule) -> str:
    """Tell why a module should not be run on the data to come without being asked to; empty if it may be."""
    if weights_are_sharded(trainer):
        return "the weights are sharded, and a forward pass without its backward pass would disturb the strategy"
    if reason := _takes_steps(pl_module, "how to run the module on a batch"):
        return reason
    if not offers(pl_module, HasLossOn) and is_param_in_hook_signature(
        pl_module.training_step, "dataloader_iter", explicit=True
    ):
        return "training_step takes its batches itself, from dataloader_iter; say how to run the module on a batch"
    for loader in tree_leaves(combined_loader(trainer).iterables):
        if offers(loader, HasPeekBatches):
            continue
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return f"the data of {type(loader).__name__} may be there only once, and training needs it"
    return ""


def weights_are_sharded(trainer: Trainer) -> bool:
    """Tell whether the strategy of a Trainer shards weights (FSDP2, tensor parallelism)."""
    return any(kind.__name__ == "ModelParallelStrategy" for kind in type(trainer.strategy).__mro__)


def batches_of(trainer: Trainer) -> Iterator[Any]:
    """Yield this epoch's batches from loaders of their own, on the device; as many as training will see.

    The random generators that the loaders, their samplers and data sets hold are put back, so that training sees its
    own order.
    """
    combined = combined_loader(trainer)
    own = combined_like(combined, tree_map(_own, combined.iterables))
    number = trainer.num_training_batches
    generators: dict[int, Callable[[], None]] = {}
    for loader in tree_leaves(combined.iterables):
        _collect_generators(loader, generators, depth=_DEPTH)
    try:
        for batch, _, _ in islice(own, None if number == float("inf") else number):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = before_batch_transfer(trainer.lightning_module, batch)
            yield trainer.strategy.batch_to_device(batch, dataloader_idx=0)
    finally:
        for restore in generators.values():
            restore()


def _own(loader: Any) -> Any:
    """Copy a loader, not its data: one with persistent workers has a single iterator, which training holds.

    Without worker processes, whose start would take longer than a batch, unless they have something to set up.

    A loader whose batches are made when asked for may have `peek_batches()`: batches as training would see them.
    """
    if offers(loader, HasPeekBatches):
        return loader.peek_batches()
    if not isinstance(loader, DataLoader):
        return loader
    own = copy_of_loader(loader)
    if loader.worker_init_fn is None and not isinstance(loader.dataset, IterableDataset):
        vars(own).update(num_workers=0, persistent_workers=False, prefetch_factor=None, timeout=0)
    return own


def _collect_generators(thing: Any, found: dict[int, Callable[[], None]], depth: int) -> None:
    """Find the random generators that an object holds, or one that it holds, and so on; with what puts each back."""
    if depth == 0 or not hasattr(thing, "__dict__"):
        return
    for value in vars(thing).values():
        if id(value) in found:
            continue
        if isinstance(value, torch.Generator | random.Random | np.random.Generator | np.random.RandomState):
            found[id(value)] = _restore_of_generator(value)
        elif isinstance(value, Dataset | Sampler | DataLoader) or depth == _DEPTH:
            _collect_generators(value, found, depth - 1)


def _restore_of_generator(generator: Any) -> Callable[[], None]:
    """Return what to call, to have a random generator as it is now."""
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.Generator):
        return partial(setattr, generator.bit_generator, "state", copy.deepcopy(generator.bit_generator.state))
    return partial(generator.set_state, generator.get_state())


def training_loss(pl_module: LightningModule, batch: Any, index: int = 0) -> Tensor:
    """Return the module's loss of a batch: that of its `loss_on(batch)` if it has one, otherwise of `training_step`.

    Args:
        batch: The batch, on the device.
        index: Its number in the epoch.

    Raises:
        ValueError: If that is no loss.
    """
    output = _training_output(pl_module, batch, index)
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        function = "loss_on" if offers(pl_module, HasLossOn) else "training_step"
        raise ValueError(f"{function} has returned {loss!r} in the place of a loss")
    return loss


def _takes_steps(pl_module: LightningModule, unknown: str) -> str:
    """Tell why training_step cannot be run to look at a batch, and what would do instead; empty if it can."""
    if pl_module.automatic_optimization or offers(pl_module, HasLossOn):
        return ""
    return (
        f"the training_step of manual optimization takes optimizer steps by itself; say {unknown}, by a method"
        " loss_on(batch) of the module"
    )


def _training_output(pl_module: LightningModule, batch: Any, index: int) -> Any:
    if offers(pl_module, HasLossOn):
        return pl_module.loss_on(batch)
    with_index = is_param_in_hook_signature(pl_module.training_step, "batch_idx", min_args=2)
    return pl_module.training_step(batch, *([index] if with_index else []))


def on_all_ranks(trainer: Trainer, done: bool) -> bool:
    """Tell whether all ranks have done something; all must ask.

    Args:
        done: Whether this one has.
    """
    flag = torch.tensor(float(done), device=trainer.strategy.root_device)
    return bool(trainer.strategy.reduce(flag, reduce_op="mean") == 1.0)
