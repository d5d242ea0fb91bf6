"""Base class of methods that observe hidden units during training, and messages of all methods on units."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_fire.callbacks.base.from_chunk import FromChunkCallback
from lightning_fire.callbacks.base.log import log_now
from lightning_fire.callbacks.probing.batches import forward_on_new_data
from lightning_fire.messages import inform
from lightning_fire.methods.base.unit_reset import StepwiseReset
from lightning_fire.where import HiddenUnits, UnitLayer
from lightning_fire.where.argument import checked
from lightning_fire.where.trained import leaves_out


class UnitCallback(FromChunkCallback):
    """Base class of callbacks that run a `StepwiseReset` on training batches, with a `step` per optimizer step.

    Subclasses implement `make`. Logs what `report` returns at the end of each epoch in which it acts.
    It does nothing before the data has changed `start_chunk` times.
    """

    keeps_state = True

    def __init__(self, where: HiddenUnits | None, start_chunk: int, seed: int):
        super().__init__(start_chunk)
        self.where = checked(where, HiddenUnits())
        self.seed = seed
        self._state = {"num_reset": 0, "records": {}}
        self._watched = False  # since the last step

    def make(self, pl_module: LightningModule, run: Any) -> StepwiseReset[Any]:
        """Return the method."""
        raise NotImplementedError

    def report(self) -> dict[str, float]:
        """Return what to log at the end of an epoch: `{name}/units`, the units reset so far."""
        return {f"{self.name}/units": float(self.num_reset)}

    @property
    def num_reset(self) -> int:
        """Units reset so far."""
        return self._state["num_reset"] if self._method is None else self._method.num_reset

    def show_selection(self, pl_module: LightningModule) -> str:
        return units_shown_later(self)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._let_go()
        with self.selecting(trainer, pl_module):
            self._method = self.make(pl_module, partial(forward_on_new_data, trainer, pl_module, 1))
        self._method.watching = False
        self._method.load_state_dict(self._state)
        tell_units(self, self._method.layers)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._method.watching = self.acts_now
        self._watched |= self._method.watching

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self._method.watching = False
        super().on_train_batch_end(trainer, pl_module, *args)

    def after_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._watched:  # the same on every rank, also if its layers have not run
            self._watched = False
            self._method.step(trainer.optimizers)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.acts_now:
            log_now(trainer, self.report(), at_epoch_end=True)

    def _let_go(self) -> None:
        if self._method is not None:
            self._method.close()
        super()._let_go()
        self._watched = False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._state_of_method()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._state = {name: state_dict[name] for name in ("num_reset", "records")}


def tell_units(callback: Callback, layers: Sequence[UnitLayer]) -> None:
    """Log how many hidden units a callback watches, and which it leaves out as no optimizer trains them."""
    units, name = sum(layer.size for layer in layers), type(callback).__name__
    inform(f"{name} will watch {units} hidden units in {len(layers)} layers.")
    for sentence in leaves_out(getattr(layers, "untrained", ())):
        inform(f"{name} {sentence}.")


def units_shown_later(callback: Any) -> str:
    """Return the text shown for the selection of a callback on hidden units, which needs a batch."""
    return (
        f"{type(callback).__name__}(where={callback.where}) finds its units when training starts, by watching one"
        f" batch. In Python, print({callback.where}.select(model, lambda: model(batch))) shows them."
    )
