"""Data of reinforcement learning: collection, evaluation, resume."""

import sys
from pathlib import Path
from typing import ClassVar

import gymnasium
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from environments import Corridor, Slope
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from small_training import resumed_from
from torch import nn
from torch.utils._pytree import tree_leaves

from lightning_fire.data import ReplayDataModule
from lightning_fire.experience import Rollout, Transitions
from lightning_fire.modules import ReplayModule


class Recorder(ReplayModule):
    """Learns nothing much, and remembers what it was given."""

    def __init__(self, actions: int = 2):
        super().__init__()
        self.net = nn.Linear(3, actions)
        self.batches, self.acted, self.noise = [], [], []

    def act(self, observations, step, generator):
        self.acted.append((observations.clone(), step))
        return torch.randint(2, (len(observations),), generator=generator)

    def update(self, transitions, generator):
        self.batches.append(transitions)
        self.noise.append(torch.rand(1, generator=generator).item())
        loss = self.net(transitions.observations).square().mean()
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(**options) -> ReplayDataModule:
    settings = {"steps_per_epoch": 20, "batch_size": 4, "capacity": 64, "initial_steps": 10, "evaluation_episodes": 3}
    return ReplayDataModule(Corridor, **{**settings, **options})


def trainer(folder, epochs: int = 3, **options) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=epochs, default_root_dir=folder, **{"enable_checkpointing": False, **quiet, **options})


def same(first: list, second: list) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one[:5], other[:5], strict=True)
    )


@pytest.mark.parametrize(
    ("options", "rounds", "updates"),
    [({}, 20, 1), ({"replay_ratio": 0.5, "steps_per_round": 4}, 5, 2), ({"replay_ratio": 3, "num_envs": 2}, 10, 6)],
)
def test_an_epoch_is_so_many_environment_steps(tmp_path, options, rounds, updates):
    module, datamodule = Recorder(), data(**options)
    fit = trainer(tmp_path)
    fit.fit(module, datamodule)
    assert datamodule.environment_steps == 10 + 3 * 20
    assert len(module.batches) == 3 * rounds * updates
    training = [step for _, step in module.acted if step is not None]
    per_step = options.get("num_envs", 1)
    assert training == list(range(0, 60, per_step))
    assert fit.callback_metrics["train/environment_steps"] == 70
    assert len(datamodule._rounds.collector.buffer) == min(70, 64)
    assert {len(transitions.rewards) for transitions in module.batches} == {4}


def test_all_minibatches_move_to_another_device_at_once(monkeypatch):
    steps = Transitions(*(torch.arange(6.0).view(2, 3) + i for i in range(6)))
    made = Rollout(steps, torch.tensor(1), torch.tensor(2), *torch.zeros(3, 0))
    asked, move = [], Rollout.to
    monkeypatch.setattr(Rollout, "to", lambda self, device: asked.append(device) or move(self, device))
    moved = data().transfer_batch_to_device(made, torch.device("meta"), 0)
    assert asked == [torch.device("meta")]
    assert type(moved) is Rollout and type(moved.transitions) is Transitions
    assert [tensor.device.type for tensor in tree_leaves(moved)] == ["meta"] * 6 + ["cpu"] * 5  # which the host reads
    here = move(made, "cpu")
    assert all(a is b for a, b in zip(tree_leaves(made), tree_leaves(here), strict=True))


def test_logs_the_returns_of_training_and_evaluation(tmp_path):
    """Rewards are clipped, returns are not."""
    module = Recorder()
    fit = trainer(tmp_path, 2, num_sanity_val_steps=0)
    fit.fit(module, data(steps_per_epoch=200, reward_clip=1))
    logged = fit.callback_metrics
    assert 1 < logged["train/episode_return"] <= 2 and 3 <= logged["train/episode_length"] <= 20
    assert max(transitions.rewards.max() for transitions in module.batches) == 1
    there, lengths = zip(*map(played, range(3)), strict=True)
    assert logged["val/episode_return"] == pytest.approx(2.0 * np.mean(there))
    assert fit.validate(module, fit.datamodule, verbose=False)[0]["val/episode_length"] == pytest.approx(
        np.mean(lengths)
    )


def test_evaluations_have_an_environment_of_their_own(tmp_path):
    module = Recorder()
    fit = trainer(tmp_path, 1, num_sanity_val_steps=0)
    fit.fit(module, data(evaluation_environment=lambda: Corridor(limit=2)))
    assert fit.callback_metrics["val/episode_length"] == 2
    assert module.trainer.datamodule._rounds.collector.buffer.newest().shape == (1, 3)
    assert max(transitions.next_observations[:, 0].max() for transitions in module.batches) > 2


