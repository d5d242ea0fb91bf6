"""LightningModules of the paper's settings. Any other module works with the callbacks as well."""

from lightning_fire.modules.classifier import Classifier
from lightning_fire.modules.dqn import DQN
from lightning_fire.modules.language_model import LanguageModel
from lightning_fire.modules.regressor import Regressor
from lightning_fire.modules.replay_module import ReplayModule
from lightning_fire.modules.sac import SAC

__all__ = ["DQN", "SAC", "Classifier", "LanguageModel", "Regressor", "ReplayModule"]
