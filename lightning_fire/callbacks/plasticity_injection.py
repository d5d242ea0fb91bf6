"""Plasticity injection as a callback (Nikishin et al., NeurIPS 2023)."""

import copy
from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.event_log import Log
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.methods.initial_values import seed_of_draw
from lightning_fire.methods.plasticity_injection import frozen_copies_of, plan_injection, wrap_heads
from lightning_fire.when import Schedule


class PlasticityInjection(EventCallback):
    """Re-initializes a head without changing its output: see `methods.InjectedHead`.

    Logs `plasticity_injection/event` and `plasticity_injection/frozen_parameters`, the number of parameters that the
    head holds beside its trained ones.

    Args:
        head: Name of the head in the LightningModule, such as `net.head`; a whole network is fine.
        when: Schedule, or several of which any may be due. Default: `AtNewData()`; paper: `AtFraction(0.5)`.
        target: Name of the target network's copy of the head, if there is one. It gets the same new weights, and its
            output does not change either. It also needs the frozen copies of the head, which are buffers:
            `load_state_dict` copies them.
        optimizer: Whose optimizer state to drop: `touched` that of the head, `keep` nothing, `all` everything.
        seed: Seed of the new weights, the same on every rank.
        log: What to log; only its `name` is used. Default: `Log()`.

    Raises:
        ValueError: If `optimizer` is unknown; when training starts, as `wrap_heads` does; at an event, if a parameter
            of the head has a NaN or Inf, which its frozen copy would keep: nothing has been changed then.
    """

    replaces_weights = False
    name = "plasticity_injection"

    def __init__(
        self,
        head: str,
        when: Schedule | Sequence[Schedule] | None = None,
        target: str | None = None,
        optimizer: OptimizerPolicy = "touched",
        seed: int = 0,
        log: Log | None = None,
    ):
        super().__init__(when, log)
        check_policy(optimizer)
        self.head, self.target, self.optimizer, self.seed = head, target, optimizer, seed

    def describe(self) -> str:
        return f"{self.when!r}, {self.head!r}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self.target is None and (copies := frozen_copies_of(pl_module, self.head)):
            raise MisconfigurationException(
                f"{type(pl_module).__name__} has a target network of {self.head!r}, which needs the same injection:"
                f" PlasticityInjection(head={self.head!r}, target={copies[0]!r})"
            )
        wrap_heads(pl_module, self._heads)  # before the optimizers are made and a checkpoint is loaded

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        seed = seed_of_draw(self.seed, self.num_events)
        state = {"optimizers": trainer.optimizers, "optimizer_state": self.optimizer}
        return plan_injection(pl_module, self._heads, seed, **state)

    def show_selection(self, pl_module: LightningModule) -> str:
        (wrapper,) = wrap_heads(copy.deepcopy(pl_module), [self.head])
        return f"{type(self).__name__}(head={self.head!r})\n{wrapper.trained}"

    @property
    def _heads(self) -> list[str]:
        return [self.head] if self.target is None else [self.head, self.target]
