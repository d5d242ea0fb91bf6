"""Learning rates that begin anew with each chunk of data."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil, cos, isfinite, pi
from typing import Any, Literal

from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import LambdaLR

from lightning_fire.contracts import HasStepsPerChunk, offers

Decay = Literal["linear", "cosine", "none"]


class ChunkSchedule(LambdaLR):
    """`LambdaLR` that has the right learning rate at once after a resume.

    PyTorch's takes over the one with which the checkpoint was written, and follows its own function only from the
    second step on. That differs where a training goes on from a checkpoint of one with other chunks.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state.

        Args:
            state_dict: Of such a schedule.
        """
        super().load_state_dict(state_dict)
        rates = zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True)
        for group, base, factor in rates:
            group["lr"] = base * factor(self.last_epoch)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


def learning_rate_factors(
    steps_per_chunk: Sequence[int], warmup: Sequence[int | float], decay: Decay = "none", minimum: float = 0.0
) -> Callable[[int], float]:
    """Make the learning-rate factor of a training over chunks: in each it rises from 0, then falls to a minimum.

    Optimizer step s of a chunk of n steps (s from 0) with w steps of warm-up has factor s / w if s < w. After that,
    with r = (s − w) / (n − w): minimum + (1 − minimum) · (1 − r) if `decay` is `linear`, minimum + (1 − minimum) ·
    (1 + cos πr) / 2 if it is `cosine`, 1 if it is `none`.

    Args:
        steps_per_chunk: Optimizer steps of each chunk.
        warmup: Steps of warm-up of each chunk: a whole number, or a share of the chunk's steps in [0, 1), rounded up.
            The last one holds for all further chunks.
        decay: How the factor falls.
        minimum: Factor at the end of a chunk, in [0, 1].

    Returns:
        A function from the number of optimizer steps done to the factor of the next one; after the end, the last one.

    Example:
        >>> factor = learning_rate_factors([4, 8], warmup=[0.5])
        >>> [factor(step) for step in range(12)]
        [0.0, 0.5, 1.0, 1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]
        >>> factor = learning_rate_factors([6], warmup=[1], decay="linear", minimum=0.5)
        >>> [round(factor(step), 2) for step in range(8)]
        [0.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5]
    """
    starts = [0, *accumulate(steps_per_chunk[:-1])]

    def factor(step: int) -> float:
        chunk = max(index for index, start in enumerate(starts) if start <= step)
        steps, wanted = steps_per_chunk[chunk], warmup[min(chunk, len(warmup) - 1)]
        length = ceil(wanted * steps) if isinstance(wanted, float) else wanted
        within = step - starts[chunk]
        if within < length:
            return within / length
        rest = min(1.0, (within - length) / max(1, steps - length))
        falling = {"none": 1.0, "linear": 1 - rest, "cosine": (1 + cos(pi * rest)) / 2}[decay]
        return 1.0 if decay == "none" else minimum + (1 - minimum) * falling

    return factor


def steps_per_chunk(trainer: Trainer) -> list[int]:
    """Return the optimizer steps of each chunk of a Trainer's data; of data without chunks, all its steps.

    Args:
        trainer: The Trainer, about to fit.

    Raises:
        ValueError: If its training has no end.
    """
    if offers(trainer.datamodule, HasStepsPerChunk):
        return trainer.datamodule.steps_per_chunk()
    steps = trainer.estimated_stepping_batches
    if not isfinite(steps):
        raise ValueError("`warmup` is a share of the training, which needs max_epochs or max_steps; or use warmup=0")
    return [int(steps)]
