"""Run a module on upcoming training batches without side effects."""

import contextlib
import copy
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from lightning_fire._lightning import before_batch_transfer, combined_like, combined_loader, loss_scaler
from lightning_fire._private import copy_of_loader, tree_leaves, tree_map
from lightning_fire.callbacks.probing.side_effects import as_written, without_side_effects
from lightning_fire.contracts import HasLossOn, HasPeekBatches, offers
from lightning_fire.methods.base.training import gradients_of

Loss = Callable[[Any, Any], Tensor]  # of a module and a batch
Forward = Callable[[LightningModule, Any], Any]
_DEPTH = 6  # of random generators: in a sampler, in a sampler of Lightning, in a batch sampler, in a loader


def gradients_on_new_data(
    trainer: Trainer, pl_module: LightningModule, parameters: Sequence[Tensor], num_batches: int
) -> Iterator[list[Tensor]]:
    """Yield the gradient of the training loss on each of the first batches of this epoch.

    Gradients, buffers, metrics, logs and random states stay as they are, and training gets the same batches as without.
    Each rank computes the gradients of its own batches.
    """
    if reason := _takes_steps(pl_module, "what the loss of a batch is"):
        raise MisconfigurationException(reason)
    scaler = loss_scaler(trainer)
    scale = 1.0 if scaler is None else scaler.get_scale()
    with contextlib.closing(batches_of(trainer)) as batches, without_side_effects(pl_module), torch.enable_grad():
        for index, batch in enumerate(islice(batches, num_batches)):
            with trainer.precision_plugin.train_step_context():
                value = training_loss(pl_module, batch, index)
            yield [gradient / scale for gradient in gradients_of(value * scale, parameters)]


def forward_on_new_data(
    trainer: Trainer, pl_module: LightningModule, num_batches: int, forward: Forward | None = None
) -> None:
    """Run the module on the first batches of this epoch, without side effects, for the hooks on its layers.

    Compiled parts run without `torch.compile`.
    """
    if reason := _takes_steps(pl_module, "how the module runs on a batch"):
        raise MisconfigurationException(reason)
    with (
        contextlib.closing(batches_of(trainer)) as batches,
        without_side_effects(pl_module),
        torch.enable_grad(),  # some training steps compute derivatives
        as_written(pl_module),
    ):
        for index, batch in enumerate(islice(batches, num_batches)):
            with trainer.precision_plugin.train_step_context():
                training_output(pl_module, batch, index) if forward is None else forward(pl_module, batch)


def why_not_look(trainer: Trainer, pl_module: LightningModule) -> str:
    """Return the reason not to run a module on upcoming batches by default; empty if it can run."""
    if weights_are_sharded(trainer):
        return "the weights are sharded, and a forward pass without its backward pass would disturb the strategy"
    if reason := _takes_steps(pl_module, "how to run the module on a batch"):
        return reason
    takes_iterator = is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True)
    if takes_iterator and not offers(pl_module, HasLossOn):
        return "training_step takes its batches itself, from dataloader_iter; say how to run the module on a batch"
    for loader in tree_leaves(combined_loader(trainer).iterables):
        repeatable = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        if not repeatable and not offers(loader, HasPeekBatches):
            return f"the data of {type(loader).__name__} may be readable only once, and training needs it"
    return ""


def weights_are_sharded(trainer: Trainer) -> bool:
    """Return whether the strategy of a Trainer shards weights (FSDP2, tensor parallelism)."""
    return any(kind.__name__ == "ModelParallelStrategy" for kind in type(trainer.strategy).__mro__)


def batches_of(trainer: Trainer, loaders: Any = None, number: float | None = None) -> Generator[Any, None, None]:
    """Yield batches on the device, from copies of loaders, whose random states are restored at the end.

    Default: this epoch's training batches.
    """
    combined = combined_loader(trainer)
    loaders = combined.iterables if loaders is None else loaders
    number = trainer.num_training_batches if number is None else number
    own = combined_like(combined, tree_map(_copied, loaders))
    generators: dict[int, Callable[[], None]] = {}
    for loader in tree_leaves(loaders):
        _collect_generators(loader, generators, depth=_DEPTH)
    try:
        for batch, _, _ in islice(own, None if number == float("inf") else int(number)):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = before_batch_transfer(trainer.lightning_module, batch)
            yield trainer.strategy.batch_to_device(batch, dataloader_idx=0)
    finally:
        for restore in generators.values():
            restore()


def _copied(loader: Any) -> Any:
    """Copy a loader, not its data; without worker processes, which are slow to start, unless they need a setup."""
    if offers(loader, HasPeekBatches):
        return loader.peek_batches()
    if not isinstance(loader, DataLoader):
        return loader
    copied = copy_of_loader(loader)
    if loader.worker_init_fn is None and not isinstance(loader.dataset, IterableDataset):
        vars(copied).update(num_workers=0, persistent_workers=False, prefetch_factor=None, timeout=0)
    return copied


def _collect_generators(thing: Any, found: dict[int, Callable[[], None]], depth: int) -> None:
    """Find the random generators in an object and its parts, with a function that restores each."""
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
    """Return a function that restores the present state of a random generator."""
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.Generator):
        return partial(setattr, generator.bit_generator, "state", copy.deepcopy(generator.bit_generator.state))
    return partial(generator.set_state, generator.get_state())


def training_loss(pl_module: LightningModule, batch: Any, index: int = 0) -> Tensor:
    """Return the module's loss on a batch: of its `loss_on(batch)` if it has one, otherwise of `training_step`."""
    output = training_output(pl_module, batch, index)
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        function = "loss_on" if offers(pl_module, HasLossOn) else "training_step"
        raise ValueError(f"{function} has returned {loss!r} instead of a loss")
    return loss


def training_output(pl_module: LightningModule, batch: Any, index: int) -> Any:
    """Run the module on a batch: its `loss_on(batch)` if it has one, otherwise `training_step`."""
    if offers(pl_module, HasLossOn):
        return pl_module.loss_on(batch)
    with_index = is_param_in_hook_signature(pl_module.training_step, "batch_idx", min_args=2)
    return pl_module.training_step(batch, *([index] if with_index else []))


def _takes_steps(pl_module: LightningModule, unknown: str) -> str:
    """Return the reason that training_step cannot run without training, and the alternative; empty if it can."""
    if pl_module.automatic_optimization or offers(pl_module, HasLossOn):
        return ""
    return (
        f"the training_step of manual optimization takes optimizer steps by itself; say {unknown}, by a method"
        " loss_on(batch) of the module"
    )


def on_all_ranks(trainer: Trainer, done: bool) -> bool:
    """Return whether a flag is set on all ranks. Every rank must call this."""
    flag = torch.tensor(float(done), device=trainer.strategy.root_device)
    return bool(trainer.strategy.reduce(flag, reduce_op="mean") == 1.0)
