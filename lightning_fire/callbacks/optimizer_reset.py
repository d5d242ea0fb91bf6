"""Optimizer reset: part of the paper's protocol, for every method."""

from functools import partial

from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import reset_optimizer_state


class OptimizerReset(EventCallback):
    """Drops the state of all optimizers (moments, step counts) when new data arrives.

    The paper's vision and language experiments build a new optimizer at each chunk for every method, vanilla included.
    Learning-rate schedulers continue; `Classifier` warms the learning rate up in each chunk by itself.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        log: What to log; only its `name` is used. Default: `Log()`.
    """

    acts_on_shards = True
    replaces_weights = False
    name = "optimizer_reset"

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        return Change(then=partial(reset_optimizer_state, trainer.optimizers))
