"""Looks at the training loss on the data that is about to be trained on, and leaves no trace."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.seed import isolate_rng
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import Metric

Loss = Callable[[LightningModule, Any], Tensor]
Forward = Callable[[LightningModule, Any], Any]
_looking = False


def is_looking() -> bool:
    """Tell whether the module runs only for somebody to look: hooks that learn from training leave it alone."""
    return _looking


def gradients_on_new_data(
    trainer: Trainer,
    pl_module: LightningModule,
    parameters: Sequence[Tensor],
    num_batches: int,
    loss: Loss | None = None,
) -> Iterator[list[Tensor]]:
    """Yield the gradient of the training loss on each of the first batches of this epoch.

    Buffers, gradients, metrics, logs and random states stay as they are, and training will see these batches as if
    nobody had looked. Ranks do not talk: each sees its own share of the data.

    Args:
        trainer: The Trainer, at the start of an epoch, its data loaded.
        pl_module: Its module, in the modes of training.
        parameters: What to derive by.
        num_batches: Batches at most.
        loss: The loss of a batch, a scalar. Default: what `training_step` returns; what it logs is dropped.

    Raises:
        MisconfigurationException: If `loss` is not given and the module optimises manually.
    """
    if loss is None and not pl_module.automatic_optimization:
        raise MisconfigurationException(
            "the training_step of manual optimization takes optimizer steps by itself: say what the loss of a batch is,"
            " loss=lambda module, batch: …"
        )
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    scale = 1.0 if scaler is None else scaler.get_scale()
    with leaving_no_trace(pl_module), torch.enable_grad():
        for index, batch in enumerate(islice(batches_of(trainer), num_batches)):
            with trainer.precision_plugin.train_step_context():
                value = training_loss(pl_module, batch, index) if loss is None else loss(pl_module, batch)
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

    Args:
        trainer: The Trainer, its data loaded.
        pl_module: Its module.
        num_batches: Batches at most.
        forward: Runs the module on a batch. Default: `training_step`; what it logs is dropped.

    Raises:
        MisconfigurationException: If `forward` is not given and the module optimises manually.
    """
    if forward is None and not pl_module.automatic_optimization:
        raise MisconfigurationException(
            "the training_step of manual optimization takes optimizer steps by itself: say how the module runs on a"
            " batch, forward=lambda module, batch: …"
        )
    with leaving_no_trace(pl_module), torch.no_grad():
        for index, batch in enumerate(islice(batches_of(trainer), num_batches)):
            with trainer.precision_plugin.train_step_context():
                training_loss(pl_module, batch, index) if forward is None else forward(pl_module, batch)


@contextlib.contextmanager
def leaving_no_trace(pl_module: nn.Module) -> Iterator[None]:
    """Put buffers, metrics and random states back at the end as they were; drop what is logged in between.

    Args:
        pl_module: The module.
    """
    global _looking
    buffers = [(buffer, buffer.clone()) for buffer in pl_module.buffers()]
    metrics = [(metric, _state_of(metric)) for metric in pl_module.modules() if isinstance(metric, Metric)]
    pl_module.log, _looking = _drop, True
    try:
        with isolate_rng():
            yield
    finally:
        del pl_module.log
        _looking = False
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for metric, state in metrics:
            vars(metric).update(state)


@contextlib.contextmanager
def evaluating(pl_module: nn.Module) -> Iterator[None]:
    """Run the module as one plain function: in evaluation mode, without `torch.compile`.

    Args:
        pl_module: The module; its modes are put back at the end.
    """
    modes = [(module, module.training) for module in pl_module.modules()]
    eager = torch.compiler.set_stance("force_eager") if _is_compiled(pl_module) else contextlib.nullcontext()
    pl_module.eval()
    try:
        with eager:
            yield
    finally:
        for module, training in modes:
            module.training = training


def why_not_look(trainer: Trainer, pl_module: LightningModule, explained: bool) -> str:
    """Tell why a module should not be run on the data to come without being asked to; empty if it may be.

    Args:
        trainer: The Trainer, its data loaded.
        pl_module: Its module.
        explained: Whether somebody has said how to run it on a batch.
    """
    if not explained and not pl_module.automatic_optimization:
        return (
            "the training_step of manual optimization takes optimizer steps by itself; say how to run the module on a"
            " batch, loss=lambda module, batch: …"
        )
    for loader in tree_leaves(trainer.fit_loop._combined_loader.iterables):
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return f"the data of {type(loader).__name__} may be there only once, and training needs it"
    return ""


def batches_of(trainer: Trainer) -> Iterator[Any]:
    """Yield this epoch's batches from loaders of their own, on the device.

    The random generators that the loaders and their samplers hold are put back, so that training sees its own order.

    Args:
        trainer: The Trainer, its data loaded.
    """
    combined = trainer.fit_loop._combined_loader
    generators = [(g, g.get_state()) for loader in tree_leaves(combined.iterables) for g in _generators(loader)]
    try:
        for batch, _, _ in CombinedLoader(tree_map(_own, combined.iterables), combined._mode):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            yield trainer.strategy.batch_to_device(batch, dataloader_idx=0)
    finally:
        for generator, state in generators:
            generator.set_state(state)


def _own(loader: Any) -> Any:
    """Copy a loader, not its data: one with persistent workers has a single iterator, which training holds."""
    if not isinstance(loader, DataLoader):
        return loader
    own = copy.copy(loader)
    own._iterator = None
    return own


def _generators(loader: Any) -> list[torch.Generator]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def training_loss(pl_module: LightningModule, batch: Any, index: int = 0) -> Tensor:
    """Return what `training_step` makes of a batch.

    Args:
        pl_module: The module, of automatic optimization.
        batch: The batch, on the device.
        index: Its number in the epoch.
    """
    with_index = is_param_in_hook_signature(pl_module.training_step, "batch_idx", min_args=2)
    output = pl_module.training_step(batch, *([index] if with_index else []))
    return output["loss"] if isinstance(output, dict) else output


def _is_compiled(pl_module: nn.Module) -> bool:
    return getattr(pl_module, "_compiler_ctx", None) is not None or any(
        type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        for module in pl_module.modules()
    )


def _state_of(metric: Metric) -> dict[str, Any]:
    names = [*metric._defaults, "_update_count", "_computed", "_forward_cache", "_is_synced", "_cache"]
    return {name: copy.deepcopy(vars(metric)[name]) for name in names if name in vars(metric)}


def _drop(*args: Any, **kwargs: Any) -> None:
    """Stand in for `LightningModule.log`."""
