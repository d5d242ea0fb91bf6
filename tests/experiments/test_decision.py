"""The decision of a comparison: what it states of simulated and of incomplete tables."""

import re

import numpy as np
import pytest
from history import IDLE, history, named, series
from scipy import stats

from lightning_fire.experiments.chunks import ChunkReport, Metric
from lightning_fire.experiments.decision import Cost, decision_of, paired_differences
from lightning_fire.experiments.direction import mode_of
from lightning_fire.experiments.statistics import holm_levels, p_value, seeds_for

NAMES = ["vanilla", "full_reset", "fire", "dash", "redo", "snr"]
DRAWS = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "heavy tails": lambda random, shape: random.standard_t(2, shape),
    "skewed": lambda random, shape: random.exponential(size=shape),
    "accuracy of eight images": lambda random, shape: np.round(2 * random.standard_normal(shape)) / 8,
}


def table(values):
    """Values by method and seed, of an array of shape (seeds, methods)."""
    return {name: dict(enumerate(column)) for name, column in zip(NAMES, values.T.tolist(), strict=False)}


def states_a_difference(values):
    gains = table(values)
    return any(found.decided for found in paired_differences(gains).values())


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("methods", [2, 3, 6])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_copies_of_one_method_cannot_be_told_apart(draw, methods, seeds):
    """In at most one table of twenty, and two standard errors of 200 tables, any difference is stated."""
    random = np.random.default_rng(seeds)
    tables = [draw(random, (seeds, methods)) + draw(random, (seeds, 1)) for _ in range(200)]
    assert sum(map(states_a_difference, tables)) <= 200 * 0.05 + 2 * np.sqrt(200 * 0.05 * 0.95)


def test_three_copies_are_named_as_one_set():
    decision = decision_of(table(np.random.default_rng(0).normal(size=(5, 3))), "accuracy")
    assert set(decision.best) == {"vanilla", "full_reset", "fire"} and decision.choice == "vanilla"
    assert decision.better == [] and not decision.warm_start.decided and decision.more_seeds > 5
    assert decision.text.startswith("Decision: keep vanilla, as nothing is shown to be better: training from scratch")
    assert "full_reset, fire and vanilla cannot be distinguished; the best mean is named first. " in decision.text
    assert "Better than both vanilla and full_reset: none is shown to be." in decision.text


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_a_difference_of_one_standard_deviation_is_found_as_often_as_theory_says(seeds):
    """Power of a paired t-test: the noncentral t distribution."""
    random = np.random.default_rng(0)
    draws = 1 + random.standard_normal((600, seeds))
    found = [states_a_difference(np.stack([draw, np.zeros(seeds)], axis=1)) for draw in draws]
    limit = stats.t.ppf(0.975, seeds - 1)
    noncentral = stats.nct(seeds - 1, np.sqrt(seeds))
    power = noncentral.sf(limit) + noncentral.cdf(-limit)
    assert np.mean(found) == pytest.approx(power, abs=2.5 * np.sqrt(power * (1 - power) / 600))


def test_holm_is_the_slow_version():
    """Adjusted p-values: the largest of (m - rank) p so far, by rank from 0."""
    random = np.random.default_rng(0)
    for count in [1, 2, 3, 6, 15] * 20:
        p = random.random(count) ** 3
        adjusted, largest = np.zeros(count), 0.0
        for rank, index in enumerate(sorted(range(count), key=lambda i: p[i])):
            largest = max(largest, (count - rank) * p[index])
            adjusted[index] = largest
        assert [a <= 0.05 for a in adjusted] == [a <= b for a, b in zip(p, holm_levels(p), strict=True)]
    assert holm_levels([]) == []


def test_intervals_agree_with_what_is_decided():
    random = np.random.default_rng(1)
    for _ in range(30):
        gains = table(random.normal(size=(4, 4)) + np.array([0, 0, 2, 4]))
        for found in paired_differences(gains).values():
            assert found.decided == (found.low > 0 or found.high < 0)


def test_p_values_are_those_of_a_paired_t_test_and_of_signs_without_spread():
    each = np.array([0.1, 0.4, -0.2, 0.5])
    assert p_value(each) == pytest.approx(stats.ttest_1samp(each, 0).pvalue)
    as_logged = np.float32([0.3, 0.4, 0.7]).astype(float) - np.float32([0.2, 0.3, 0.6])  # all 0.1, rounded
    assert as_logged.std() > 0 and p_value(as_logged) == 0.25
    assert p_value(np.zeros(3)) == 1


