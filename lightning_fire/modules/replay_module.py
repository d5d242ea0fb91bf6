"""Base class of DQN and SAC: updates from a replay buffer, and the log of episodes."""

import time
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_fire._lightning import undeclared
from lightning_fire.contracts import HasActionSpace, HasEnvironmentSteps, implements


class ReplayModule(pl.LightningModule):
    """Trains on the rollouts of a `ReplayDataModule`: an update for each minibatch.

    Subclasses implement `act`, `update`, `loss` and `sync_targets`. Each epoch logs `train/environment_steps` and the
    means of what `update` returns, as `train/{name}`, and of the episodes that ended in it, `train/episode_return` and
    `train/episode_length`; each evaluation logs the means `val/episode_return` and `val/episode_length`. With the key
    `step`, Lightning writes the values of an epoch or evaluation over environment steps.

    As CleanRL does, each episode logs `charts/episodic_return` and `charts/episodic_length`, at the environment step
    with which it ended. Every `Trainer(log_every_n_steps=)` optimizer steps, at most once a rollout: the values of the
    last update, as `losses/{name}`, and `charts/SPS`, environment steps per second since the last time, evaluations
    included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._sums: dict[str, tuple[Tensor, int]] = {}  # sums of values in this epoch, and counts
        self._environment_steps = 0
        self._charts: dict[str, float] = {}  # further values to log with `charts/SPS`, by name
        self._timed = (0, 0.0)  # environment steps and seconds, when `charts/SPS` was last logged

    def act(self, observations: Tensor, step: int | None, generator: torch.Generator) -> Tensor:
        """Return the actions, of the environments' shape, on any device.

        Args:
            observations: Latest observations, `(num_envs, *shape)`, on the module's device.
            step: Environment steps done since the initial ones; None: act as well as possible.
            generator: CPU generator for all random draws.
        """
        raise NotImplementedError

    def update(self, transitions: Any, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Learn from a minibatch, and return scalars to log, by name.

        Args:
            transitions: `Transitions`, leading dimension `(batch,)`.
            generator: Generator on the module's device for all random draws.
        """
        raise NotImplementedError

    def loss(self, transitions: Any, generator: torch.Generator) -> Tensor:
        """Return the loss of a minibatch, a scalar, without learning from it, for measurements by callbacks."""
        raise NotImplementedError

    def loss_on(self, batch: Any) -> Tensor:
        """Return the loss over all minibatches of a `Rollout`, a scalar."""
        transitions = batch.transitions.each(lambda tensor: tensor.flatten(0, 1))
        return self.loss(transitions, self._generator(batch))

    def sync_targets(self) -> None:
        """Copy the trained networks into the target networks; called when a method has replaced weights."""
        raise NotImplementedError

    def check_environment(self, action_space: Any, observations: Tensor) -> None:
        """Raise a `ValueError` if the networks do not fit the actions or the observations `(num_envs, *shape)`."""

    @torch.no_grad()
    def on_fit_start(self) -> None:
        """Check the networks on an example."""
        data = undeclared(self.trainer).datamodule
        if implements(data, HasActionSpace) and data.action_space is not None:
            example, space = data.example_observations.to(self.device), data.action_space
            try:
                self.check_environment(space, example)
            except RuntimeError as error:
                message = f"the networks cannot take observations {tuple(example.shape)} or actions of {space}: {error}"
                raise ValueError(message) from error

    def on_train_start(self) -> None:
        data = undeclared(self.trainer).datamodule
        self._timed = data.environment_steps if implements(data, HasEnvironmentSteps) else 0, time.perf_counter()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Update on each minibatch of a `Rollout`."""
        generator, steps_before = self._generator(batch), self.global_step
        values: Mapping[str, Tensor] = {}
        for index in range(len(batch.transitions.rewards)):
            values = self.update(batch.transitions.each(itemgetter(index)), generator)
            self._note(values)
        self._environment_steps = int(batch.environment_steps)
        self.trainer.callback_metrics["step"] = torch.tensor(self._environment_steps)  # in names of checkpoints
        for total, length, end in zip(batch.returns, batch.lengths.float(), batch.ends.tolist(), strict=True):
            self._note({"episode_return": total, "episode_length": length})
            self._write({"charts/episodic_return": total.item(), "charts/episodic_length": length.item()}, end)
        every = undeclared(self.trainer).log_every_n_steps
        if every and self.loggers and self.global_step // every > steps_before // every:
            (steps, then), self._timed = self._timed, (self._environment_steps, time.perf_counter())
            losses = {f"losses/{name}": value.item() for name, value in values.items()}
            charts = {"charts/SPS": (self._timed[0] - steps) / (self._timed[1] - then), **self._charts}
            self._write({**losses, **charts}, self._environment_steps)

    def _write(self, values: dict[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(values, step)

    def _generator(self, batch: Any) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(int(batch.seed))

    def _step(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def _note(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            total, number = self._sums.get(name, (0, 0))
            self._sums[name] = value.detach() + total, number + 1

    def on_train_epoch_end(self) -> None:
        means = {f"train/{name}": total / number for name, (total, number) in self._sums.items()}
        steps = float(self._environment_steps)
        self.log_dict({**means, "train/environment_steps": steps, "step": steps})
        self._sums = {}

    def on_train_epoch_start(self) -> None:
        """Reset the sums; not called if a run resumes within an epoch."""
        self._sums = {}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["epoch_so_far"] = self._environment_steps, dict(self._sums)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if so_far := checkpoint.get("epoch_so_far"):
            self._environment_steps, sums = so_far
            self._sums = {name: (total.to(self.device), number) for name, (total, number) in sums.items()}

    def validation_step(self, batch: Any, batch_idx: int, stage: str = "val") -> None:
        """Log an `Episode`."""
        self.log("step", float(self._environment_steps), reduce_fx="max", on_epoch=True, batch_size=1)
        self.log(f"{stage}/episode_return", batch.returns, prog_bar=True, on_epoch=True, batch_size=1)
        self.log(f"{stage}/episode_length", batch.length.float(), on_epoch=True, batch_size=1)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx, "test")
