"""Loaders that make each batch on request: by acting, storing and sampling, or by evaluating."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import FrameStackObservation, RecordVideo
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_fire.contracts import HasObserve, offers
from lightning_fire.experience.buffer import stored_dtype
from lightning_fire.experience.collector import Collector
from lightning_fire.experience.episodes import Environment, scaled, seed_of_episode
from lightning_fire.experience.transitions import Episode, Round

_EVALUATION = 2**31  # a seed different from those of training


@contextmanager
def playing(trainer: Trainer) -> Iterator[LightningModule]:
    """Context manager: act with the module of a Trainer, in the Trainer's precision and without gradients."""
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        yield trainer.lightning_module


def observed(module: LightningModule, observations: np.ndarray) -> Tensor:
    """Return training observations, `(num_envs, *shape)`, on the module's device; its `observe`, if any, is called."""
    tensor = torch.from_numpy(observations).to(module.device)
    if offers(module, HasObserve):
        module.observe(tensor)
    return tensor


def act(module: LightningModule, observations: Tensor, step: int | None, generator: torch.Generator) -> np.ndarray:
    """Return the actions of a module for observations on its device, both `(num_envs, *shape)`; see `HasAct`."""
    actions = module.act(observations, step, generator)
    return (actions.float() if actions.is_floating_point() else actions).cpu().numpy()


class Pace(NamedTuple):
    """Schedule by which collecting and learning alternate."""

    rounds: int  # in an epoch
    steps: int  # of each environment in a rollout
    updates: int  # after a rollout
    batch_size: int  # of an update
    initial_steps: int  # of all environments together, before the first rollout


class Rounds:
    """Rollouts of an epoch: some steps of the environments, each time followed by minibatches from the buffer.

    All random draws are a function of `seed` and the number of the rollout.

    Attributes:
        trainer: The Trainer of the current fit; set before it begins.
        returns: Number of steps and discount of the returns for an update.
    """

    def __init__(self, collector: Collector, pace: Pace, seed: int):
        self.collector, self.pace = collector, pace
        self.trainer: Trainer | None = None
        self.returns = (1, 1.0)
        self._seed = seed
        self._position = (-1, 0)  # epoch, rollouts yielded in it
        self._resumed = (-1, 0)
        self._number = 0  # of the rollout, over all epochs

    def __len__(self) -> int:
        return self.pace.rounds

    def __iter__(self) -> Iterator[Round]:
        # A generator: the module does not act before the first batch is requested.
        epoch = self.trainer.current_epoch
        begun = self._resumed[1] if self._resumed[0] == epoch else 0
        self._resumed = (-1, 0)  # a later fit has epochs of the same numbers
        for done in range(begun + 1, self.pace.rounds + 1):
            made = self._round()
            self._position = (epoch, done)
            yield made

    def collect_initial(self) -> None:
        """Collect the remaining initial steps; to be called before the first rollout."""
        collector = self.collector
        with playing(self.trainer) as module:
            while collector.environment_steps < self.pace.initial_steps:
                observed(module, collector.buffer.latest())
                collector.step(collector.random_actions(self._generator(2, collector.steps)))
        collector.finished()  # episodes of random actions are not logged

    def _round(self) -> Round:
        collector, pace = self.collector, self.pace
        draws = self._generator(0, self._number)
        generator = torch.Generator().manual_seed(int(draws.integers(2**62)))
        with playing(self.trainer) as module:
            for _ in range(pace.steps):
                learning = collector.environment_steps - pace.initial_steps
                observations = observed(module, collector.buffer.latest())
                collector.step(act(module, observations, learning, generator))
        self._number += 1
        return self._of(draws, *collector.finished())

    def peek_batches(self) -> Iterator[Round]:
        """Yield minibatches for measurements, sampled from the buffer without acting and without a change of training.

        Raises:
            ValueError: If nothing is stored yet.
        """
        for ahead in range(self.pace.rounds):
            none = torch.empty(0, dtype=torch.int64)
            yield self._of(self._generator(3, self._number + ahead), torch.empty(0), none, none)

    def _of(self, draws: np.random.Generator, *finished: Tensor) -> Round:
        pace = self.pace
        shape = pace.updates, pace.batch_size
        drawn = self.collector.buffer.sample(shape[0] * shape[1], draws, *self.returns)
        drawn = drawn.each(lambda tensor: tensor.unflatten(0, shape))
        seed = torch.tensor(int(draws.integers(2**62)))
        return Round(drawn, torch.tensor(self.collector.environment_steps), seed, *finished)

    def _generator(self, kind: int, number: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=[self._seed, kind << 60 | number]))

    def state_dict(self) -> dict[str, Any]:
        """Return nothing, as the DataModule keeps `state`; Lightning warns at a resume of loaders without this."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore nothing."""

    def state(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        return {"position": list(self._position), "number": self._number, "collector": self.collector.state_dict()}

    def restore(self, state: dict[str, Any]) -> bool:
        """Restore the result of `state`; return whether the environments are in the same state."""
        self._resumed = self._position = tuple(state["position"])
        self._number = state["number"]
        return self.collector.load_state_dict(state["collector"])


class Evaluation:
    """Loader of evaluation episodes, with the same seeds in each evaluation.

    With a `video_folder`, the first is recorded as `step-N.mp4`, where N is `count()`.
    """

    def __init__(
        self,
        environment: Environment,
        episodes: int,
        stack: int,
        trainer: Trainer,
        seed: int,
        video_folder: Path | None = None,
        count: Callable[[], int] = lambda: 0,
    ):
        self._environment, self._episodes, self._stack = environment, episodes, stack
        self._trainer, self._seed, self._folder, self._count = trainer, seed, video_folder, count
        self._env: gymnasium.Env | None = None
        self._recorder: RecordVideo | None = None
        if video_folder is not None:
            self._make()  # so that errors are raised before training

    def __len__(self) -> int:
        return self._episodes

    def __iter__(self) -> Iterator[Episode]:
        for number in range(self._episodes):
            if self._env is None:
                self._make()
            yield self._play(seed_of_episode(self._seed + _EVALUATION, number), None if number else self._recorder)

    def _make(self) -> None:
        self._env = scaled(self._environment)
        if self._folder is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*Overwriting existing videos")
                self._recorder = RecordVideo(self._env, str(self._folder), episode_trigger=lambda number: False)
            self._env = self._recorder
        if self._stack > 1:
            self._env = FrameStackObservation(self._env, self._stack, padding_type="zero")

    def _play(self, seed: int, recorder: RecordVideo | None) -> Episode:
        generator, dtype = torch.Generator().manual_seed(seed), stored_dtype(self._env.observation_space)
        observation, _ = self._env.reset(seed=seed)
        if recorder is not None:
            recorder.start_recording(f"step-{self._count()}")
        total, length, over = 0.0, 0, False
        with playing(self._trainer) as module:
            while not over:
                observations = torch.from_numpy(np.asarray(observation, dtype)[None]).to(module.device)
                action = act(module, observations, None, generator)[0]
                observation, reward, terminated, truncated, _ = self._env.step(action if action.ndim else int(action))
                total, length, over = total + float(reward), length + 1, terminated or truncated
        if recorder is not None:
            recorder.stop_recording()
        return Episode(torch.tensor(total, dtype=torch.float32), torch.tensor(length))

    def close(self) -> None:
        """Close the environment; it is created again when next needed."""
        if self._env is not None:
            self._env.close()
            self._env = None