def test_the_number_of_seeds_gives_an_interval_of_the_width_asked():
    for spread, least in ((1.0, 0.5), (0.02, 0.01), (1.0, 10.0)):
        seeds = seeds_for(spread, least)
        half = [stats.t.ppf(0.975, n - 1) * spread / np.sqrt(n) for n in (seeds, max(seeds - 1, 2))]
        assert half[0] <= least and (half[1] > least or seeds == 2)
    assert seeds_for(1.0, 1e-3) == float("inf")


@pytest.mark.parametrize("metric", ["val/mae", "MAE", "loss", "testLoss", "eval_log_loss", "final RMSE", "val/err"])
def test_the_direction_of_a_loss_or_an_error_must_be_given(metric):
    with pytest.raises(ValueError, match=rf"the name of {metric} suggests that less is better: give --mode min, or --"):
        mode_of(metric, None, "--mode {}")
    assert [mode_of(metric, mode, "--mode {}") for mode in ("max", "min")] == ["max", "min"]


@pytest.mark.parametrize("metric", ["val/accuracy", "MRR@10", "mAP50", "return", "lossless", "metric", "terror"])
def test_more_of_other_metrics_is_better_if_nothing_else_is_said(metric):
    assert mode_of(metric, None, "--mode {}") == "max"


MAE = {  # less is better; differences full_reset - vanilla: 0.018, 0.020, 0.019
    "vanilla": {0: 0.100, 1: 0.110, 2: 0.105},
    "full_reset": {0: 0.118, 1: 0.130, 2: 0.124},
}


def test_warm_starting_gains_in_the_metric_and_its_direction():
    decision = decision_of(MAE, "MAE", "min")
    half = 4.302653 * 0.001 / np.sqrt(3)
    warm = decision.warm_start
    assert (warm.gain, warm.low, warm.high) == pytest.approx((0.019, 0.019 - half, 0.019 + half), abs=1e-8)
    loss = "training from scratch (full_reset) loses 0.0190 MAE (0.0165 to 0.0215)"
    assert decision.text == f"Decision: keep vanilla: {loss}. MAE: less is better."
    assert decision.choice == "vanilla" and decision.more_seeds is None
    costs = decision_of(MAE, "accuracy").text
    gains = "it gains 0.0190 accuracy (0.0165 to 0.0215) over continuing (vanilla)"
    assert costs == f"Decision: train from scratch (full_reset): {gains}. accuracy: more is better."
    assert (
        "Warm starting (vanilla) gains 0.0190 MAE (0.0146 to 0.0234) against training from scratch (full_reset)."
        in decision_of(MAE | {"fire": {0: 0.05, 1: 0.04, 2: 0.06}}, "MAE", "min").text
    )


def test_the_best_method_is_better_than_each_other():
    random = np.random.default_rng(0)
    values = table(random.normal(0, 0.01, (5, 4)) + np.array([0.1, 0.5, 0.7, 0.6]))
    cost = {"fire": Cost([2, np.inf], 0.25), "dash": Cost([1, 1], 3.0)}
    decision = decision_of(values, "accuracy", costs=cost)
    assert (decision.choice, decision.best, decision.better) == ("fire", ["fire"], ["fire", "dash"])
    told = ["Decision: use fire: it gains 0.6", "over continuing (vanilla). Warm starting (vanilla) costs 0.4"]
    told += ["Best is fire: better than full_reset by 0.", " and dash by 0."]
    told += ["Epochs until vanilla's final accuracy: fire 2 (1 of 2), dash 1.", "of a run: fire 0.25, dash 3.0."]
    assert all(words in decision.text for words in told)
    assert "hold for all 6 pairs of methods together" in decision.text


def test_of_methods_that_cannot_be_told_apart_the_cheapest_is_chosen():
    random = np.random.default_rng(0)
    values = table(random.normal(0, 0.01, (5, 4)) + np.array([0.1, 0.5, 0.7, 0.7]))
    cheap, dear = Cost([2, 2], 0.1), Cost([2, 2], 9.0)
    for costs, best in (({"fire": cheap, "dash": dear}, "fire"), ({"fire": dear, "dash": cheap}, "dash")):
        decision = decision_of(values, "accuracy", costs=costs)
        assert set(decision.best) == {"fire", "dash"} and decision.choice == best


