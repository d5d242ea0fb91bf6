"""The module in training, as it plays."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire.contracts import HasObserve, offers


class Player:
    """Lets a module act on arrays: on its device, whatever that is.

    Args:
        module: With `act(observations, step, generator)`, and with `observe(observations)` if it wants to be shown what
            is met in training.
    """

    def __init__(self, module: LightningModule):
        self._act, self._observe = module.act, module.observe if offers(module, HasObserve) else None
        self._device = module.device

    def observe(self, observations: np.ndarray) -> None:
        """Show what was met in training.

        Args:
            observations: `(num_envs, *shape)`.
        """
        if self._observe is not None:
            self._observe(torch.from_numpy(observations).to(self._device))

    def act(self, observations: np.ndarray, step: int | None, generator: torch.Generator) -> np.ndarray:
        """Return actions, `(num_envs, *shape)`; observations of training are shown first.

        Args:
            observations: `(num_envs, *shape)`.
            step: Environment steps done since the initial ones; None: act as well as possible.
            generator: Of the CPU, for all that is drawn.
        """
        met = torch.from_numpy(observations).to(self._device)
        if step is not None and self._observe is not None:
            self._observe(met)
        actions = self._act(met, step, generator)
        return (actions.float() if actions.is_floating_point() else actions).cpu().numpy()


@contextmanager
def playing(trainer: Trainer) -> Iterator[Player]:
    """Let the module of a Trainer play, in the Trainer's precision and without gradients.

    Args:
        trainer: Whose module.
    """
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        yield Player(trainer.lightning_module)
