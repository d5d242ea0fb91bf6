"""Full reset: begin again from the initial values."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lightning_fire.callbacks.base import EventCallback
from lightning_fire.callbacks.optimizer_state import OptimizerPolicy, check_policy, forget_state
from lightning_fire.callbacks.rewrite import watch
from lightning_fire.when import Schedule
from lightning_fire.where import Weights, WeightView


class FullReset(EventCallback):
    """Sets every parameter and buffer back when new data arrives.

    The initial values are those the module has when the first fit begins, before a checkpoint is loaded; they are kept
    in the checkpoint. Logs the same measures as `FIRECallback`, of the weights `Weights()` selects, as `full_reset/…`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        target: `initial`: the values at the beginning, as in the paper. `fresh`: a new draw by each layer's
            `reset_parameters`, the same on every rank.
        seed: Seed of the new draws, with the number of the event added.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "full_reset"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        target: Literal["initial", "fresh"] = "initial",
        seed: int = 0,
        optimizer: OptimizerPolicy = "touched",
    ):
        super().__init__(when)
        if target not in ("initial", "fresh"):
            raise ValueError(f"`target` must be 'initial' or 'fresh', got {target!r}")
        check_policy(optimizer)
        self.target, self.seed, self.optimizer = target, seed, optimizer
        self._initial: dict[str, Tensor] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self._initial is None and self.target == "initial":
            self._initial = {name: tensor.detach().cpu().clone() for name, tensor in _tensors(pl_module).items()}
        if stage == "fit" and self.target == "fresh":
            _require_redrawable(pl_module)

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        values = watch(_measurable(pl_module), lambda: self._reset(pl_module), self.name)
        forget_state(self.optimizer, trainer.optimizers, pl_module.parameters())
        return values

    @torch.no_grad()
    def _reset(self, pl_module: LightningModule) -> None:
        if self.target == "fresh":
            return redraw(pl_module, self.seed + self.num_events)
        for name, tensor in _tensors(pl_module).items():
            tensor.copy_(self._initial[name])

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and the initial tensors."""
        return {**super().state_dict(), "initial": self._initial}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._initial = state_dict["initial"]


def redraw(module: nn.Module, seed: int) -> None:
    """Draw all parameters of a module anew, by each layer's own `reset_parameters`.

    The global random state is left as it was.

    Args:
        module: The module; changed in place.
        seed: Seed of the draw.
    """
    device = next(module.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for layer in module.modules():
            if callable(getattr(layer, "reset_parameters", None)):
                layer.reset_parameters()


def _measurable(module: nn.Module) -> Sequence[WeightView]:
    """Return the weights to measure; none where the module has no Linear or convolution weights of the plain kind."""
    try:
        return Weights().select(module)
    except ValueError:
        return ()


def _require_redrawable(module: nn.Module) -> None:
    stuck = [
        name or type(layer).__name__
        for name, layer in module.named_modules()
        if next(layer.parameters(recurse=False), None) is not None
        and not callable(getattr(layer, "reset_parameters", None))
    ]
    if stuck:
        raise ValueError(
            f"`target` is 'fresh', but {', '.join(stuck)} has parameters and no reset_parameters();"
            " give it one, or use target='initial'"
        )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