class Drawn(Corridor):
    """Renders a frame that shows the number of steps."""

    metadata: ClassVar[dict] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = "rgb_array"):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((32, 32, 3), 10 * self.time, np.uint8)


def test_the_first_episode_of_each_evaluation_is_recorded(tmp_path):
    pytest.importorskip("moviepy", reason="moviepy is not installed")
    weights = []
    for options in ({}, {"evaluation_environment": Drawn, "video_folder": "videos"}):
        torch.manual_seed(0)
        module = Recorder()
        fit = trainer(tmp_path, 2)
        fit.fit(module, data(**options))
        weights.append(module.net.weight.detach())
    assert torch.equal(*weights)
    fit.validate(module, fit.datamodule, verbose=False)
    assert {path.name for path in (tmp_path / "videos").iterdir()} == {f"step-{n}-episode-0.mp4" for n in (0, 30, 50)}
    from moviepy import VideoFileClip

    with VideoFileClip(str(tmp_path / "videos" / "step-50-episode-0.mp4")) as clip:
        seen = [frame.mean() for frame in clip.iter_frames()]
    _, length = played(0)
    assert len(seen) == length + 1 and np.allclose(seen, 10 * np.arange(length + 1), atol=6)  # compressed


def test_videos_that_cannot_be_recorded_raise_before_training(tmp_path, monkeypatch):
    options = {"video_folder": "videos", "evaluation_environment": lambda: Drawn(None)}
    with pytest.raises(ValueError, match="Render mode is None, which is incompatible with RecordVideo"):
        trainer(tmp_path).fit(Recorder(), data(**options))
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match="MoviePy is not installed"):
        trainer(tmp_path).fit(Recorder(), data(**{**options, "evaluation_environment": Drawn}))


def test_episodes_of_the_initial_steps_are_not_logged(tmp_path):
    fits = []
    for initial_steps in (10, 1000):
        fit = trainer(tmp_path, 1, num_sanity_val_steps=0)
        fit.fit(Recorder(), data(steps_per_epoch=4, initial_steps=initial_steps))
        fits.append(fit.callback_metrics.get("train/episode_length"))
    assert all(length is None or length == int(length) for length in fits)  # of at most one episode


def played(number: int) -> tuple[bool, int]:
    """Play an episode of evaluation without the data module."""
    env = Corridor()
    seed = int(np.random.SeedSequence([2**31, number]).generate_state(1)[0] >> 1)
    generator = torch.Generator().manual_seed(seed)
    env.reset(seed=seed)
    for step in range(1, 21):
        _, reward, terminated, truncated, _ = env.step(int(torch.randint(2, (1,), generator=generator)))
        if terminated or truncated:
            return reward > 0, step
    raise AssertionError


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
@pytest.mark.filterwarnings("error:You're resuming from a checkpoint")  # Lightning's, of loaders that cannot
@pytest.mark.parametrize("folder", [None, "replay"])
@pytest.mark.parametrize("at", [{"every_n_train_steps": 13}, {"every_n_epochs": 1}, {"every_n_train_steps": 20}])
@pytest.mark.parametrize(
    ("num_envs", "mode", "then"),
    [(1, "sync", "sync"), (2, "sync", "sync"), (2, "sync", "async"), (2, "async", "sync")],
)
def test_a_resumed_training_is_the_uninterrupted_one(tmp_path, folder, at, num_envs, mode, then):
    options = {"folder": folder, "steps_per_epoch": 20 * num_envs, "num_envs": num_envs}
    whole, first, resumed = (Recorder() for _ in range(3))
    trainer(tmp_path / "whole").fit(whole, data(**options))
    save = ModelCheckpoint(tmp_path, filename="saved", save_on_train_epoch_end=False, **at)
    interrupted = trainer(tmp_path / "first", 2, callbacks=[save], enable_checkpointing=True)
    interrupted.fit(first, data(**options, vectorization_mode=mode))
    steps = torch.load(tmp_path / "saved.ckpt", weights_only=True)["global_step"]
    again = data(**options, vectorization_mode=then)
    trainer(tmp_path / "resumed").fit(resumed, again, **resumed_from(tmp_path / "saved.ckpt"))
    assert same(whole.batches[steps:], resumed.batches) and whole.noise[steps:] == resumed.noise


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_that_cannot_be_restored_restart_with_the_same_buffer(tmp_path, mode):
    first, again = (data(vectorization_mode=mode) for _ in range(2))
    first.environment = again.environment = lambda: Corridor(noise=np.random.default_rng())
    fit = trainer(tmp_path, 1)
    fit.fit(Recorder(), first)
    fit.save_checkpoint(tmp_path / "saved.ckpt")
    kept, fit = first.environment_steps, trainer(tmp_path, 2)
    with pytest.warns(UserWarning, match="could not be restored to their states"):
        fit.fit(Recorder(), again, ckpt_path=tmp_path / "saved.ckpt")
    rows = again._rounds.collector.buffer._ring[[kept, kept + 1]]
    assert rows["began"][:, 0].tolist() == [True, False]
    assert rows["age"][1, 0] == 0


