"""Experience of reinforcement learning: environments, and a replay buffer of their steps."""

from lightning_fire.experience.buffer import ReplayBuffer
from lightning_fire.experience.collector import Collector
from lightning_fire.experience.environments import Atari, Gymnasium
from lightning_fire.experience.episodes import Environment
from lightning_fire.experience.transitions import Episode, Rollout, Transitions

__all__ = [
    "Atari",
    "Collector",
    "Environment",
    "Episode",
    "Gymnasium",
    "ReplayBuffer",
    "Rollout",
    "Transitions",
]
