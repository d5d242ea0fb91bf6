"""A Trainer that only trains, without output."""

import logging
import warnings
from typing import Any

from lightning.pytorch import Callback, Trainer


def quiet_trainer(*callbacks: Callback, **options: Any) -> Trainer:
    """Return a Trainer without logger, checkpoints, progress bar and messages; options override."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning_fire"):
        logging.getLogger(name).setLevel(logging.WARNING)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(callbacks=list(callbacks), **{**quiet, **options})
