"""Batches on which a reinforcement learning module is trained."""

from collections.abc import Callable
from operator import methodcaller
from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    """Steps of an environment, drawn from a replay buffer.

    Leading dimensions `…` are the minibatches of a `Round` and the samples of each.

    Attributes:
        observations: `(…, *shape)`, where frames are stacked `(…, frames, *shape)`, the latest last.
        actions: `(…, *shape)`, int64 of a discrete action space.
        rewards: `(…)`, float32.
        next_observations: As `observations`.
        terminated: `(…)`, bool: nothing is to come. False where an episode was cut short by a time limit.
        discounts: `(…)`, float32, of returns over several steps: the factor of the value of `next_observations`, which
            are as many steps later as `rewards` sums up. None: the module's own, of one step.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor
    discounts: Tensor | None = None

    def each(self, function: Callable[[Tensor], Tensor]) -> "Transitions":
        """Return the same steps with a function applied to each of the tensors."""
        return Transitions(*(None if tensor is None else function(tensor) for tensor in self))


class Round(NamedTuple):
    """Minibatches that follow some environment steps, one for each update.

    Attributes:
        transitions: Leading dimensions `(updates, batch)`.
        environment_steps: Done so far in this training, of all environments together, int64, a scalar.
        seed: For what the updates draw, int64, a scalar: the same after a resume.
        returns: Undiscounted returns of the episodes that have ended in these steps, float32 `(episodes,)`.
        lengths: Their steps, int64 `(episodes,)`.
        ends: The environment step, counted as `environment_steps`, with which each has ended, int64 `(episodes,)`. Of
            environments that are stepped together, the first takes its step first.
    """

    transitions: Transitions
    environment_steps: Tensor
    seed: Tensor
    returns: Tensor
    lengths: Tensor
    ends: Tensor

    def to(self, device: torch.device | str) -> "Round":
        """Return the same on a device; Lightning, which calls it, would search a tuple for its tensors."""
        move = methodcaller("to", device, non_blocking=torch.device(device).type == "cuda")  # as Lightning's
        return Round(self.transitions.each(move), *map(move, self[1:]))


class Episode(NamedTuple):
    """An episode of evaluation.

    Attributes:
        returns: Its undiscounted return, float32, a scalar.
        length: Its steps, int64, a scalar.
    """

    returns: Tensor
    length: Tensor
