"""The history of a training by hand: three chunks, one event."""

import numpy as np

from lightning_fire.experiments.history import History


def series(*pairs):
    return np.array([step for step, _ in pairs]), np.array([value for _, value in pairs])


HISTORY = History(
    accuracy=series((9, 0.4), (19, 0.5), (39, 0.6), (59, 0.8)),
    dfi=series((9, 2.0), (19, 4.0), (39, 1.0), (59, 2.0)),
    starts=np.array([0, 20, 60]),
    at_new_data=np.array([0.3]),
    dfi_before=np.array([3.0]),
    dfi_after=np.array([0.5]),
    sfe=np.array([0.7]),
    lambda_max_before=np.array([20.0]),
    lambda_max_after=np.array([5.0]),
)
