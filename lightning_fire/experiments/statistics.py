"""Intervals and summaries of runs: paired differences of seeds, and several tasks together."""

from collections.abc import Mapping

import numpy as np


def difference(values: Mapping[int, float], reference: Mapping[int, float]) -> tuple[float, float, float]:
    """Return the mean paired difference to a reference, and its 95 % Student-t interval; NaN of fewer than two pairs.

    Runs of one seed share data and initial weights: their difference varies less than they do. The interval is
    mean ± t·s/√n, of n differences with standard deviation s (n - 1), and t the 97.5 % quantile of n - 1 degrees of
    freedom.

    Example:
        >>> [round(number, 3) for number in difference({0: 1.1, 1: 2.2, 2: 3.3}, {0: 1.0, 1: 2.0, 2: 3.0})]
        [0.2, -0.048, 0.448]
    """
    from scipy.special import stdtrit  # 0.15 s that other commands need not wait for

    pairs = np.array([(values[seed], reference[seed]) for seed in values if seed in reference])
    if len(pairs) < 2 or not np.isfinite(pairs).all():
        return float("nan"), float("nan"), float("nan")
    each = pairs[:, 0] - pairs[:, 1]
    half = stdtrit(len(each) - 1, 0.975) * each.std(ddof=1) / np.sqrt(len(each))
    return float(each.mean()), float(each.mean() - half), float(each.mean() + half)


# several tasks with a few runs each: Agarwal et al., NeurIPS 2021, and their package rliable


def resampled(scores: np.ndarray, resamples: int, seed: int = 0) -> np.ndarray:
    """Draw runs with replacement, of each task by itself: a stratified bootstrap, `(resamples, runs, tasks, ...)`."""
    runs, tasks = scores.shape[:2]
    drawn = np.random.default_rng(seed).integers(0, runs, (resamples, runs, tasks))
    return scores[drawn, np.arange(tasks)]


def percentiles(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two ends of a 95 % bootstrap interval."""
    low, high = np.quantile(values, [0.025, 0.975], axis=0, method="inverted_cdf")
    return low, high


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of all runs of all tasks, `(..., runs, tasks)`.

    A quarter of them, rounded down, is left out at each end.

    Example:
        >>> float(interquartile_mean(np.array([[0.0, 1.0], [3.0, 100.0]])))
        2.0
    """
    every = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    out = every.shape[-1] // 4
    return np.asarray(every[..., out : every.shape[-1] - out].mean(axis=-1))


def probability_of_improvement(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the probability that a run is better than one of another method on the same task, mean over the tasks.

    Equal scores count half (the statistic of Mann and Whitney).

    Example:
        >>> float(probability_of_improvement(np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])))
        0.625
    """
    of_tasks = (  # one after another: all pairs of all tasks may not fit into memory
        0.5 + 0.5 * np.sign(scores[..., :, None, task] - others[..., None, :, task]).mean(axis=(-2, -1))
        for task in range(scores.shape[-1])
    )
    return np.asarray(np.mean(list(of_tasks), axis=0))
