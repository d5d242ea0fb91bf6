"""Checkpoint files without their model: metrics of weights, and reinitialization."""

from lightning_fire.checkpoints.diagnose import Diagnosis, diagnose
from lightning_fire.checkpoints.formats import open_checkpoint
from lightning_fire.checkpoints.spectrum import Health, health
from lightning_fire.checkpoints.stored import Stored
from lightning_fire.checkpoints.weights import select_weights

__all__ = ["Diagnosis", "Health", "Stored", "diagnose", "health", "open_checkpoint", "select_weights"]
