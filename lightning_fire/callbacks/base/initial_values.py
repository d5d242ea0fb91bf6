"""The two places to which a network can be taken back: its initial values, and new draws by its layers."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_fire.callbacks.base.method import TimedCallback
from lightning_fire.callbacks.probing.side_effects import to_the_end
from lightning_fire.distributed import gathered


class InitialValues:
    """The values that parameters and buffers have when the first fit of a module begins.

    They must be taken twice. Before the checkpoint is loaded, layers made in `configure_model` are not there yet, and
    the ranks have not been made equal. After it, the module holds the values of the checkpoint. So: from the state in
    the checkpoint if it has one; else, without a checkpoint, from the module when all is set up; else those from before
    the checkpoint, of rank 0.

    Attributes:
        values: Tensors on the CPU by name; None before a fit.
    """

    def __init__(self):
        self.values: dict[str, Tensor] | None = None
        self._settled = False  # values are known to be right

    def take_before_checkpoint(self, module: nn.Module) -> None:
        """Take the values of a module, unless this object knows those of an earlier fit.

        Args:
            module: The module, as its owner built it.
        """
        if not self._settled:
            self.values = _copy(module)

    def load(self, values: dict[str, Tensor] | None) -> None:
        """Take the values from a checkpoint.

        Args:
            values: `values` of the run that wrote it.
        """
        if values is not None:
            self.values, self._settled = values, True

    def complete(self, trainer: Trainer, module: nn.Module) -> None:
        """Settle the values, on every rank alike.

        Args:
            trainer: The Trainer, its strategy set up, its checkpoint loaded.
            module: Its module.

        Raises:
            MisconfigurationException: If the values of some layers are not known; names them.
        """
        if not self._settled:
            self.values = trainer.strategy.broadcast(_copy(module) if trainer.ckpt_path is None else self.values)
        shapes = {name: tensor.shape for name, tensor in tensors_of(module).items()}
        known = {name: tensor.shape for name, tensor in self.values.items()}
        if unknown := sorted(name for name, shape in shapes.items() if known.get(name) != shape):
            why = (
                "they were not in the module in an earlier fit of this callback. Make a new callback for a new training"
                if trainer.ckpt_path is None
                else "the checkpoint was written without this callback, and the layers are made in configure_model() or"
                " setup(). Make them in __init__, or use the callback from the beginning"
            )
            names = f"{', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}"
            raise MisconfigurationException(
                f"The initial values of {names} are not known: {why}, or use target='fresh'."
            )
        self._settled = True


class WithInitialValues(TimedCallback):
    """Knows the values with which the first fit of a module began, and keeps them in the checkpoint."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.initial = InitialValues()

    @property
    def wants_initial_values(self) -> bool:
        """Whether they are needed at all."""
        return True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self.wants_initial_values:
            self.initial.take_before_checkpoint(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if not trainer.strategy.restore_checkpoint_after_setup:
            self._complete(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if trainer.strategy.restore_checkpoint_after_setup:  # then on_fit_start comes before the checkpoint
            self._complete(trainer, pl_module)

    def _complete(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.wants_initial_values:
            self.initial.complete(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and the initial tensors."""
        return {**super().state_dict(), "initial": self.initial.values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self.initial.load(state_dict["initial"])


def seed_of_draw(seed: int, number: int) -> int:
    """Return the seed of one of several draws, far from those of other draws and other seeds nearby.

    Args:
        seed: Seed of the method.
        number: Number of the draw.
    """
    return seed + 1_000_003 * number


@torch.no_grad()
def fresh_values(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw values of a module anew, by each layer's own `reset_parameters`.

    Args:
        module: The module; it and the global random state are left as they were.
        seed: Seed of the draw.

    Returns:
        Values of all parameters and buffers by name; where no `reset_parameters` touches one, its present value.
    """
    tensors = tensors_of(module)
    present = {name: tensor.clone() for name, tensor in tensors.items()}
    device = next(module.parameters()).device

    def put_back() -> None:
        for name, tensor in tensors.items():
            tensor.copy_(present[name])

    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for layer in module.modules():
                if callable(getattr(layer, "reset_parameters", None)):
                    layer.reset_parameters()
        return {name: tensor.clone() for name, tensor in tensors.items()}
    finally:
        to_the_end(put_back)


def not_redrawable(module: nn.Module) -> list[str]:
    """Return the layers of a module that have parameters, and no `reset_parameters` to draw them anew.

    Args:
        module: The module.
    """
    return [
        name or type(layer).__name__
        for name, layer in module.named_modules()
        if next(layer.parameters(recurse=False), None) is not None
        and not callable(getattr(layer, "reset_parameters", None))
    ]


def require_redrawable(module: nn.Module) -> None:
    """Refuse modules with parameters that no layer can draw anew.

    Args:
        module: The module.

    Raises:
        ValueError: Names the layers without `reset_parameters`.
    """
    if stuck := not_redrawable(module):
        raise ValueError(
            f"`target` is 'fresh', but {', '.join(stuck)} has parameters and no reset_parameters();"
            " give it one, or use target='initial'"
        )


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name, tied ones once; not those of frozen copies of a head.

    Args:
        module: The module.
    """
    copies = [f"{name}." for name, part in module.named_modules() if getattr(part, "is_frozen_copy", False)]
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in named.items() if not name.startswith(tuple(copies))}


def _copy(module: nn.Module) -> dict[str, Tensor]:
    tensors = tensors_of(module).items()
    there = {name: tensor for name, tensor in tensors if not is_lazy(tensor) and not tensor.is_meta}
    return {name: gathered(tensor).cpu().clone() for name, tensor in there.items()}