def test_it_says_what_more_seeds_would_decide():
    """A number of seeds; or, if it is more than thirty, the difference that thirty more seeds would decide."""
    random = np.random.default_rng(0)
    values = table(random.normal(0, 0.01, (5, 4)) + np.array([0.1, 0.5, 0.7, 0.7]))
    default = decision_of(values, "accuracy")
    assert default.worth == pytest.approx(0.06, abs=0.002) and default.more_seeds is None  # a tenth of 0.6
    assert "A difference of 0.061 or more is ruled out: treat them as equal." in default.text
    found = paired_differences(values)["dash", "fire"]
    some = decision_of(values, "accuracy", worth=0.005)
    assert f"{some.more_seeds} more seeds would decide a difference of 0.0050." in some.text
    upper = found.spread * np.sqrt(4 / stats.chi2.ppf(0.3, 4))
    gain = abs(found.gain)
    assert some.more_seeds == seeds_for(upper, max(gain, 0.005 - gain), found.level) - 5
    many = decision_of(values, "accuracy", worth=5e-4)
    half = gain + stats.t.ppf(1 - found.level / 2, 34) * upper / np.sqrt(35)
    told = (
        f"The 0.00050 that matters to you cannot be decided by 30 further seeds: treat differences below {half:.4f} as"
    )
    assert f"{told} zero." in many.text
    assert many.more_seeds > 30
    errors = {"vanilla": (4264, 4288, 4198), "scratch": (4362, 4223, 4266), "fire": (4200, 4172, 4076)}
    errors = {method: dict(enumerate(of)) for method, of in (errors | {"dash": (4186, 4109, 4303)}).items()}
    assert "would need more than 30 further seeds: treat them as zero." in decision_of(errors, "error", "min").text


@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_in_most_tables_nothing_is_open_after_as_many_seeds_as_it_says(seeds):
    """Two thirds of them at least, with copies of one method and with methods that differ."""
    random, kept = np.random.default_rng(0), []
    for trial in range(60):
        values = random.normal(0, 0.008, (40, 4)) + (trial % 2) * random.normal(0, 0.008, 4)
        more = decision_of(table(values[:seeds]), "accuracy", worth=0.02).more_seeds
        if more is not None and more <= 30:
            kept.append(decision_of(table(values[: seeds + more]), "accuracy", worth=0.02).more_seeds is None)
    assert len(kept) >= 10 and np.mean(kept) >= 2 / 3


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("methods", [2, 3, 6])
def test_no_default_asks_for_more_seeds_than_anybody_runs(seeds, methods):
    """Of copies of one method, and where one gains sixty standard deviations, as in the quick start."""
    random = np.random.default_rng(0)
    for shift in (0, 60):
        for _ in range(20):
            values = random.normal(size=(seeds, methods)) + shift * np.array([0, *[1] * (methods - 1)])
            asked = re.findall(r"(\d+) more seed", decision_of(table(values), "accuracy").text)
            assert all(int(more) <= 30 for more in asked)


def test_a_cheap_method_whose_runs_vary_is_not_chosen_before_one_that_is_shown_to_be_better():
    """The quick start: resetting the head alone ends between 0.45 and 0.66."""
    random = np.random.default_rng(0)
    values = table(random.normal(0, 1, (5, 4)) * [0.01, 0.01, 0.01, 0.1] + [0.12, 0.55, 0.69, 0.62])
    decision = decision_of(values, "accuracy", costs={"fire": Cost(seconds=1.5), "dash": Cost(seconds=0.3)})
    assert decision.best == ["fire", "dash"] and decision.better == ["fire"]
    words = "fire and dash cannot be distinguished; named first: those shown to be better than vanilla or full_reset."
    assert words in decision.text


