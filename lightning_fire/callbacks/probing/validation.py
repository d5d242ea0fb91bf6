"""Metrics of `validation_step`, computed at any time of training and without side effects."""

import contextlib
from collections import defaultdict
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import Metric

from lightning_fire._private import tree_leaves
from lightning_fire.callbacks.probing.batches import batches_of, on_all_ranks, weights_are_sharded
from lightning_fire.callbacks.probing.side_effects import evaluating, without_side_effects


def validation_metrics(trainer: Trainer, pl_module: LightningModule, num_batches: int) -> dict[str, float]:
    """Return the metrics that the module logs on the first batches of its first validation loader.

    Scalars are means over batches, and over ranks; torchmetrics objects are computed. Callbacks are not called.

    Args:
        trainer: A Trainer during `fit`.
        pl_module: Its module, in any mode.
        num_batches: Largest number of batches.

    Returns:
        Metrics by key; empty without validation data that can be read again, or if weights are sharded.
    """
    if weights_are_sharded(trainer) or not trainer.enable_validation:
        return {}
    trainer.fit_loop.epoch_loop.val_loop.setup_data()
    loader = next(iter(tree_leaves(trainer.val_dataloaders)), None)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return {}
    logged, values = _Logged(), {}
    failure: Exception | None = None
    with without_side_effects(pl_module), evaluating(pl_module), torch.no_grad():
        vars(pl_module)["log"] = logged
        trainer.validating = True
        try:
            _validate(trainer, pl_module, loader, min(num_batches, trainer.num_val_batches[0]))
            values = logged.values()
        except Exception as error:  # a measurement must not end training
            failure = error
        finally:
            trainer.training = True
    if not on_all_ranks(trainer, failure is None):
        raise failure or ValueError("another rank could not validate")
    if trainer.world_size == 1:
        return values
    reduced = {key: torch.tensor(value, device=pl_module.device) for key, value in values.items()}
    return {key: float(trainer.strategy.reduce(value, reduce_op="mean")) for key, value in reduced.items()}


def _validate(trainer: Trainer, pl_module: LightningModule, loader: DataLoader[Any], number: float) -> None:
    pl_module.on_validation_epoch_start()
    with contextlib.closing(batches_of(trainer, loader, number)) as batches:
        for index, batch in enumerate(batches):
            with trainer.precision_plugin.val_step_context():
                with_index = is_param_in_hook_signature(pl_module.validation_step, "batch_idx", min_args=2)
                more = [0] if is_param_in_hook_signature(pl_module.validation_step, "dataloader_idx") else []
                pl_module.validation_step(batch, *([index] if with_index else []), *more)
    pl_module.on_validation_epoch_end()


class _Logged:
    """Replacement of `LightningModule.log` that records its arguments."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._numbers: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(value, Metric):
            self._metrics[name] = value
        elif not isinstance(value, Tensor) or value.numel() == 1:
            self._numbers[name].append(float(value))

    def values(self) -> dict[str, float]:
        """Return the logged values by key."""
        computed = {key: metric.compute() for key, metric in self._metrics.items()}
        scalars = {key: float(value) for key, value in computed.items() if value.numel() == 1}
        return scalars | {key: sum(numbers) / len(numbers) for key, numbers in self._numbers.items()}