def test_a_test_of_a_checkpoint_leaves_the_buffer_alone(tmp_path):
    module, datamodule = Recorder(), data(folder="replay")
    fit = trainer(tmp_path, 1)
    fit.fit(module, datamodule)
    fit.save_checkpoint(tmp_path / "saved.ckpt")
    fit = trainer(tmp_path, 1)
    fit.fit(module, datamodule)
    for _ in range(3):
        fit.test(module, datamodule, **resumed_from(tmp_path / "saved.ckpt"), verbose=False)
    assert datamodule.environment_steps == 10 + 2 * 20
    kept = torch.load(tmp_path / "saved.ckpt", weights_only=True)["ReplayDataModule"]["rounds"]["collector"]["buffer"]
    assert kept["parts"] and all(Path(path).is_file() for *_, path in kept["parts"])


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
def test_an_epoch_that_was_resumed_has_the_means_of_all_of_it_and_the_next_fit_whole_epochs(tmp_path):
    save = ModelCheckpoint(tmp_path, filename="saved", every_n_train_steps=13, save_on_train_epoch_end=False)
    whole, resumed = trainer(tmp_path, 1, callbacks=[save], enable_checkpointing=True), trainer(tmp_path, 1)
    whole.fit(Recorder(), data())
    module, datamodule = Recorder(), data()
    resumed.fit(module, datamodule, **resumed_from(tmp_path / "saved.ckpt"))
    for name in ("train/loss", "train/environment_steps", "train/episode_return", "train/episode_length"):
        assert torch.equal(whole.callback_metrics[name], resumed.callback_metrics[name]), name
    assert len(module.batches) == 7
    trainer(tmp_path, 2).fit(module, datamodule)
    assert len(module.batches) == 7 + 2 * 20
    assert datamodule.environment_steps == 10 + 3 * 20


def test_a_fast_dev_run_does_not_wait_for_the_initial_steps(tmp_path):
    module, datamodule = Recorder(), data(initial_steps=10**9)
    steps = []
    module.on_train_end = lambda: steps.append(datamodule.environment_steps)
    trainer(tmp_path, fast_dev_run=True).fit(module, datamodule)
    assert steps == [2] and datamodule.environment_steps == 0  # the next fit starts from 0


def test_continuous_actions_are_scaled(tmp_path):
    class Pusher(Recorder):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(1, 1)

        def act(self, observations, step, generator):
            return torch.ones(len(observations), 1)

    module = Pusher()
    trainer(tmp_path, 1).fit(module, ReplayDataModule(Slope, 20, batch_size=8, capacity=64, initial_steps=3))
    transitions = module.batches[-1]
    acted = transitions.actions[:, 0] == 1
    moved = (transitions.next_observations - transitions.observations)[acted, 0]
    assert torch.allclose(moved, torch.tensor(0.2)) or (transitions.next_observations[acted] == 2).any()
    assert transitions.actions.abs().max() <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay_ratio": 0.3}, "has 0.3 updates, which must be a whole number"),
        ({"steps_per_epoch": 21, "num_envs": 2}, "`steps_per_epoch` must be a multiple of the 2"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be at least 1"),
        ({"initial_steps": 0}, "`initial_steps` must be at least 1"),
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"reward_clip": 0.0}, "`reward_clip` must be positive"),
        ({"vectorization_mode": "threads"}, "`vectorization_mode` must be 'sync' or 'async', got 'threads'"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        data(**options)


class Boxed(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(0, 1, (1,))})
    action_space = gymnasium.spaces.Discrete(2)


class Unbounded(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


def test_invalid_modules_and_environments_raise_before_training(tmp_path):
    class WithoutAct(pl.LightningModule):
        def training_step(self, batch):
            pass

        def validation_step(self, batch):
            pass

        def configure_optimizers(self):
            pass

    with pytest.raises(MisconfigurationException, match=r"WithoutAct needs act\(observations, step, generator\)"):
        trainer(tmp_path).fit(WithoutAct(), data())
    for environment, message in ((Boxed, "FlattenObservation"), (Unbounded, "bounded box")):
        datamodule = data()
        datamodule.environment = environment
        with pytest.raises(ValueError, match=message):
            trainer(tmp_path).fit(Recorder(), datamodule)
