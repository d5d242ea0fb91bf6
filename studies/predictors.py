"""How well values before events predict their gains: rank correlations, yes or no, and thresholds learned elsewhere.

Events are rows with `setting`, `rate`, `seed`, `gain` and a column for each value. Those of one run are not independent
of each other, so intervals are bootstraps over whole runs, of each setting and rate by itself.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from lightning_fire.experiments.statistics import percentiles

Measure = Callable[[pd.DataFrame], pd.Series]  # from events to a number for each value


def rank_correlations(events: pd.DataFrame, names: Sequence[str], within: Sequence[str] = ()) -> pd.Series:
    """Return Spearman's rank correlation of values with the gain.

    Args:
        events: The events.
        names: Columns of the values. Where one is NaN, the event does not count for it.
        within: Columns: the ranks are fractions of those of the events that agree in them, minus their mean, so that
            only differences within a group count.

    Returns:
        By name; NaN of a value that is constant.
    """
    columns = events[[*names, "gain"]]
    ranks = columns.rank()
    if within:
        keys = [events[name] for name in within]
        ranks = columns.groupby(keys).rank(pct=True)
        ranks -= ranks.groupby(keys).transform("mean")
    values = ranks[list(names)].to_numpy()
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):  # of what is constant, or nowhere known

        def centred(numbers: np.ndarray) -> np.ndarray:
            return np.where(known, numbers - np.where(known, numbers, 0).sum(0) / known.sum(0), 0)

        values, gains = centred(values), centred(ranks[["gain"]].to_numpy())
        found = (values * gains).sum(0) / np.sqrt((values**2).sum(0) * (gains**2).sum(0))
    return pd.Series(found, list(names))


def areas(events: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Return the area under the ROC curve of values for the question whether the event gains.

    It is the probability that the value of an event that gains is above that of one that does not, ties half; 0.5 by
    chance. NaN if all events gain, or none.
    """
    gained = events["gain"] > 0
    count, ranks = int(gained.sum()), events[list(names)].rank()
    pairs = count * (len(events) - count)
    known = ranks.notna().all()
    return ((ranks[gained].sum() - count * (count + 1) / 2) / (pairs or np.nan)).where(known)


def threshold(values: np.ndarray, gained: np.ndarray) -> float:
    """Return the threshold at which "gains, as the value is at least that" is right most often; the lowest of several.

    It is one of the values, or Inf: never.
    """
    order = np.argsort(values, kind="stable")
    values, gained = values[order], gained[order]
    # at the i-th value: those below that do not gain, and those from it on that do
    right = np.concatenate([[0], np.cumsum(~gained)]) + np.concatenate([np.cumsum(gained[::-1])[::-1], [0]])
    first = np.concatenate([[True], values[1:] != values[:-1], [True]])  # equal values are on one side
    return float(np.append(values, np.inf)[np.where(first, right, -1).argmax()])


def right_elsewhere(events: pd.DataFrame, names: Sequence[str], setting: str) -> Measure:
    """Return a function from events of a setting to the fraction for which thresholds of the other settings are right.

    Args:
        events: Of all settings.
        names: Columns of the values, each with a threshold of its own.
        setting: The one that is left out when thresholds are chosen.
    """
    others = events[events["setting"] != setting]
    chosen = {}
    for name in names:
        known = others[others[name].notna()]
        chosen[name] = threshold(known[name].to_numpy(), (known["gain"] > 0).to_numpy())

    def right(own: pd.DataFrame) -> pd.Series:
        gained = own["gain"] > 0
        return pd.Series({name: ((own[name] >= chosen[name]) == gained)[own[name].notna()].mean() for name in names})

    return right


def resampled(events: pd.DataFrame, count: int, seed: int = 0) -> Iterator[pd.DataFrame]:
    """Yield samples of whole runs, drawn with replacement, as many as there are of each setting and rate."""
    generator = np.random.default_rng(seed)
    strata: dict[tuple[str, float], list[np.ndarray]] = {}
    for (setting, rate, _), positions in events.groupby(["setting", "rate", "seed"]).indices.items():
        strata.setdefault((setting, rate), []).append(positions)
    for _ in range(count):
        drawn = [runs[i] for runs in strata.values() for i in generator.integers(0, len(runs), len(runs))]
        yield events.iloc[np.concatenate(drawn)].reset_index(drop=True)


def intervals(events: pd.DataFrame, measure: Measure, count: int = 1000) -> pd.DataFrame:
    """Return a measure of events with 95 % bootstrap intervals.

    Args:
        events: The events.
        measure: Function from events to a number for each value.
        count: Number of samples of the bootstrap.

    Returns:
        A row for each value, with `estimate`, `low` and `high`; and with `behind`, `behind_low` and `behind_high`: how
        much it is below the value of the highest estimate, in the same samples.
    """
    estimate = measure(events)
    drawn = pd.DataFrame([measure(sample) for sample in resampled(events, count)])
    found = {"estimate": estimate, **_ends(drawn, "")}
    if estimate.notna().any():
        best = estimate.idxmax()
        found |= {"behind": estimate[best] - estimate, **_ends(-drawn.sub(drawn[best], axis=0), "behind_")}
    return pd.DataFrame(found)


def _ends(drawn: pd.DataFrame, prefix: str) -> dict[str, pd.Series]:
    ends = {name: percentiles(own.dropna()) if own.notna().any() else (np.nan, np.nan) for name, own in drawn.items()}
    return {
        f"{prefix}{end}": pd.Series({name: own[i] for name, own in ends.items()})
        for i, end in enumerate(("low", "high"))
    }
