"""Switch from AdamW to Muon at an event."""

from collections.abc import Sequence
from typing import Any, ClassVar

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.log import Log
from lightning_fire.callbacks.plasticity_callback import PlasticityCallback
from lightning_fire.methods import Change, EventMethod
from lightning_fire.methods.base.report import Report
from lightning_fire.optim import Muon
from lightning_fire.when import Clock, Horizon, Schedule


class _Switch(EventMethod):
    name: ClassVar[str] = "use_muon"
    changes_weights: ClassVar[bool] = False
    changes_output: ClassVar[bool] = False


class UseMuon(PlasticityCallback):
    """Switches a `Muon` optimizer from AdamW for all parameters to Muon for hidden matrices, at its first event.

    In the paper's warm-start runs the second chunk starts from the same weights as for all other methods, up to
    rounding. The event drops the moments of the hidden matrices; later events have no effect. Logs `use_muon/event`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        log: What to log; only its `name` is used. Default: `Log()`.

    Raises:
        MisconfigurationException: When training starts, if no optimizer is a `Muon`.
    """

    def __init__(self, when: Schedule | Sequence[Schedule] | None = None, log: Log | None = None):
        super().__init__(_Switch(), when, log=log)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        groups = list(_hidden_groups(trainer))
        if not groups:
            raise MisconfigurationException(
                "UseMuon needs an optimizer lightning_fire.optim.Muon with a group of hidden matrices, got "
                + ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers)
            )
        for _, group in groups:
            group["paused"] = self.num_events == 0

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if self.num_events == 0:
            super().at(trainer, pl_module, clock)

    def idle_epochs(self, horizon: Horizon) -> float:
        return 0  # it pauses Muon

    def event(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        def switch() -> None:
            for optimizer, group in _hidden_groups(trainer):
                group["paused"] = False
                for parameter in group["params"]:
                    optimizer.state.pop(parameter, None)

        return Change(report=Report(), then=[switch])


def _hidden_groups(trainer: Trainer) -> Any:
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, Muon):
            yield from ((optimizer, group) for group in optimizer.param_groups if group["use_muon"])
