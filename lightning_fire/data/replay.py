"""A LightningDataModule for reinforcement learning from a replay buffer."""

from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lightning_fire._lightning import begin_next_epoch, undeclared
from lightning_fire.contracts import HasAct, implements
from lightning_fire.messages import inform, rank_zero_warn


class ReplayDataModule(pl.LightningDataModule):
    """Data from environments stepped by the trained module; batches are sampled from stored steps.

    A batch is a `Rollout`: after `steps_per_round` steps of each environment, minibatches for the number of updates
    that follows from `replay_ratio`. The module must have `act(observations, step, generator)`, see `ReplayModule`.
    If it has `observe(observations)`, this is called first with all training observations. An evaluation consists of
    `evaluation_episodes` episodes, one per batch.

    Steps are counted over all environments, including those that start a new episode. Training takes `initial_steps` +
    `max_epochs` · `steps_per_epoch` of them. A resumed training equals an uninterrupted one if the environments are
    deterministic: it replays the actions of each episode, and random draws depend on the seed and the batch's number.

    Args:
        environment: Callable that makes an environment of gymnasium: `Gymnasium` or `Atari` of
            `lightning_fire.experience`, or any other.
        steps_per_epoch: Environment steps per epoch (paper: 250,000 in Atari).
        replay_ratio: Updates per environment step (paper: 1 for DQN, 2 for SAC).
        batch_size: Samples per update (paper: 32 for DQN, 256 for SAC).
        capacity: Steps that the buffer holds (paper: 1,000,000).
        initial_steps: Steps with random actions before the first update (paper: 20,000 for DQN, 5,000 for SAC).
        steps_per_round: Steps of each environment in a rollout; more than 1 is faster for small networks, as several
            updates then run in a row.
        num_envs: Number of environments stepped together.
        stack: Frames that make up an observation (Dopamine: 4).
        reward_clip: Clip rewards to ± this value for learning (Dopamine: 1). Logged returns are not clipped.
        evaluation_episodes: Episodes per evaluation.
        seed: Seed of the episodes and of all random draws.
        folder: Folder for files with steps, relative to the Trainer's `default_root_dir`. Checkpoints then contain only
            file names: for buffers of gigabytes, and to share them among branches; see `ReplayBuffer`. None: each
            checkpoint contains the whole buffer.
        vectorization_mode: `"sync"`: step one environment after another. `"async"`: each in its own process, for
            environments that take longer than half a millisecond per step, with as many cores. The training is
            bit-identical if environments draw only from their own seed and share nothing.
        evaluation_environment: Callable that makes the environment of evaluations. Default: `environment`.
        video_folder: Folder, relative to `default_root_dir`, for a video of the first episode of each evaluation,
            `step-N-episode-0.mp4`, N environment steps; needs moviepy, and environments that render frames.

    Raises:
        ValueError: If an argument is out of its range, or the environment's actions or observations cannot be stored.
        MisconfigurationException: When training starts, if the module cannot act, or several processes train.
    """

    report = "return"

    def __init__(
        self,
        environment: Callable[[], Any],
        steps_per_epoch: int,
        replay_ratio: float = 1.0,
        batch_size: int = 32,
        capacity: int = 1_000_000,
        initial_steps: int = 20_000,
        steps_per_round: int = 1,
        num_envs: int = 1,
        stack: int = 1,
        reward_clip: float | None = None,
        evaluation_episodes: int = 10,
        seed: int = 0,
        folder: str | None = None,
        vectorization_mode: Literal["sync", "async"] = "sync",
        evaluation_environment: Callable[[], Any] | None = None,
        video_folder: str | None = None,
    ):
        super().__init__()
        self.environment, self.evaluation_environment = environment, evaluation_environment
        self.steps_per_epoch, self.steps_per_round = steps_per_epoch, steps_per_round
        self.batch_size, self.capacity, self.initial_steps = batch_size, capacity, initial_steps
        self.num_envs, self.stack, self.reward_clip = num_envs, stack, reward_clip
        self.evaluation_episodes, self.seed = evaluation_episodes, seed
        self.folder, self.video_folder, self.vectorization_mode = folder, video_folder, vectorization_mode
        counts = "steps_per_epoch batch_size initial_steps steps_per_round num_envs evaluation_episodes seed"
        for name in counts.split():
            if getattr(self, name) < (least := int(name != "seed")):
                raise ValueError(f"`{name}` must be at least {least}, got {getattr(self, name)}")
        if reward_clip is not None and not reward_clip > 0:
            raise ValueError(f"`reward_clip` must be positive, got {reward_clip}")
        if vectorization_mode not in ("sync", "async"):
            raise ValueError(f"`vectorization_mode` must be 'sync' or 'async', got {vectorization_mode!r}")
        in_round = steps_per_round * num_envs
        updates, self.rounds_per_epoch = replay_ratio * in_round, steps_per_epoch // in_round
        self.updates = round(updates)
        if self.updates < 1 or abs(self.updates - updates) > 1e-9:
            raise ValueError(
                f"a rollout of {in_round} environment steps with `replay_ratio` {replay_ratio} has {updates:g} updates,"
                " which must be a whole number from 1: change `steps_per_round`"
            )
        if steps_per_epoch % in_round:
            raise ValueError(
                f"`steps_per_epoch` must be a multiple of the {in_round} steps of a rollout, got {steps_per_epoch}"
            )
        self._rounds: Any = None
        self._evaluation: Any = None

    @property
    def trained_by(self) -> Any:
        """The Trainer."""
        return undeclared(self.trainer)

    def setup(self, stage: str | None = None) -> None:
        """Check the Trainer and its module, and make the environments and the buffer."""
        try:
            from lightning_fire.data.rollouts import Evaluation, Rollouts
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"reinforcement learning needs gymnasium: pip install 'lightning-fire[rl]' ({error})", name=error.name
            ) from error
        if self.trained_by.world_size > 1:
            raise MisconfigurationException(
                "ReplayDataModule steps its environments in one process: set Trainer(devices=1), and train one seed on"
                " each device"
            )
        if not implements(self.trained_by.lightning_module, HasAct):
            raise MisconfigurationException(
                f"{type(self.trained_by.lightning_module).__name__} needs act(observations, step, generator), which"
                " returns the actions for observations (num_envs, *shape)"
            )
        self._evaluation = Evaluation(self)
        if stage == "fit":
            self._rounds = self._rounds or Rollouts(self)

    @property
    def action_space(self) -> Any:
        """Action space of one environment, with boxes scaled to [−1, 1]; None before `setup` of a fit."""
        return None if self._rounds is None else self._rounds.collector.action_space

    @property
    def example_observations(self) -> Tensor:
        """Latest observations of all environments."""
        return torch.from_numpy(self._rounds.collector.buffer.latest())

    @property
    def environment_steps(self) -> int:
        """Environment steps done in this training, over all environments."""
        return 0 if self._rounds is None else self._rounds.collector.environment_steps

    def train_dataloader(self) -> Any:
        """Collect the remaining initial steps, so that callbacks can use them; return the rollouts of an epoch."""
        begin_next_epoch(self.trained_by)
        self._rounds.collect_initial()
        return self._rounds

    def val_dataloader(self) -> Any:
        """Return the episodes of an evaluation."""
        return self._evaluation

    test_dataloader = val_dataloader

    def teardown(self, stage: str) -> None:
        """Drop the collected steps after a `fast_dev_run`."""
        if self.trained_by.fast_dev_run:
            self._rounds = None

    def state_dict(self) -> dict[str, Any]:
        """State: the buffer, or the names of its files, and the states of the environments; values and tensors only."""
        if self._rounds is None:
            return {}
        return {"rounds": self._rounds.state(), "environment_steps": self.environment_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint; only fits use it."""
        if not state_dict or self.trained_by.state.fn != TrainerFn.FITTING:
            return
        if self._rounds.restore(state_dict["rounds"]):
            inform(f"Training continues after {self.environment_steps} environment steps.")
        else:
            rank_zero_warn(
                "The environments could not be restored to their states in the checkpoint, as they are not"
                " deterministic or have changed: new episodes begin. The replay buffer is the same."
            )
