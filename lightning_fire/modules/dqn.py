"""Deep Q-learning, as the paper trains it on Atari."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, mse_loss
from torch.optim import Adam, Optimizer

from lightning_fire.contracts import HasN, implements
from lightning_fire.modules.optimizer_factory import OptimizerFactory
from lightning_fire.modules.replay_module import ReplayModule


class DQN(ReplayModule):
    """Learns action values from a replay buffer (Mnih et al., Nature 2015), with networks `net` and `target_net`.

    Logs `loss`, `q` (mean value of the actions taken) and `charts/epsilon`, and what `ReplayModule` logs.

    Args:
        net: From observations `(batch, *shape)` to the values of the actions `(batch, num_actions)`.
        optimizer: Function from the parameters to the optimizer. Default: Adam with learning rate 6.25e-5 and ε 1.5e-4
            (paper, table "Hyperparameters used in the ALE environment"), fused: several times as fast on a CPU, too.
        discount: γ (paper: 0.99).
        huber_delta: The Huber loss is half the squared error up to this, and linear beyond (Dopamine: 1). None: the
            squared error, for rewards that are not clipped: for values far above 1 a linear loss fits the median over
            states rather than the mean, and ignores rare endings.
        target_update_period: Updates between copies of the trained network into the target network (paper: 2000).
        n_step: Number of rewards in a target before the target network's value (Rainbow: 3; the paper: 1).
        double: Let the trained network choose the next action and the target network value it (van Hasselt et al.,
            2016). The paper does not.
        epsilon: Final fraction of random actions (paper: 0.01).
        epsilon_steps: Environment steps over which that fraction falls linearly from 1 (Dopamine: 250,000).
        evaluation_epsilon: Fraction of random actions in evaluations (paper: 0.001).
        targets_follow: Also copy the trained network into the target network after an event has replaced weights,
            nearly as the authors do (docs/reinforcement.md).

    Raises:
        ValueError: If an argument is out of its range; when training starts, if the numbers of outputs and actions
            differ.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory | None = None,
        discount: float = 0.99,
        huber_delta: float | None = 1.0,
        target_update_period: int = 2000,
        n_step: int = 1,
        double: bool = False,
        epsilon: float = 0.01,
        epsilon_steps: int = 250_000,
        evaluation_epsilon: float = 0.001,
        targets_follow: bool = True,
    ):
        super().__init__()
        self.net = net
        self.target_net = copy.deepcopy(net).requires_grad_(False)
        self.optimizer = optimizer or (lambda parameters: Adam(parameters, lr=6.25e-5, eps=1.5e-4, fused=True))
        self.discount, self.huber_delta, self.targets_follow = discount, huber_delta, targets_follow
        self.target_update_period, self.n_step, self.double_q = target_update_period, n_step, double
        self.epsilon, self.epsilon_steps, self.evaluation_epsilon = epsilon, epsilon_steps, evaluation_epsilon
        for name in ("discount", "epsilon", "evaluation_epsilon"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be in [0, 1], got {getattr(self, name)}")
        for name in ("target_update_period", "n_step", "epsilon_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if huber_delta is not None and not 0 < huber_delta < math.inf:
            raise ValueError(f"`huber_delta` must be positive and finite, or None for squares, got {huber_delta}")
        self._num_actions: int | None = None  # known after the first output

    def forward(self, observations: Tensor) -> Tensor:
        """Return the values of the actions `(batch, num_actions)`."""
        return self.net(observations)

    def act(self, observations: Tensor, step: int | None, generator: torch.Generator) -> Tensor:
        """Return the best actions, int64 `(num_envs,)`, some of them random."""
        fraction = self.evaluation_epsilon if step is None else self.epsilon_at(step)
        if step is not None:
            self._charts["charts/epsilon"] = fraction
        random = [draw < fraction for draw in torch.rand(len(observations), device="cpu", generator=generator).tolist()]
        if self._num_actions is not None and all(random):
            return torch.randint(self._num_actions, (len(random),), device="cpu", generator=generator)
        values = self.net(observations)
        self._num_actions, best = values.shape[1], values.argmax(1)
        if not any(random):
            return best
        drawn = torch.randint(self._num_actions, (len(random),), device="cpu", generator=generator)
        return torch.where(torch.tensor(random, device="cpu"), drawn, best.cpu())

    def epsilon_at(self, step: int) -> float:
        """Return the fraction of random actions `step` environment steps after the initial ones."""
        return max(self.epsilon, 1 - (1 - self.epsilon) * step / self.epsilon_steps)

    def loss(self, transitions: Any, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean loss of the values of the actions taken in `Transitions`, a scalar."""
        return self._values_and_loss(transitions)[1]

    def _values_and_loss(self, transitions: Any) -> tuple[Tensor, Tensor]:
        taken = self.net(transitions.observations).gather(1, transitions.actions[:, None]).squeeze(1)
        with torch.no_grad():
            following = self.target_net(transitions.next_observations)
            if self.double_q:
                best = self.net(transitions.next_observations).argmax(1, keepdim=True)
                following = following.gather(1, best).squeeze(1)
            else:
                following = following.amax(1)
            discounts = self.discount if transitions.discounts is None else transitions.discounts
            targets = transitions.rewards + discounts * following * ~transitions.terminated
        if self.huber_delta is None:
            return taken, mse_loss(taken, targets)
        return taken, huber_loss(taken, targets, delta=self.huber_delta)

    def update(self, transitions: Any, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Take one step of the optimizer."""
        taken, loss = self._values_and_loss(transitions)
        self._step(self.optimizers(), loss)
        if self.global_step % self.target_update_period == 0:
            self._copy_to_target()
        return {"loss": loss, "q": taken.mean()}

    def sync_targets(self) -> None:
        """Copy the trained network into the target network, if `targets_follow`."""
        if self.targets_follow:
            self._copy_to_target()

    def _copy_to_target(self) -> None:
        self.target_net.load_state_dict(self.net.state_dict())

    def check_environment(self, action_space: Any, observations: Tensor) -> None:
        """Check that actions are discrete and that the network has a value for each."""
        if not implements(action_space, HasN):
            raise ValueError(f"DQN needs a discrete action space, got {action_space}; use SAC")
        made, needed = tuple(self.net(observations).shape), (len(observations), int(action_space.n))
        if made != needed:
            raise ValueError(
                f"the network makes {made} of observations {tuple(observations.shape)}; the environment has"
                f" {needed[1]} actions, so that it must be {needed}"
            )

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer(self.net.parameters())
