"""Checkpoint files without their model: metrics of weights, and reinitialization."""

from lightning_fire.checkpoints.diagnose import diagnose
from lightning_fire.checkpoints.diagnosis import Diagnosis, diagnosis_of
from lightning_fire.checkpoints.formats import open_checkpoint
from lightning_fire.checkpoints.stored import Stored
from lightning_fire.checkpoints.weights import select_weights

__all__ = ["Diagnosis", "Stored", "diagnose", "diagnosis_of", "open_checkpoint", "select_weights"]
