"""Constructed training curves: three chunks, one event."""

import numpy as np


def series(*pairs):
    return np.array([step for step, _ in pairs]), np.array([value for _, value in pairs])


def history(starts=(0, 20), **curves):
    """Return the curves of a run whose chunks begin at some steps; of a key that is None, none."""
    known = {
        "plasticity/chunk": series(*((start, chunk) for chunk, start in enumerate(starts))),
        "val/accuracy": series((9, 0.4), (19, 0.5), (39, 0.6), (59, 0.8)),
        "plasticity/dfi_normalized": series((9, 2.0), (19, 4.0), (39, 1.0), (59, 2.0)),
        "val/accuracy_at_new_data": series((20, 0.3)),
        "fire/dfi_normalized_before": series((20, 3.0)),
        "fire/dfi_normalized_after": series((20, 0.5)),
        "fire.raw/dfi_before": series((20, 9.0)),
        "fire.raw/dfi_after": series((20, 11.0)),
        "fire/sfe_normalized": series((20, 0.7)),
        "fire/lambda_max_before": series((20, 20.0)),
        "fire/lambda_max_after": series((20, 5.0)),
    }
    given = {key.replace("__", "/"): curve for key, curve in curves.items()}
    return {key: curve for key, curve in {**known, **given}.items() if curve is not None}


HISTORY = history()
NO_EVENTS = dict.fromkeys(key.replace("/", "__") for key in HISTORY if key.startswith("fire"))
IDLE = history(**NO_EVENTS)  # of a method without events, as vanilla


def named(methods, start=""):
    """Turn curves by method and seed into curves by start, method and seed."""
    return {(start, method, seed): run for method, runs in methods.items() for seed, run in runs.items()}
