"""Direction of a metric: whether more or less of it is better."""

import re
from typing import Any

_LESS = {
    *("loss", "losses", "error", "errors", "err", "mae", "mse", "rmse", "rmsle", "mape", "smape", "mase"),
    *("perplexity", "ppl", "nll", "bpb", "bpc", "wer", "cer", "brier", "crps", "regret", "latency"),
}


def mode_of(metric: str, mode: Any, option: str) -> str:
    """Return the direction of a metric: `mode`, or `"max"` if there is none and its name does not suggest the opposite.

    Args:
        metric: Name of the metric, such as `val/mae`.
        mode: `"max"` if larger is better, `"min"` if smaller is; None: not given.
        option: How to give it, such as `--mode {}`.

    Raises:
        ValueError: If the mode is another one, or is not given and a word of the name is that of an error or a loss.

    Example:
        >>> mode_of("val/accuracy", None, "--mode {}"), mode_of("val/MAE", "min", "--mode {}")
        ('max', 'min')
    """
    if mode not in ("max", "min", None):
        raise ValueError(f"`mode` must be 'max' or 'min', got {mode!r}")
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", metric)  # also of camelCase
    if mode is None and _LESS & {word.lower() for word in words}:
        raise ValueError(
            f"the name of {metric} suggests that less is better: give {option.format('min')}, or"
            f" {option.format('max')} if more is better"
        )
    return mode or "max"
