"""The base of the regularisers: a penalty on weights, added to the gradients in closed form."""

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_fire.callbacks.base.log import log_now
from lightning_fire.callbacks.base.method import TimedCallback
from lightning_fire.callbacks.base.optimizer_state import loss_scale


class PenaltyCallback(TimedCallback):
    """Adds the gradient of a penalty to the gradients of the loss, once for each optimizer step.

    That equals the penalty in the loss, without a graph of it: after gradient accumulation and the unscaling of mixed
    precision, before gradient clipping. A step whose batch gave no gradients is left alone.

    A method subclasses it and writes `select`, `penalty` and `gradient`. Logs `{name}/penalty`, strength included, at
    the end of each epoch in which it acts.

    Args:
        strength: λ, the factor of the penalty, at least 0.
        start_chunk: Do nothing before the data has changed this often. The paper's warm-start runs have 1: every method
            then begins the second chunk with the same weights.
        name: Prefix of the logged keys in the place of the class's.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "penalty"

    def __init__(self, strength: float, start_chunk: int = 0, name: str | None = None):
        super().__init__(name)
        if strength < 0:
            raise ValueError(f"`strength` must be at least 0, got {strength}")
        if start_chunk < 0:
            raise ValueError(f"`start_chunk` must be at least 0, got {start_chunk}")
        self.strength, self.start_chunk = strength, start_chunk
        self._selected: Mapping[str, Parameter] = {}

    def select(self, pl_module: LightningModule) -> Mapping[str, Parameter]:
        """Return the parameters that the penalty is on, by name.

        Args:
            pl_module: The module.
        """
        raise NotImplementedError

    def penalty(self, name: str, weight: Tensor) -> Tensor:
        """Return the penalty of one parameter, a scalar.

        Args:
            name: Its name.
            weight: Its value, any shape.
        """
        raise NotImplementedError

    def gradients(self, names: Sequence[str], weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of the penalty, each of the shape of its parameter.

        Args:
            names: Names of some of the selected parameters.
            weights: Their values.
        """
        raise NotImplementedError

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        self._selected = self.select(pl_module)

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self.chunk < self.start_chunk or not self.strength:
            return
        stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        chosen = {name: p for name, p in self._selected.items() if p in stepped and p.requires_grad}
        if all(parameter.grad is None for parameter in chosen.values()):
            return
        factor = self.strength * loss_scale(trainer, optimizer)
        for parameter, gradient in zip(
            chosen.values(), self.gradients(list(chosen), list(chosen.values())), strict=True
        ):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(gradient, alpha=factor)

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.chunk < self.start_chunk:
            return
        total = sum(self.penalty(name, parameter) for name, parameter in self._selected.items())
        log_now(trainer, {f"{self.name}/penalty": self.strength * float(total)}, at_epoch_end=True)

    @property
    def state_key(self) -> str:
        """Key in the checkpoint."""
        return f"{type(self).__qualname__}({self.describe()})"

    def describe(self) -> str:
        """Return what tells this callback from others of its class, the same in every process."""
        return f"start_chunk={self.start_chunk}"
