"""LightningModules of the paper's settings. Any other module works with the callbacks as well."""

from lightning_fire.modules.classifier import Classifier

__all__ = ["Classifier"]
