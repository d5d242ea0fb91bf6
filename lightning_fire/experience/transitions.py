"""Batches on which a reinforcement learning module is trained."""

from collections.abc import Callable
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    """Steps of an environment, sampled from a replay buffer.

    Leading dimensions `…`: minibatches of a `Rollout`, samples.

    Attributes:
        observations: `(…, *shape)`, where frames are stacked `(…, frames, *shape)`, the latest last.
        actions: `(…, *shape)`, int64 of a discrete action space.
        rewards: `(…)`, float32.
        next_observations: Same shape as `observations`.
        terminated: `(…)`, bool: the episode has ended. False if it was truncated by a time limit.
        discounts: `(…)`, float32, for returns over several steps: the factor of the value of `next_observations`, which
            follow the last of the summed `rewards`. None: the module's own discount, of one step.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor
    discounts: Tensor | None = None

    def each(self, function: Callable[[Tensor], Tensor]) -> "Transitions":
        """Apply a function to each tensor."""
        applied: Any = (None if tensor is None else function(tensor) for tensor in self)
        return Transitions(*applied)


class Rollout(NamedTuple):
    """Minibatches that follow some environment steps, one for each update.

    Attributes:
        transitions: Sampled steps, with leading dimensions `(updates, batch)`.
        environment_steps: Steps so far in this training, of all environments together, int64, a scalar.
        seed: Seed of random draws of the updates, int64, a scalar: the same after a resume.
        returns: Undiscounted returns of the episodes that have ended in these steps, float32 `(episodes,)`.
        lengths: Number of steps of these episodes, int64 `(episodes,)`.
        ends: The environment step, counted as `environment_steps`, with which each has ended, int64 `(episodes,)`. Of
            environments that are stepped together, the first takes its step first.
    """

    transitions: Transitions
    environment_steps: Tensor
    seed: Tensor
    returns: Tensor
    lengths: Tensor
    ends: Tensor

    def to(self, device: torch.device | str) -> "Rollout":
        """Move the transitions to a device; the rest is read on the host and stays.

        Without it, Lightning would search the tuple for its tensors.
        """
        move = methodcaller("to", device, non_blocking=torch.device(device).type == "cuda")  # as Lightning's
        return self._replace(transitions=self.transitions.each(move))


class Episode(NamedTuple):
    """Undiscounted return, float32, and number of steps, int64, of an episode of evaluation: scalars."""

    returns: Tensor
    length: Tensor
