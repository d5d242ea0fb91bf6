"""Rank ascent as a callback: steps that increase the rank of features, the ER of L2-ER (Prakash et al., ICML 2026)."""

import math
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_fire import methods
from lightning_fire._lightning import optimizers_of
from lightning_fire.callbacks.base import ClockCallback
from lightning_fire.callbacks.log import log_now
from lightning_fire.callbacks.probing.batches import as_written, copied, training_output, without_side_effects
from lightning_fire.functional.checks import at_least
from lightning_fire.messages import inform
from lightning_fire.methods.base.unit_reset import units_in_words, units_shown_later
from lightning_fire.when import Clock, Horizon
from lightning_fire.where import HiddenUnits
from lightning_fire.where.argument import checked


class FeatureRank(ClockCallback):
    """Gradient ascent on the mean entropy rank of the hidden features, one step every `every_n_batches` batches.

    Combined with an optimizer with an L2 penalty, such as `torch.optim.Adam(…, weight_decay=1e-4)`, it is L2-ER. Logs
    `feature_rank/rank`, the mean rank before the last step, at the end of each epoch in which it acts.

    Args:
        lr: Learning rate of these steps (paper's code: tuned, 1e-2 to 1e-5).
        every_n_batches: Number of batches per step, at least 1; the last batches of an epoch also make a step (paper's
            code: 5, 12, or 100 of a single sample).
        start_chunk: Number of changes of the data before which it does nothing.
        where: The units whose features count. Default: `HiddenUnits()`, all that can be resolved.

    Raises:
        ValueError: If an argument is out of range, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if the module optimizes manually and has no `loss_on`.
    """

    name = "feature_rank"

    def __init__(self, lr: float, every_n_batches: int = 10, start_chunk: int = 0, where: HiddenUnits | None = None):
        super().__init__(start_chunk)
        at_least(0, whole=False, lr=lr)
        at_least(1, every_n_batches=every_n_batches)
        self.lr, self.every_n_batches = lr, every_n_batches
        self.where = checked(where, HiddenUnits())
        self._batches: list[Any] = []  # batches since the last step
        self._rank = math.nan

    def idle_epochs(self, horizon: Horizon) -> float:
        return math.inf if self.start_chunk >= 1 else 0

    def describe(self) -> str:
        return f"start_chunk={self.start_chunk}, {self.where!r}"

    def show_selection(self, pl_module: LightningModule) -> str:
        return units_shown_later(self.title, self.where)

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trained = methods.Loop(optimizers_of(trainer, pl_module)).trained(pl_module)
        given = pl_module, self.given.forward, self.lr, self.where, trained, trainer.world_size
        self._method = methods.RankAscent(*given)
        if not self._begun:
            inform(f"{self.title} will watch {units_in_words(self._method.layers)}.")

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if clock.epoch_start:
            self._batches = []
        if self.acts_now:
            self._batches.append(copied(self.given.batch))  # the training step may change it

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *args)
        if not self.acts_now:
            return
        if len(self._batches) >= self.every_n_batches or trainer.is_last_batch:
            batches, self._batches = self._batches, []
            with without_side_effects(pl_module), as_written(pl_module):
                self._rank = self._method.step(lambda: [training_output(pl_module, copied(each)) for each in batches])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.acts_now:
            log_now(trainer, {f"{self.name}/rank": self._rank}, at_epoch_end=True)

    def _let_go(self) -> None:
        super()._let_go()
        self._batches = []

    def __getstate__(self) -> dict[str, Any]:
        """Exclude batches from copies and pickles."""
        return {**super().__getstate__(), "_batches": []}
