"""LightningModules of the paper's settings. Any other module works with the callbacks as well."""

from lightning_fire.modules.classifier import Classifier
from lightning_fire.modules.language_model import LanguageModel

__all__ = ["Classifier", "LanguageModel"]
