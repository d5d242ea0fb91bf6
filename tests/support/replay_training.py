"""Small trainings from a replay buffer."""

from pathlib import Path

import lightning.pytorch as pl
import torch
from torchvision.ops import MLP

from lightning_fire.data import ReplayDataModule
from lightning_fire.experience import Transitions
from lightning_fire.modules import DQN, SAC


def quiet_trainer(folder: Path, epochs: int, **options) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=epochs, default_root_dir=folder, **{**quiet, **options})


def small_dqn(**options) -> DQN:
    return DQN(MLP(3, [16, 2]), **{"target_update_period": 7, "epsilon_steps": 40, **options})


def small_sac(**options) -> SAC:
    return SAC(MLP(1, [16, 2]), MLP(2, [16, 1]), observation_size=1, **options)


def small_data(environment, **options) -> ReplayDataModule:
    small = {"steps_per_epoch": 40, "batch_size": 8, "capacity": 200, "initial_steps": 10, "evaluation_episodes": 2}
    return ReplayDataModule(environment, **{**small, **options})


def transitions(number: int, observations: int, actions: torch.Tensor) -> Transitions:
    """Draw some."""
    return Transitions(
        torch.randn(number, observations),
        actions,
        torch.randn(number),
        torch.randn(number, observations),
        torch.rand(number) < 0.3,
    )
