"""The decision at the end of a comparison, from paired differences of its seeds, in one paragraph."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np

from lightning_fire.experiments.statistics import (
    ROUNDING,
    difference,
    half_width,
    holm_levels,
    p_value,
    seeds_for,
    spread_of,
    upper_spread,
)
from lightning_fire.experiments.tables import mean, number, when_reached
from lightning_fire.recipe.recipe import VANILLA

Key = TypeVar("Key", bound=Hashable)

FROM_SCRATCH = ("scratch", "full_reset")  # methods that train from scratch; the first that was compared counts
FEASIBLE = 30  # largest number of further seeds to suggest
LEVEL = 0.05  # largest probability that a paragraph on equal methods states any difference


@dataclass(frozen=True)
class Difference:
    """Difference between two methods over their common seeds.

    Attributes:
        gain: Mean paired difference in the metric; negative if the first is worse.
        low: Lower end of its interval at this pair's level of Holm's procedure; `gain` if all differences are equal.
        high: Upper end.
        spread: Standard deviation of the differences (n - 1).
        seeds: Number of common seeds, at least 2.
        level: The level of this pair.
        decided: Whether the difference is significant by Holm's procedure over all pairs.
    """

    gain: float
    low: float
    high: float
    spread: float
    seeds: int
    level: float
    decided: bool

    @property
    def varies(self) -> bool:
        """Whether the two methods differ at all."""
        return bool(self.spread or self.gain)

    def reversed(self) -> "Difference":
        """Return the difference with the methods exchanged."""
        return replace(self, gain=-self.gain, low=-self.high, high=-self.low)

    def more_seeds(self, worth: float) -> float:
        """Return the number of further seeds that would show a difference or rule out `worth`; Inf above 10,000.

        At this gain it takes an interval whose half width is below the gain, or below its distance to `worth`.
        """
        half = max(abs(self.gain), worth - abs(self.gain))
        return max(seeds_for(upper_spread(self.spread, self.seeds), half, self.level) - self.seeds, 1)

    def ruled_out_by(self, more: int) -> float:
        """Return the smallest difference that so many further seeds would rule out, if they show none."""
        spread = upper_spread(self.spread, self.seeds)
        return abs(self.gain) + half_width(spread, self.seeds + more, self.level)

    def of(self, metric: str = "") -> str:
        """Format it, as "0.019 MAE (0.009 to 0.030)"."""
        if not self.varies:
            return "equal with every seed"
        half = (self.high - self.low) / 2 or self.gain / 10
        middle, low, high = (_rounded(end, half) for end in (self.gain, self.low, self.high))
        spread = f"({low} to {high})" if self.spread else "with every seed"
        return " ".join(filter(None, (middle, metric, spread)))


@dataclass(frozen=True)
class Cost:
    """Cost of a method, if logged.

    Attributes:
        until: Epochs or steps until it reaches the final value of the method that continues, by run; Inf: never.
        seconds: Time of all its events in a run, mean over the runs; NaN: not logged.
    """

    until: Sequence[float] = ()
    seconds: float = float("nan")


@dataclass(frozen=True)
class Decision:
    """Decision of a comparison.

    Attributes:
        text: The decision as one paragraph.
        choice: The first of `best`; continuing, if that gains less than the given `worth`; None: unknown.
        leading: Method to use if you must decide now: `choice`; if nothing is shown to be better than continuing, the
            method with the best mean, provided it gains at least `worth`.
        best: The best method, or all methods that no other is shown to be better than. Order: continuing, then those
            shown to be better than both continuing and training from scratch, then the cheapest.
        better: Methods that are better than both continuing and training from scratch.
        warm_start: Difference between continuing and training from scratch; None: unknown.
        worth: The smallest difference of the metric that matters; None: unknown.
        more_seeds: Number of further seeds that would decide a difference of `worth` between the `best`, in most
            cases; None: nothing is open, or unknown, e.g. if differences are equal with every seed.
    """

    text: str
    choice: str | None
    leading: str | None
    best: Sequence[str]
    better: Sequence[str]
    warm_start: Difference | None
    worth: float | None
    more_seeds: int | None


def decision_of(
    values: Mapping[str, Mapping[int, float]],
    metric: str,
    mode: str = "max",
    continued: str = VANILLA,
    worth: float | None = None,
    idle: Collection[str] = (),
    failed: Mapping[str, Sequence[int]] | None = None,
    costs: Mapping[str, Cost] | None = None,
    unit: str = "epochs",
) -> Decision:
    """Decide between continuing, training from scratch and the other methods of a comparison.

    A difference is stated only if paired t-tests show it, adjusted by Holm's procedure for all pairs of methods: for
    equal methods, at most 1 paragraph in 20 states any.

    Args:
        values: The compared metric of each run, by method and seed.
        metric: Its name in the text.
        mode: `"max"`: more is better; `"min"`: less is.
        continued: The method that continues from earlier weights as they are.
        worth: Smallest difference that matters. Default: a tenth of what the method with the best mean gains over
            continuing, but at least half the standard deviation between seeds (median over the methods).
        idle: Methods that never acted, whose runs are those of vanilla.
        failed: Seeds whose run failed, by method.
        costs: What each method costs.
        unit: Unit of `Cost.until`.
    """
    failed, costs = failed or {}, costs or {}
    gains, unranked = _rankable(values, metric, 1 if mode == "max" else -1, idle, failed)
    pairs = paired_differences(gains)
    scratch = next((m for m in FROM_SCRATCH if m in {**values, **failed} and m != continued), " or ".join(FROM_SCRATCH))
    beaten = {pair for pair, found in pairs.items() if found.decided and found.gain > 0}
    by_mean = _by_mean(gains)
    first_gain = pairs.get((next(iter(by_mean), ""), continued))
    least = worth or 0.0
    worth = _worth(gains, first_gain) if worth is None else worth
    worse = {method for _, method in beaten}
    level = [method for method in by_mean if method not in worse] or by_mean[:1] if pairs else []
    shown = {m: sum((m, base) in beaten for base in (continued, scratch)) for m in gains}
    best = sorted(level, key=lambda m: (m != continued, -shown[m], *_expense(costs.get(m, Cost()))))
    others = [method for method in gains if method not in (continued, scratch)]
    both = continued in gains and scratch in gains
    better = [m for m in others if both and (m, continued) in beaten and (m, scratch) in beaten]
    warm, choice = pairs.get((continued, scratch)), best[0] if best else None
    if choice and (choice, continued) in pairs and pairs[choice, continued].gain < least:
        choice = continued
    open_now = choice == continued and len(best) > 1 and first_gain and first_gain.gain >= (worth or np.inf)
    leading = by_mean[0] if open_now else choice
    undecided = [pairs[by_mean[0], m] for m in level[1:] if (by_mean[0], m) in pairs and pairs[by_mean[0], m].varies]
    final = bool(best) and best[0] != choice  # what gains too little is not used, whatever more seeds show
    if final or not all(pair.spread for pair in undecided):  # more seeds of one value decide nothing
        undecided = []
    open_ = [pair for pair in undecided if max(pair.high, -pair.low) > worth] if worth else []
    more = max((pair.more_seeds(worth) for pair in open_), default=None) if worth else None

    runner_up = continued
    if choice == continued:
        runner_up = next((m for m in (leading, *best[:1], *by_mean) if m and m != continued), scratch)
    gain = pairs.get((runner_up if choice == continued else choice or "", continued))
    too_small = _rounded(least, least) if final else ""
    sentences = [
        _headline(choice, runner_up, leading != choice, len(best) == 1, gain, metric, continued, scratch, too_small)
    ]
    if warm is None or {choice, runner_up} != {continued, scratch}:
        sentences.append(_warm_start(continued, scratch, warm, metric, unranked))
    if choice and best == [choice]:
        than = [
            m for m in dict.fromkeys([continued, scratch, *by_mean[1:2]]) if m != runner_up and (choice, m) in pairs
        ]
        if than:
            by = _listed([f"{m} by {pairs[choice, m].of()}" for m in than])
            sentences.append(f"Best is {choice}: better than {by}.")
    elif len(best) > 1:
        first = "; named first: the cheapest" if costs else ""
        if len({shown[m] for m in best}) > 1:
            bases = [base for base in (continued, scratch) if base in gains and base not in best]
            first = f"; named first: those shown to be better than {' or '.join(bases)}"
        if continued in best:  # what leads is that with the best mean
            first = "; the best mean is named first"
        sentences.append(f"{_listed(level if continued in best else best)} cannot be distinguished{first}.")
        if worth and undecided:
            sentences.append(_what_is_open(open_, worth, least > 0))
    elif not best:
        sentences.append(_no_interval(gains))
    if pairs and both and others:
        found = _listed(better) if better else "none is shown to be"
        sentences.append(f"Better than both {continued} and {scratch}: {found}.")
    sentences += _costs([m for m in dict.fromkeys([*best, *better]) if m in costs], continued, costs, metric, unit)
    sentences += [f"Not ranked: {reason}." for m, reason in unranked.items() if m not in (continued, scratch)]
    sentences += [f"{m} failed with {_seeds(seeds)}." for m, seeds in failed.items() if m not in unranked]
    if len(pairs) > 2:
        sentences.append(
            f"These intervals hold for all {len(pairs) // 2} pairs of methods together (paired t-tests, Holm);"
            " those of the table are each for one pair."
        )
    sentences.append(f"{metric}: {'more' if mode == 'max' else 'less'} is better.")
    whole = None if more is None or not np.isfinite(more) else int(more)
    return Decision(" ".join(sentences), choice, leading, best, better, warm, worth, whole)


def paired_differences(gains: Mapping[str, Mapping[int, float]]) -> dict[tuple[str, str], Difference]:
    """Return the difference of each pair of methods with two common seeds, tested together over all pairs.

    Args:
        gains: A finite value of each run, by method and seed; more is better.
    """
    found = decided_together({(one, other): (gains[one], gains[other]) for one, other in combinations(gains, 2)})
    return {key: one for (a, b), of in found.items() for key, one in (((a, b), of), ((b, a), of.reversed()))}


def decided_together(pairs: Mapping[Key, tuple[Mapping[int, float], Mapping[int, float]]]) -> dict[Key, Difference]:
    """Return the difference of each pair of samples, tested together over all pairs (Holm).

    Args:
        pairs: Two samples with a finite value per seed, by any key. Pairs with fewer than two common seeds are left
            out.
    """
    each = {}
    for key, (first, second) in pairs.items():
        both = [seed for seed in first if seed in second]
        if len(both) > 1:
            each[key] = np.array([first[seed] - second[seed] for seed in both])
    p_values = [p_value(of) for of in each.values()]
    found = {}
    for (key, of), p, level in zip(each.items(), p_values, holm_levels(p_values, LEVEL), strict=True):
        spread = spread_of(of)
        gain, *ends = difference(*pairs[key], level)
        gain = gain if spread or abs(gain) > ROUNDING else 0.0
        low, high = ends if spread else (gain, gain)
        found[key] = Difference(gain, low, high, spread, len(of), level, p <= level)
    return found


def _rankable(
    values: Mapping[str, Mapping[int, float]],
    metric: str,
    sign: int,
    idle: Collection[str],
    failed: Mapping[str, Sequence[int]],
) -> tuple[dict[str, dict[int, float]], dict[str, str]]:
    """Return the gains of the methods that can be ranked, and reasons for the others."""
    gains = {}
    unranked = {m: f"{m} failed with {_seeds(seeds)}" for m, seeds in failed.items() if not values.get(m)}
    for method, of in values.items():
        non_finite = [seed for seed, value in of.items() if not np.isfinite(value)]
        if method in idle:
            unranked[method] = f"{method} never acted: its curves equal those of {VANILLA} bit for bit"
        elif non_finite:
            unranked[method] = f"{method} has no finite {metric} with {_seeds(non_finite)}"
        elif of:
            gains[method] = {seed: sign * value for seed, value in of.items()}
    return gains, unranked


def _by_mean(gains: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Sort the methods by their mean over the common seeds, best first."""
    common = set.intersection(*map(set, gains.values())) if gains else set()
    means = {m: mean(value for seed, value in of.items() if seed in common or not common) for m, of in gains.items()}
    return sorted(gains, key=lambda method: -means[method])


