"""Reset of other callbacks whose state belongs to the network before an event, such as a best score."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import Trainer

from lightning_fire._lightning import undeclared
from lightning_fire._private import is_a
from lightning_fire.methods.base.averages import averages_in


def reset_other_callbacks(trainer: Trainer, new_data: bool) -> list[str]:
    """Reset state of other callbacks that refers to the old weights; return messages.

    `EarlyStopping` forgets its best score. If the event came with new data, `ModelCheckpoint` keeps its best checkpoint
    on disk and starts a new search. Averages of weights are restarted by the change itself.
    """
    done = []
    for other in undeclared(trainer).callbacks:
        name = type(other).__name__
        if is_a(other, "EarlyStopping"):
            other.wait_count = 0
            other.best_score = torch.tensor(math.inf if other.monitor_op is torch.lt else -math.inf)
            done.append(f"{name} (best {other.monitor})")
        elif is_a(other, "ModelCheckpoint") and other.monitor is not None and new_data:
            other.best_k_models.clear()
            other.kth_best_model_path, other.best_model_path, other.best_model_score = "", "", None
            other.kth_value = torch.tensor(math.inf if other.mode == "min" else -math.inf)
            done.append(f"{name} (best {other.monitor}; its checkpoint stays on disk)")
        elif averages_in([other]):
            done.append(f"{name} (average)")
    return done


@contextmanager
def same_callbacks_after_error(trainer: Trainer) -> Iterator[None]:
    """Context manager: after an error, restore the state that `reset_other_callbacks` resets."""
    others = [each for each in undeclared(trainer).callbacks if is_a(each, "EarlyStopping", "ModelCheckpoint")]
    former = [(each, dict(vars(each)), dict(getattr(each, "best_k_models", {}))) for each in others]
    try:
        yield
    except Exception:
        for each, attributes, best in former:
            vars(each).update(attributes)
            if best:
                each.best_k_models.update(best)
        raise
