"""Statistics over several tasks with a few runs each (Agarwal et al., NeurIPS 2021, and their package rliable)."""

import numpy as np


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
    """Return the mean of the middle half of all runs of all tasks together.

    A quarter of them, rounded down, is left out at each end.

    Example:
        >>> float(interquartile_mean(np.array([[0.0, 1.0], [3.0, 100.0]])))
        2.0
    """
    every = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    out = every.shape[-1] // 4
    return every[..., out : every.shape[-1] - out].mean(axis=-1)


def median_of_tasks(scores: np.ndarray) -> np.ndarray:
    """Return the median over the tasks of the mean of their runs."""
    return np.median(scores.mean(axis=-2), axis=-1)


def mean_of_all(scores: np.ndarray) -> np.ndarray:
    """Return the mean over all runs of all tasks."""
    return scores.mean(axis=(-2, -1))


def probability_of_improvement(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how probable it is that a run is better than one of another method on the same task, mean over the tasks.

    Equal scores count half (the statistic of Mann and Whitney).

    Example:
        >>> float(probability_of_improvement(np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])))
        0.625
    """
    of_tasks = (  # one after another: all pairs of all tasks may not fit into memory
        0.5 + 0.5 * np.sign(scores[..., :, None, task] - others[..., None, :, task]).mean(axis=(-2, -1))
        for task in range(scores.shape[-1])
    )
    return np.mean(list(of_tasks), axis=0)


def share_above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of all runs of all tasks whose score is above each threshold: a performance profile."""
    return np.stack([(scores > threshold).mean(axis=(-2, -1)) for threshold in thresholds], axis=-1)