def _expense(cost: Cost) -> tuple[float, float]:
    """Return a key that orders methods by cost: by the time to the final value of continuing, then by their events."""
    until = mean(cost.until)
    return np.inf if np.isnan(until) else until, np.inf if np.isnan(cost.seconds) else cost.seconds


def _worth(gains: Mapping[str, Mapping[int, float]], best: Difference | None) -> float | None:
    """Return the smallest difference that matters, see `decision_of`; None if no method has two seeds."""
    spreads = [spread_of(np.array([*of.values()])) for of in gains.values() if len(of) > 1]
    return max(float(np.median(spreads)) / 2, best.gain / 10 if best else 0.0) if spreads else None


def _headline(
    choice: str | None,
    runner_up: str,
    is_leading: bool,
    alone: bool,
    gain: Difference | None,
    metric: str,
    continued: str,
    scratch: str,
    least: str,
) -> str:
    """State the decision and its gain over continuing; if it is to continue, the gain or loss of the best other method.

    Args:
        choice: The method that is chosen.
        runner_up: The method to compare with, if the choice is to continue.
        is_leading: Whether the runner-up is the better bet if you must decide now.
        alone: Whether the choice is shown to be the best.
        gain: Gain of the choice over continuing; of the runner-up, if the choice is to continue.
        metric: Name of the metric.
        continued: The method that continues.
        scratch: The method that trains from scratch.
        least: The smallest gain that matters, if it settled the decision.
    """
    if choice is None:
        return "Decision: open."
    other = f"training from scratch ({scratch})" if runner_up == scratch else runner_up
    if choice != continued:
        choose = f"train from scratch ({scratch})" if choice == scratch else f"use {choice}"
        return f"Decision: {choose}{f': it gains {gain.of(metric)} over continuing ({continued})' if gain else ''}."
    if is_leading and gain:
        now = f"train from scratch ({scratch})" if runner_up == scratch else f"use {runner_up}"
        return (
            f"Decision: open; if you must decide now, {now}: it leads, gaining {gain.of(metric)} over continuing"
            f" ({continued}), which is not shown."
        )
    choose = f"Decision: keep {continued}{'' if alone or least else ', as nothing is shown to be better'}"
    if gain is None:
        return f"{choose}."
    if not gain.varies:
        return f"{choose}: {other} is {gain.of()}."
    verb, by = ("gains", gain) if gain.gain > 0 else ("loses", gain.reversed())
    return f"{choose}: {other} {verb} {by.of(metric)}{f', less than the {least} that matters' if least else ''}."


