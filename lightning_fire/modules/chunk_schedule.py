"""Learning rates that restart with each chunk of data."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil, cos, pi
from typing import Any, Literal

from torch.optim.lr_scheduler import LambdaLR

Decay = Literal["linear", "cosine", "none", "infinite"]


class ChunkSchedule(LambdaLR):
    """`LambdaLR` with the right learning rate at once after a resume.

    PyTorch's `LambdaLR` starts with the rate in the checkpoint and follows its function only from the second step on,
    which is wrong if the checkpoint is from a training with other chunks.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        rates = zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True)
        for group, base, factor in rates:
            group["lr"] = base * factor(self.last_epoch)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


def learning_rate_factors(
    steps_per_chunk: Sequence[int], warmup: Sequence[int | float], decay: Decay = "none", minimum: float = 0.0
) -> Callable[[int], float]:
    """Return a function from the number of optimizer steps done to the learning-rate factor of the next one.

    Step s of a chunk of n steps (s from 0) with w steps of warm-up has factor s / w if s < w. After that, with
    r = (s − w) / (n − w): minimum + (1 − minimum) · (1 − r) if `decay` is `linear`, minimum + (1 − minimum) ·
    (1 + cos πr) / 2 if it is `cosine`, 1 if it is `none`. `infinite` is `cosine` in the first chunk and constant at the
    minimum in all others, without a warm-up: an infinite learning rate schedule (Ibrahim et al., TMLR 2024) up to its
    final annealing.

    `warmup` gives w for each chunk: a number of steps, or a fraction of the chunk's steps in [0, 1), rounded up. The
    last one applies to all further chunks.

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
        chunk = bisect_right(starts, step) - 1
        if decay == "infinite" and chunk:
            return minimum
        steps, length = steps_per_chunk[chunk], warmup[min(chunk, len(warmup) - 1)]
        if isinstance(length, float):
            length = ceil(length * steps)
        within = step - starts[chunk]
        if within < length:
            return within / length
        if decay == "none":
            return 1.0
        rest = min(1.0, (within - length) / max(1, steps - length))
        falling = 1 - rest if decay == "linear" else (1 + cos(pi * rest)) / 2
        return minimum + (1 - minimum) * falling

    return factor
