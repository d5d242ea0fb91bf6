"""One curve of logs over several processes, each with a training that begins anew."""

from pathlib import Path

import torch
from lightning.pytorch import Trainer

from lightning_fire._lightning import continue_steps_of_logs, first_step_after


def continue_steps(trainer: Trainer, checkpoint: str | Path) -> None:
    """Let the logs of a Trainer continue at the step at which a checkpoint was written: call it before `fit`.

    For a process a week that loads the weights of the last week, whose epochs and steps begin at 0: on the x axis of
    all loggers its curves follow those of last week. Log into the same run, for example
    `TensorBoardLogger("runs", name="weekly", version="0")`. Nothing but the axis changes; the checkpoints of this fit
    contain it. An interrupted week that continues by `fit(ckpt_path=…)` has the steps of that checkpoint.

    Args:
        trainer: The Trainer, before `fit`.
        checkpoint: Checkpoint file of Lightning, of the process before.

    Raises:
        ValueError: If the file has no steps, as with `save_weights_only`.
    """
    try:
        content = torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
        step = first_step_after(content)
    except (KeyError, TypeError, IndexError):
        raise ValueError(f"`checkpoint` must be a whole checkpoint of Lightning, {checkpoint} has no steps") from None
    continue_steps_of_logs(trainer, step)