def _warm_start(continued: str, scratch: str, warm: Difference | None, metric: str, unranked: Mapping[str, str]) -> str:
    if warm is None:
        reasons = [unranked[method] for method in (continued, scratch) if method in unranked]
        why = _listed(reasons) or f"it takes two seeds of both {continued} and {scratch}"
        return f"Whether warm starting hurts is not known: {why}."
    who = f"Warm starting ({continued})"
    if warm.decided:
        verb, by = ("gains", warm) if warm.gain > 0 else ("costs", warm.reversed())
        return f"{who} {verb} {by.of(metric)} against training from scratch ({scratch})."
    return f"{who} and training from scratch ({scratch}) cannot be distinguished: {warm.of(metric)}."


def _what_is_open(pairs: Sequence[Difference], worth: float, given: bool) -> str:
    """Say which difference more seeds would decide between methods that cannot be distinguished.

    Args:
        pairs: Differences between them that more seeds would decide.
        worth: The smallest difference that matters.
        given: Whether the user has stated it.
    """
    if not pairs:
        return f"A difference of {_rounded(worth, worth)} or more is ruled out: treat them as equal."
    more = max(pair.more_seeds(worth) for pair in pairs)
    if more <= FEASIBLE:
        return f"{more:.0f} more seed{'s' * int(more != 1)} would decide a difference of {_rounded(worth, worth)}."
    decided = max(pair.ruled_out_by(FEASIBLE) for pair in pairs)
    differences = f"Differences below {_rounded(decided, decided)}"
    if not given:
        return f"{differences} would need more than {FEASIBLE} further seeds: treat them as zero."
    return (
        f"The {_rounded(worth, worth)} that matters to you cannot be decided by {FEASIBLE} further seeds: treat"
        f" {differences.lower()} as zero."
    )


def _no_interval(gains: Mapping[str, Mapping[int, float]]) -> str:
    if len(gains) < 2:
        return "There are no two methods to compare."
    if max(map(len, gains.values())) < 2:
        return "One seed has no interval and decides nothing: run five (--seeds 5)."
    return "No two methods have two finished seeds in common: run those that are missing."


def _costs(methods: Sequence[str], continued: str, costs: Mapping[str, Cost], metric: str, unit: str) -> list[str]:
    until = [f"{m} {when_reached(costs[m].until)}" for m in methods if m != continued and len(costs[m].until)]
    seconds = [f"{m} {_rounded(s, s)}" for m in methods if np.isfinite(s := costs[m].seconds)]
    sentences = [f"{unit.capitalize()} until {continued}'s final {metric}: {', '.join(until)}."] if until else []
    return [*sentences, *([f"Seconds of all events of a run: {', '.join(seconds)}."] if seconds else [])]


def _rounded(value: float, scale: float) -> str:
    """Format a number with two significant digits of a scale, such as the half width of its interval."""
    return number(value, max(0, 1 - int(np.floor(np.log10(abs(scale)))))) if scale else number(value)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + "".join(words[-1:])


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {_listed([*map(str, seeds)])}"