@pytest.mark.parametrize(
    ("values", "options", "told"),
    [
        ({"vanilla": {0: 0.5}, "full_reset": {0: 0.6}}, {}, "One seed has no interval and decides nothing: run five"),
        (
            {"vanilla": {0: 0.5, 1: 0.6}},
            {},
            "it takes two seeds of both vanilla and scratch or full_reset. There are no two",
        ),
        (
            {"fire": {0: 0.5, 1: 0.7}, "dash": {0: 0.6, 1: 0.7}},
            {},
            "Whether warm starting hurts is not known: it takes",
        ),
        ({"vanilla": {0: 1, 1: 2}, "full_reset": {2: 1, 3: 2}}, {}, "No two methods have two finished seeds in common"),
        (MAE | {"full_reset": {0: float("nan"), 1: 1.0}}, {}, "full_reset has no finite MAE with seed 0."),
        (
            MAE | {"vanilla": {0: 1.0, 1: float("inf"), 3: float("inf")}},
            {},
            "vanilla has no finite MAE with seeds 1 and 3.",
        ),
        (MAE | {"wild": {0: float("inf"), 1: 1.0}}, {}, "Not ranked: wild has no finite MAE with seed 0."),
        (
            MAE | {"redo": MAE["vanilla"]},
            {"idle": ["redo"]},
            "redo never acted: its curves equal those of vanilla bit for bit.",
        ),
        (MAE, {"failed": {"fire": [0, 1, 2]}}, "Not ranked: fire failed with seeds 0, 1 and 2."),
        (MAE, {"failed": {"vanilla": [3]}}, "vanilla failed with seed 3."),
        (
            {},
            {"failed": {"vanilla": [0]}},
            "Decision: open. Whether warm starting hurts is not known: vanilla failed with",
        ),
        (
            {"vanilla": {0: 1, 1: 2}, "full_reset": {0: 1, 1: 2}},
            {},
            "training from scratch (full_reset) is equal with every seed.",
        ),
    ],
)
def test_what_is_missing_is_said(values, options, told):
    decision = decision_of(values, "MAE", "min", **options)
    assert told in decision.text and not decision.text.count("nan")


def test_a_method_without_two_seeds_is_neither_better_nor_worse():
    values = MAE | {"fire": {0: 0.01}}
    decision = decision_of(values, "MAE", "min")
    assert set(decision.best) == {"fire", "vanilla"} and decision.warm_start.decided


def ending(accuracy):
    return history(
        val__accuracy=series((19, 0.5), (39, accuracy - 0.1), (59, accuracy)), fire__seconds=series((20, 0.5))
    )


def test_a_report_decides_from_its_runs(tmp_path, capsys):
    methods = {
        "vanilla": {
            seed: history(**IDLE_KEYS, val__accuracy=series((19, 0.5), (59, 0.4 + seed / 100))) for seed in range(3)
        },
        "full_reset": {seed: ending(0.62 + seed / 90) for seed in range(3)},
        "fire": {seed: ending(0.82 + seed / 110) for seed in range(3)},
    }
    methods["redo"] = methods["vanilla"]
    report = ChunkReport(named(methods), "vanilla", Metric())
    (decision,) = report.decisions().values()
    assert decision.choice == "fire" and "Not ranked: redo never acted" in decision.text
    assert "Epochs until vanilla's final accuracy: fire 1." in decision.text
    assert "Seconds of all events of a run: fire 0.50." in decision.text
    report.publish(tmp_path, "title", decision.text)
    assert (tmp_path / "decision.txt").read_text() == f"{decision.text}\n"
    printed = capsys.readouterr().out
    assert printed.index("minus vanilla") < printed.index("Decision: use fire: it") < printed.index("comparison.png")


IDLE_KEYS = {key.replace("/", "__"): None for key in history() if key not in IDLE}


def test_without_vanilla_the_reference_continues_unless_it_trains_anew():
    runs = {seed: ending(0.5 + seed / 100) for seed in range(2)}
    others = {seed: ending(0.6 + seed / 90) for seed in range(2)}

    def text(reference):
        return ChunkReport(named({"full_reset": runs, "fire": others}), reference, Metric()).decisions()[""].text

    assert text("fire").startswith("Decision: keep fire: training from scratch (full_reset) loses 0.1006 accuracy (")
    assert "Whether warm starting hurts is not known: it takes two seeds of both vanilla and full_reset." in text(
        "full_reset"
    )


