"""Soft actor-critic, as the paper trains SimBa's networks with it."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim import Adam, AdamW, Optimizer

from lightning_fire._lightning import undeclared
from lightning_fire._private import lerp_
from lightning_fire.contracts import HasN, HasResetParameters, implements
from lightning_fire.modules.optimizer_factory import OptimizerFactory
from lightning_fire.modules.replay_module import ReplayModule
from lightning_fire.modules.running_norm import RunningNorm


class TwinCritic(nn.Module):
    """A critic, and a copy of it that is re-initialized by each layer's `reset_parameters`."""

    def __init__(self, critic: nn.Module):
        super().__init__()
        other = copy.deepcopy(critic)
        for layer in other.modules():
            if implements(layer, HasResetParameters):
                layer.reset_parameters()
        twins = zip(critic.named_parameters(), other.parameters(), strict=True)
        if alike := [name for (name, one), two in twins if torch.equal(one, two) and one.unique().numel() > 1]:
            raise ValueError(
                f"the second critic must differ in its initial values, but has the same {', '.join(alike)}: give the"
                " layer a reset_parameters() that resamples them"
            )
        self.first, self.second = critic, other

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both values `(2, batch)` of observations `(batch, n)` and actions `(batch, m)`."""
        inputs = torch.cat([observations, actions], -1)
        return torch.cat([self.first(inputs), self.second(inputs)], -1).T


class SAC(ReplayModule):
    """Learns a policy of high return and entropy (Haarnoja et al., 2018), with clipped double Q-learning.

    Each update steps `actor`, `log_temperature` and `critic` (both critics), in this order, and moves `target_critic`,
    as in SimBa. Observations are normalized by the mean and variance of those seen in training.

    Logs `critic_loss`, `actor_loss`, `q`, `entropy` and `temperature`, and what `ReplayModule` logs.

    Args:
        actor: From observations `(batch, n)` to `(batch, 2 · m)`: means of the actions before tanh, and values that
            tanh maps to the logarithms of their standard deviations, between −10 and 2.
        critic: From concatenated observations and actions, `(batch, n + m)`, to values `(batch, 1)`. The second critic
            is a copy, re-initialized by each layer's `reset_parameters`.
        observation_size: n.
        optimizer: Function from parameters to the optimizer, of the actor and of the critics. Default: AdamW with
            learning rate 1e-4 and weight decay 0.01 (paper, table "Hyperparameters used in HumanoidBench
            environments"), fused.
        temperature_optimizer: The same for the temperature. Default: Adam with learning rate 1e-4.
        discount: γ (paper: 0.99).
        tau: Weight of the trained critics in each update of the target critics, an EMA (paper: 0.005).
        temperature: Its initial value (SimBa: 0.01).
        target_entropy: Per dimension of an action (SimBa: −0.5).
        targets_follow: Copy the trained critics into the target critics after an event has replaced weights, as the
            authors do.

    Raises:
        ValueError: If an argument is out of its range, or a layer of the critic cannot be re-initialized (with two
            equal critics the minimum would have no effect); when training starts, if the networks do not fit the
            environment.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        observation_size: int,
        optimizer: OptimizerFactory | None = None,
        temperature_optimizer: OptimizerFactory | None = None,
        discount: float = 0.99,
        tau: float = 0.005,
        temperature: float = 0.01,
        target_entropy: float = -0.5,
        targets_follow: bool = True,
    ):
        super().__init__()
        for name, value in {"discount": discount, "tau": tau}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"`{name}` must be in [0, 1], got {value}")
        if not temperature > 0:
            raise ValueError(f"`temperature` must be positive, got {temperature}")
        self.normalizer = RunningNorm(observation_size)
        self.actor, self.critic = actor, TwinCritic(critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.optimizer = optimizer or (lambda parameters: AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True))
        self.temperature_optimizer = temperature_optimizer or (lambda parameters: Adam(parameters, lr=1e-4))
        self.discount, self.tau, self.target_entropy = discount, tau, target_entropy
        self.targets_follow = targets_follow

    def observe(self, observations: Tensor) -> None:
        """Add training observations `(num_envs, n)` to the statistics of the normalization."""
        self.normalizer.observe(observations)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the best actions `(batch, m)`, in (−1, 1)."""
        return self._distribution(self.normalizer(observations))[0].tanh()

    def act(self, observations: Tensor, step: int | None, generator: torch.Generator) -> Tensor:
        """Return actions `(num_envs, m)` in (−1, 1): sampled in training, the best ones in evaluations."""
        mean, deviation = self._distribution(self.normalizer(observations))
        if step is None:
            return mean.tanh()
        return (mean + deviation * torch.randn(mean.shape, device="cpu", generator=generator).to(mean)).tanh()

    def update(self, transitions: Any, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Step the actor, the temperature and the critics once each."""
        actor_optimizer, critic_optimizer, temperature_optimizer = undeclared(self.optimizers())
        observations = self.normalizer(transitions.observations)
        temperature = self.log_temperature.detach().exp()

        self.toggle_optimizer(actor_optimizer)  # otherwise the critics' gradients would be computed, too
        actions, log_probability = self._sample(observations, generator)
        actor_loss = (temperature * log_probability - self.critic(observations, actions).amin(0)).mean()
        self._step(actor_optimizer, actor_loss)
        self.untoggle_optimizer(actor_optimizer)

        entropy = -log_probability.detach().mean()
        target = self.target_entropy * actions.shape[-1]
        self._step(temperature_optimizer, self.log_temperature.exp() * (entropy - target))

        values, critic_loss = self._values_and_loss(observations, transitions, generator)
        self._step(critic_optimizer, critic_loss)
        with torch.no_grad():
            lerp_(_floats(self.target_critic), _floats(self.critic), self.tau)
        losses = {"critic_loss": critic_loss, "actor_loss": actor_loss}
        return {**losses, "q": values.mean(), "entropy": entropy, "temperature": temperature}

    def loss(self, transitions: Any, generator: torch.Generator) -> Tensor:
        """Return the sum of both critics' mean squared errors on `Transitions`, a scalar."""
        return self._values_and_loss(self.normalizer(transitions.observations), transitions, generator)[1]

    def _values_and_loss(
        self, observations: Tensor, transitions: Any, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        values = self.critic(observations, transitions.actions)
        return values, (values - self._targets(transitions, generator)).square().sum(0).mean()

    @torch.no_grad()
    def _targets(self, transitions: Any, generator: torch.Generator) -> Tensor:
        following = self.normalizer(transitions.next_observations)
        actions, log_probability = self._sample(following, generator)
        values = self.target_critic(following, actions).amin(0) - self.log_temperature.exp() * log_probability
        return transitions.rewards + self.discount * values * ~transitions.terminated

    def _sample(self, observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample actions `(batch, m)`, and return the logarithms of their probability densities `(batch,)`."""
        mean, deviation = self._distribution(observations)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        before = mean + deviation * noise
        normal = -0.5 * noise.square() - deviation.log() - 0.5 * math.log(2 * math.pi)
        squashed = 2 * (math.log(2) - before - softplus(-2 * before))  # log of the derivative of tanh
        return before.tanh(), (normal - squashed).sum(-1)

    def _distribution(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations before tanh, `(batch, m)` each, for normalized observations."""
        mean, raw = self.actor(observations).chunk(2, -1)
        low, high = -10.0, 2.0  # of the logarithm of a standard deviation
        return mean, (low + (high - low) * 0.5 * (1 + raw.tanh())).exp()

    def sync_targets(self) -> None:
        """Copy the trained critics into the target critics, if `targets_follow`."""
        if self.targets_follow:
            self.target_critic.load_state_dict(self.critic.state_dict())

    def check_environment(self, action_space: Any, observations: Tensor) -> None:
        """Check that actions are in a box, and that actor and critics have their shape."""
        if implements(action_space, HasN):
            raise ValueError(f"SAC needs actions in a box, got {action_space}; use DQN")
        actions = self(observations)
        values = self.critic(self.normalizer(observations), actions.new_zeros(len(actions), *action_space.shape))
        if actions.shape[1:] != action_space.shape or values.shape != (2, len(observations)):
            raise ValueError(
                f"the actor makes actions {tuple(actions.shape[1:])}, the environment takes {action_space.shape}; the"
                f" critic makes values {tuple(values.T.shape[:1])} of {len(observations)} observations"
            )

    def configure_optimizers(self) -> list[Optimizer]:
        return [
            self.optimizer(self.actor.parameters()),
            self.optimizer(self.critic.parameters()),
            self.temperature_optimizer([self.log_temperature]),
        ]


def _floats(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers; buffers of an injected head are frozen weights."""
    return [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
