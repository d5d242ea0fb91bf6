"""Intervals and summaries of runs: paired differences of seeds, and several tasks together."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

ROUNDING = 1e-12  # differences up to this count as 0


def difference(
    values: Mapping[int, float], reference: Mapping[int, float], level: float = 0.05
) -> tuple[float, float, float]:
    """Return the mean paired difference to a reference and its Student-t interval; NaN with fewer than two pairs.

    Runs with one seed share data and initial weights, so that their difference varies less than each. The interval is
    mean ± t·s/√n, for n differences with standard deviation s (n - 1), where t is the 1 - `level` / 2 quantile for n -
    1 degrees of freedom: a 95 % interval by default.

    Example:
        >>> [round(number, 3) for number in difference({0: 1.1, 1: 2.2, 2: 3.3}, {0: 1.0, 1: 2.0, 2: 3.0})]
        [0.2, -0.048, 0.448]
    """
    pairs = np.array([(values[seed], reference[seed]) for seed in values if seed in reference])
    if len(pairs) < 2 or not np.isfinite(pairs).all():
        return float("nan"), float("nan"), float("nan")
    each = pairs[:, 0] - pairs[:, 1]
    half = half_width(each.std(ddof=1), len(each), level)
    return float(each.mean()), float(each.mean() - half), float(each.mean() + half)


def spread_of(differences: np.ndarray) -> float:
    """Return the standard deviation (n - 1) of differences; 0 if they are equal up to the rounding of float32 logs."""
    spread = float(differences.std(ddof=1))
    return 0.0 if spread <= max(1e-5 * abs(differences.mean()), ROUNDING) else spread


def p_value(differences: np.ndarray) -> float:
    """Return the two-sided p-value of a paired t-test, of at least two differences, shape `(seeds,)`.

    Equal differences, as with a coarse metric, have no spread: the p-value is then that of the sign test, 2^(1 - n), or
    1 if they are 0.

    Example:
        >>> round(p_value(np.array([0.1, 0.2, 0.3])), 4), p_value(np.array([0.1, 0.1, 0.1]))
        (0.0742, 0.25)
    """
    from scipy.special import stdtr

    middle, spread, seeds = abs(differences.mean()), spread_of(differences), len(differences)
    if spread == 0:
        return 2.0 ** (1 - seeds) if middle > ROUNDING else 1.0
    return float(2 * stdtr(seeds - 1, -middle / spread * np.sqrt(seeds)))


def holm_levels(p_values: Sequence[float], level: float = 0.05) -> list[float]:
    """Return the level at which Holm's procedure tests each hypothesis; it rejects if p is at most that level.

    The smallest p-value is tested at `level` / m, the next at `level` / (m - 1), and so on, up to the first that is not
    rejected. The probability that any true hypothesis is rejected is at most `level` (Holm, 1979).

    Example:
        >>> holm_levels([0.02, 0.5, 0.01], 0.06)
        [0.03, 0.06, 0.02]
    """
    levels, current, open_ = [0.0] * len(p_values), 0.0, True
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        current = level / (len(p_values) - rank) if open_ else current
        open_ = open_ and p_values[index] <= current
        levels[index] = current
    return levels


def half_width(spread: float, seeds: int, level: float = 0.05) -> float:
    """Return the half width of the interval of `difference` for differences with this standard deviation.

    Example:
        >>> round(half_width(spread=1.0, seeds=7), 3)
        0.925
    """
    from scipy.special import stdtrit  # imported here: it takes 0.15 s

    return float(stdtrit(seeds - 1, 1 - level / 2) * spread / np.sqrt(seeds))


def upper_spread(spread: float, seeds: int, confidence: float = 0.7) -> float:
    """Return the upper confidence limit of the standard deviation of normal values, of an estimate from some seeds.

    It is s·√((n - 1) / q), where q is the 1 - `confidence` quantile of the chi-squared distribution with n - 1 degrees
    of freedom. Plans made with s alone fail in half of the cases.

    Example:
        >>> round(upper_spread(1.0, 3), 2), round(upper_spread(1.0, 30), 2)
        (1.67, 1.09)
    """
    from scipy.special import chdtri

    return float(spread * np.sqrt((seeds - 1) / chdtri(seeds - 1, confidence)))


def seeds_for(spread: float, difference: float, level: float = 0.05) -> float:
    """Return the number of seeds for an interval of at most this half width, see `difference`; Inf above 10,000.

    `spread` is the standard deviation of paired differences.

    Example:
        >>> seeds_for(spread=1.0, difference=1.0)
        7
    """
    seeds = range(2, 10_001)
    found = bisect_left(seeds, True, key=lambda count: half_width(spread, count, level) <= difference)
    return seeds[found] if found < len(seeds) else float("inf")


# several tasks with a few runs each: Agarwal et al., NeurIPS 2021, and their package rliable


def resampled(scores: np.ndarray, resamples: int, seed: int = 0) -> np.ndarray:
    """Draw runs with replacement for each task: a stratified bootstrap, `(resamples, runs, tasks, ...)`."""
    runs, tasks = scores.shape[:2]
    drawn = np.random.default_rng(seed).integers(0, runs, (resamples, runs, tasks))
    return scores[drawn, np.arange(tasks)]


def percentiles(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two ends of a 95 % bootstrap interval."""
    low, high = np.quantile(values, [0.025, 0.975], axis=0, method="inverted_cdf")
    return low, high


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of all runs of all tasks, `(..., runs, tasks)`.

    A quarter, rounded down, is left out at each end.

    Example:
        >>> float(interquartile_mean(np.array([[0.0, 1.0], [3.0, 100.0]])))
        2.0
    """
    every = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    out = every.shape[-1] // 4
    return np.asarray(every[..., out : every.shape[-1] - out].mean(axis=-1))


def probability_of_improvement(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the probability that a run is better than a run of another method on the same task, mean over the tasks.

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
