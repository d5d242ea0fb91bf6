"""The Trainer's own validation at an event."""

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire._lightning import validation_loop_metrics
from lightning_fire.callbacks.probing.batches import on_all_ranks, weights_are_sharded, without_side_effects
from lightning_fire.messages import rank_zero_warn, tell_once
from lightning_fire.methods.base.passes import keeping_modes


@torch.no_grad()
def validation_metrics(trainer: Trainer, pl_module: LightningModule, num_batches: int) -> dict[str, float]:
    """Run the Trainer's validation on the first batches of each validation loader; return its metrics.

    All hooks of the module and of the callbacks run, except callbacks that save checkpoints, stop training early or
    show progress. Nothing is written to loggers. Afterwards modes, buffers, random states and attributes of the module
    are restored; optimizers that have modes are in training mode; trainable parameters that validation has changed are
    restored, with one warning. The metrics are means over ranks. There are none without validation data, or if weights
    are sharded.
    """
    if weights_are_sharded(trainer) or not trainer.enable_validation:
        return {}
    trained = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
    before = [parameter.clone() for parameter in trained]
    values: dict[str, float] = {}
    failure: Exception | None = None
    with without_side_effects(pl_module), keeping_modes(pl_module):
        del vars(pl_module)["log"]  # validation logs, to no logger
        try:
            values = validation_loop_metrics(trainer, num_batches)
        except Exception as error:  # a measurement must not end training
            failure = error
        for optimizer in trainer.optimizers:
            if callable(train := getattr(optimizer, "train", None)):  # as of `schedulefree`
                train()
    if any(not torch.equal(now, then) for now, then in zip(trained, before, strict=True)):
        close = all(torch.allclose(now, then) for now, then in zip(trained, before, strict=True))
        for now, then in zip(trained, before, strict=True):
            now.copy_(then)
        if not close:  # more than the rounding of an optimizer that leaves and enters training mode
            message = "has left the module with other weights than before it, which have been set back"
            tell_once(trainer, f"The validation at an event {message}.", rank_zero_warn)
    if not on_all_ranks(trainer, failure is None):
        raise failure or ValueError("another rank could not validate")
    if trainer.world_size == 1:
        return values
    reduced = {key: torch.tensor(value, device=pl_module.device) for key, value in sorted(values.items())}
    return {key: float(trainer.strategy.reduce(value, reduce_op="mean")) for key, value in reduced.items()}