def test_what_leads_is_named_where_nothing_is_shown():
    values = {"vanilla": {0: 50, 1: 60, 2: 55}, "scratch": {0: 58, 1: 57, 2: 64}, "fire": {0: 54, 1: 59, 2: 57}}
    decision = decision_of(values, "accuracy")
    assert (decision.choice, decision.leading) == ("vanilla", "scratch")
    assert decision.text.startswith(
        "Decision: open; if you must decide now, train from scratch (scratch): it leads, gaining 5 accuracy (-"
    )
    costs = {
        "vanilla": Cost(),
        "fire": Cost([1, 1, 1], 0.1),
        "scratch": Cost([3, 3, 3], 0.5),
    }  # not the order of the list
    for text in (decision.text, decision_of(values, "accuracy", costs=costs).text):
        assert "scratch, fire and vanilla cannot be distinguished; the best mean is named first." in text


def test_nothing_leads_that_gains_less_than_what_matters():
    values = {"vanilla": {0: 50, 1: 60, 2: 55}, "scratch": {0: 58, 1: 57, 2: 64}}
    decision = decision_of(values, "accuracy", worth=6)
    assert (decision.choice, decision.leading) == ("vanilla", "vanilla")
    told = "Decision: keep vanilla, as nothing is shown to be better: training from scratch (scratch)"
    assert decision.text.startswith(told)


def test_a_shown_gain_below_what_matters_is_no_reason_to_change():
    values = {"vanilla": dict(enumerate([0.50, 0.60, 0.55])), "fire": dict(enumerate([0.505, 0.606, 0.554]))}
    assert decision_of(values, "accuracy").choice == "fire"
    decision = decision_of(values, "accuracy", worth=0.01)
    assert (decision.choice, decision.leading, decision.best) == ("vanilla", "vanilla", ["fire"])
    assert decision.text.startswith("Decision: keep vanilla: fire gains 0.0050 accuracy (")
    assert "less than the 0.010 that matters. " in decision.text


def test_a_final_decision_asks_for_no_more_seeds():
    """Two methods that gain less than what matters, and cannot be distinguished."""
    noise = np.random.default_rng(0).normal(0, [[0, 0, 0.001, 0.02]], (5, 4))
    decision = decision_of(table(noise + np.array([0.1, 0, 0.106, 0.1])), "accuracy", worth=0.02)
    assert "less than the 0.020 that matters" in decision.text and "cannot be distinguished" in decision.text
    assert not re.search("more seed|further", decision.text) and decision.more_seeds is None


def test_continuing_is_not_kept_where_training_anew_is_shown_to_be_better():
    values = {
        "vanilla": {0: 10, 1: 20, 2: 15, 3: 18},
        "scratch": {0: 200, 1: 211, 2: 206, 3: 207},
        "fire": {0: 500, 1: 30, 2: 490, 3: 120},
    }
    decision = decision_of(values, "return")
    assert (decision.choice, decision.leading, set(decision.best)) == ("scratch", "scratch", {"scratch", "fire"})
    assert decision.text.startswith("Decision: train from scratch (scratch): it gains 190")
    words = "scratch and fire cannot be distinguished; named first: those shown to be better than vanilla."
    assert words in decision.text


def test_continuing_is_chosen_first_and_then_what_beats_training_anew():
    each = [[10, 20, 15, 18], [10, 10.1, 10.2, 10.1], [5, 25, 11, 19], [12, 12.1, 12.21, 12.1]]
    decision = decision_of(table(np.transpose(each)), "return")
    assert decision.best == ["vanilla", "dash", "fire"]
    assert "vanilla, fire and dash cannot be distinguished; the best mean is named first." in decision.text


@pytest.mark.parametrize("gain", [0, 1e-17, 0.01])
def test_more_seeds_of_one_value_are_not_asked_for(gain):
    """Of a library with a seed of its own; values that differ by rounding, as sums in another order, are one."""
    values = {"vanilla": [0.1 + 0.2, 0.3, 0.3], "scratch": [0.3, 0.1 + 0.2, 0.3], "fire": [0.3 + gain] * 3}
    decision = decision_of({name: dict(enumerate(of)) for name, of in values.items()}, "MAE", costs={})
    assert not re.search("0.0000000|more seed|ruled out|further", decision.text) and decision.more_seeds is None
    assert ("gaining 0.01" in decision.text) == (gain == 0.01)
