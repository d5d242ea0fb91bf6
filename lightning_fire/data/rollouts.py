"""Loaders of `ReplayDataModule` that make batches on request: by acting, storing and sampling, or by evaluating."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import FrameStackObservation, RecordVideo
from torch import Tensor

from lightning_fire._lightning import undeclared
from lightning_fire.contracts import HasNStep, HasObserve, implements
from lightning_fire.data.resumable_loader import goes_to_gpu
from lightning_fire.experience import Collector, Episode, ReplayBuffer, Rollout
from lightning_fire.experience.buffer import stored_dtype
from lightning_fire.experience.episodes import scaled, seed_of_episode

if TYPE_CHECKING:
    from lightning_fire.data.replay import ReplayDataModule

_EVALUATION = 2**31  # distinct from the seeds of training


@contextmanager
def playing(trainer: Any) -> Iterator[Any]:
    """Context manager: act with the module of a Trainer, in the Trainer's precision and without gradients."""
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        yield trainer.lightning_module


def act(module: Any, observations: Tensor, step: int | None, generator: torch.Generator) -> np.ndarray:
    """Return the actions of a module for observations on its device, both `(num_envs, *shape)`; see `HasAct`."""
    actions = module.act(observations, step, generator)
    return (actions.float() if actions.is_floating_point() else actions).cpu().numpy()


def _sent(observations: np.ndarray, device: torch.device) -> Tensor:
    """Move observations to a device; the host waits only for actions."""
    return torch.from_numpy(observations).to(device, non_blocking=device.type == "cuda")


class Rollouts:
    """Rollouts of an epoch: steps of the environments, then minibatches from the buffer.

    All random draws are a function of the data's seed and the number of the rollout.
    """

    def __init__(self, data: "ReplayDataModule"):
        self._data = data
        folder = None if data.folder is None else Path(data.trained_by.default_root_dir) / data.folder
        make_buffer = partial(ReplayBuffer, data.capacity, stack=data.stack, folder=folder)
        how = data.reward_clip, data.vectorization_mode == "async"
        self.collector = Collector(data.environment, data.num_envs, data.seed, make_buffer, *how)
        self._initial = data.num_envs if data.trained_by.fast_dev_run else data.initial_steps
        self._number = 0  # number of the rollout, over all epochs

    def __len__(self) -> int:
        return self._data.rounds_per_epoch

    def __iter__(self) -> Iterator[Rollout]:
        # A generator: the module does not act before the first batch is requested.
        done = self._data.trained_by.fit_loop.batch_idx + 1  # in this epoch, before a resume
        for _ in range(done, len(self)):
            draws = self._generator(0, self._number)
            generator = torch.Generator().manual_seed(int(draws.integers(2**62)))
            self._collect(self._data.steps_per_round, partial(act, generator=generator))
            self._number += 1
            yield self._batch(draws, *self.collector.finished())

    def collect_initial(self) -> None:
        """Collect the remaining initial steps. Call it before the first rollout."""
        collector = self.collector
        missing = -(-(self._initial - collector.environment_steps) // collector.num_envs)
        self._collect(missing, lambda *_: collector.random_actions(self._generator(2, collector.buffer.written)))
        collector.finished()  # episodes of random actions are not logged

    def _collect(self, steps: int, actions: Callable[[Any, Tensor, int], np.ndarray]) -> None:
        """Take some steps of each environment."""
        with playing(self._data.trained_by) as module:
            for _ in range(steps):
                observations = _sent(self.collector.buffer.latest(), module.device)
                if implements(module, HasObserve):
                    module.observe(observations)
                self.collector.step(actions(module, observations, self.collector.environment_steps - self._initial))

    def _batch(self, draws: np.random.Generator, *finished: Tensor) -> Rollout:
        shape, module = (self._data.updates, self._data.batch_size), self._data.trained_by.lightning_module
        returns = (module.n_step, module.discount) if implements(module, HasNStep) else ()
        drawn = self.collector.buffer.sample(shape[0] * shape[1], draws, *returns)
        pin = goes_to_gpu(self._data.trained_by)
        drawn = drawn.each(lambda tensor: (tensor.pin_memory() if pin else tensor).unflatten(0, shape))
        seed = torch.tensor(int(draws.integers(2**62)))
        return Rollout(drawn, torch.tensor(self.collector.environment_steps), seed, *finished)

    def _generator(self, kind: int, number: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=[self._data.seed, kind << 60 | number]))

    def state_dict(self) -> dict[str, Any]:
        """Empty, as the DataModule saves `state`; Lightning warns at a resume of loaders without this method."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore nothing."""

    def state(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        return {"number": self._number, "collector": self.collector.state_dict()}

    def restore(self, state: dict[str, Any]) -> bool:
        """Restore a `state`; return whether the environments are in the same state."""
        self._number = state["number"]
        return self.collector.load_state_dict(state["collector"])


class Evaluation:
    """Loader of evaluation episodes, with the same seeds in each evaluation.

    With a `video_folder` of the data, the first is recorded as `step-N-episode-0.mp4`, N environment steps.
    """

    def __init__(self, data: "ReplayDataModule"):
        self._data = data
        self._make().close()  # errors are raised before training

    def __len__(self) -> int:
        return self._data.evaluation_episodes

    def __iter__(self) -> Iterator[Episode]:
        with closing(self._make()) as env:
            for number in range(len(self)):
                yield self._play(env, seed_of_episode(self._data.seed + _EVALUATION, number))

    def _make(self) -> gymnasium.Env:
        data = self._data
        env = scaled(data.evaluation_environment or data.environment)
        if data.video_folder is not None and not data.trained_by.fast_dev_run:
            folder, name = Path(data.trained_by.default_root_dir) / data.video_folder, f"step-{data.environment_steps}"
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*Overwriting existing videos")
                env = RecordVideo(env, str(folder), lambda number: number == 0, name_prefix=name)
        return FrameStackObservation(env, data.stack, padding_type="zero") if data.stack > 1 else env

    def _play(self, env: gymnasium.Env, seed: int) -> Episode:
        generator, dtype = torch.Generator().manual_seed(int(seed)), stored_dtype(undeclared(env.observation_space))
        observation, _ = env.reset(seed=seed)
        total, length, over = 0.0, 0, False
        with playing(self._data.trained_by) as module:
            while not over:
                observations = _sent(np.asarray(observation, dtype)[None], module.device)
                action = act(module, observations, None, generator)[0]
                observation, reward, terminated, truncated, _ = env.step(action if action.ndim else int(action))
                total, length, over = total + float(reward), length + 1, terminated or truncated
        return Episode(torch.tensor(total, dtype=torch.float32), torch.tensor(length))
