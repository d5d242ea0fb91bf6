"""One continuous curve of logs over several processes, each of which trains from step 0."""

from pathlib import Path

import torch
from lightning.pytorch import Trainer

from lightning_fire._lightning import continue_steps_of_logs, first_step_after


def continue_steps(trainer: Trainer, checkpoint: str | Path) -> None:
    """Continue the logs of a Trainer at the step of a checkpoint. Call it before `fit`.

    Use it if each week a new process loads last week's weights and its epochs and steps start at 0: the curves of all
    loggers then follow last week's on the x axis. Log into the same run, for example
    `TensorBoardLogger("runs", name="weekly", version="0")`. Only the axis changes; the checkpoints of this fit contain
    it. An interrupted week that is resumed by `fit(ckpt_path=…)` has the steps of that checkpoint.

    Args:
        trainer: The Trainer, before `fit`.
        checkpoint: Checkpoint file of Lightning, written by the previous process.

    Raises:
        ValueError: If the file has no steps, as with `save_weights_only`.
    """
    try:
        content = torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
        step = first_step_after(content)
    except (KeyError, TypeError, IndexError):
        raise ValueError(f"`checkpoint` must be a whole checkpoint of Lightning, {checkpoint} has no steps") from None
    continue_steps_of_logs(trainer, step)
