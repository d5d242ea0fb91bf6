"""Statistics of predictors against slow versions: by pairs, by groups, by all thresholds."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from studies import signs
from studies.predictors import areas, intervals, rank_correlations, resampled, right_elsewhere, threshold

NAMES = ["good", "noise", "constant"]


def some_events(seed=0, seeds=6, chunks=4):
    """Events of two settings and two rates; a gain that one value follows, with ties."""
    draw = np.random.default_rng(seed)
    keys = [(s, r, i, c) for s in ("a", "b") for r in (0.1, 0.2) for i in range(seeds) for c in range(chunks)]
    events = pd.DataFrame(keys, columns=["setting", "rate", "seed", "chunk"])
    events["good"] = draw.integers(0, 8, len(events)).astype(float)
    events["noise"] = draw.normal(size=len(events))
    events["constant"] = 1.0
    events["gain"] = events.good - 4 + draw.normal(size=len(events))
    return events


def slow_rank(value, values):
    """Return the fraction of values below, half for each equal one."""
    return sum((other < value) + 0.5 * (other == value) for other in values) / len(values)


def test_rank_correlations_are_spearmans():
    events = some_events()
    found = rank_correlations(events, NAMES)
    for name in ("good", "noise"):
        assert found[name] == pytest.approx(spearmanr(events[name], events.gain).statistic)
    assert found["good"] > 0.8 and np.isnan(found["constant"])


def test_correlations_within_groups_are_those_of_ranks_in_each_group():
    events = some_events()
    events.loc[events.setting == "b", ["gain", "good"]] += 100  # between groups they agree, whatever they do within
    events.loc[events.setting == "b", "noise"] += 100
    found = rank_correlations(events, NAMES, ("setting", "rate"))
    for name in ("good", "noise"):
        ranks = {name: [], "gain": []}
        for row in events.itertuples():
            group = events[(events.setting == row.setting) & (events.rate == row.rate)]
            for column, own in ranks.items():
                own.append(slow_rank(getattr(row, column), list(group[column])) - 0.5)
        assert found[name] == pytest.approx(pearsonr(ranks[name], ranks["gain"]).statistic)
    assert abs(found["noise"]) < 0.3 < rank_correlations(events, NAMES)["noise"]


def test_no_event_has_a_part_in_its_own_sign():
    """The gain follows a value, the opposite of another, and a third in each half of the seeds the other way round."""
    events = some_events()[["setting", "rate", "seed", "gain"]]
    events = pd.concat([events, events.head(4).assign(setting="months", gain=[3.0, 2.0, 1.0, 0.0])], ignore_index=True)
    later = events.seed >= 3
    events = events.assign(up=events.gain, down=-events.gain, both=events.gain.where(later, -events.gain))
    events.loc[events.setting == "months", "up"] *= -1
    found, marks = signs.oriented(events)
    assert marks == {"up": "", "down": "−", "both": "±"}
    months = events.setting == "months"
    assert (found.both == -found.gain)[~months].all()  # the worst that the other half can say
    assert (found.down == found.gain).all() and (found.up == -found.gain)[months].all()


def test_months_are_a_setting_by_themselves():
    """Neither pooled with the others nor among those that thresholds are learned from."""
    events = some_events()
    months = events[events.setting == "a"].assign(setting="months", rate=0.0, gain=1.0)
    found = signs.measured(events, 3)
    more = signs.measured(pd.concat([events, months], ignore_index=True), 3)
    assert more.keys() - found.keys() == {(of, "months") for of in (signs.CORRELATION, signs.AREA, signs.RIGHT)}
    for key, values in found.items():
        pd.testing.assert_frame_equal(values, more[key])
    gained = (events.gain > 0).to_numpy()
    at_least = months.good >= threshold(events.good.to_numpy(), gained)
    assert more[signs.RIGHT, "months"].estimate["good"] == pytest.approx(at_least.mean())


def test_missing_values_leave_out_their_events_only():
    events = some_events()
    events.loc[events.setting == "b", "noise"] = np.nan
    own = rank_correlations(events, NAMES, ("setting", "rate"))
    assert own["noise"] == pytest.approx(rank_correlations(events[events.setting == "a"], NAMES, ("rate",))["noise"])
    assert np.isnan(areas(events[events.setting == "b"], NAMES)["noise"])


def test_areas_are_fractions_of_pairs():
    events = some_events()
    gained, others = events[events.gain > 0], events[events.gain <= 0]
    for name, area in areas(events, NAMES).items():
        pairs = [(x > y) + 0.5 * (x == y) for x in gained[name] for y in others[name]]
        assert area == pytest.approx(np.mean(pairs))
    assert areas(gained, NAMES).isna().all()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=50)
def test_no_threshold_is_right_more_often(pairs):
    values, gained = np.array([float(value) for value, _ in pairs]), np.array([gain for _, gain in pairs])

    def right(limit):
        return int(((values >= limit) == gained).sum())

    found, tried = threshold(values, gained), [*sorted(set(values)), np.inf]
    assert found in tried and right(found) == max(map(right, tried))
    assert not any(right(limit) == right(found) for limit in tried if limit < found)


def test_thresholds_are_learned_on_the_other_settings():
    """Elsewhere an event gains from 4 on; here from 2 on, so that 2 and 3 are judged wrongly."""
    events = pd.DataFrame(
        [("a", value, value - 3.5) for value in range(8)] + [("b", value, value - 1.5) for value in range(8)],
        columns=["setting", "good", "gain"],
    ).assign(rate=0.1, seed=0)
    here = events[events.setting == "b"]
    assert right_elsewhere(events, ["good"], "b")(here)["good"] == 6 / 8
    assert right_elsewhere(events, ["good"], "b")(here[here.good > 3])["good"] == 1


def test_samples_are_of_whole_runs_of_each_setting_and_rate():
    events, keys = some_events(), ["setting", "rate", "seed"]
    events = events.sample(frac=1, random_state=0)  # in any order
    for sample in resampled(events, 20):
        counts = sample.groupby([*keys, "chunk"]).size().unstack("chunk", fill_value=0)
        assert (counts.nunique(axis=1) == 1).all()  # each run with all its events, as often
        assert (counts[0].groupby(["setting", "rate"]).sum() == 6).all()


def test_intervals_are_as_wide_as_the_runs_differ_and_differences_are_paired():
    """Events of one run are equal: only the number of runs counts, for a mean 1.96 sd / √n."""
    draw = np.random.default_rng(0)
    of_runs = draw.normal(size=100)
    events = pd.DataFrame({"seed": np.repeat(np.arange(100), 5), "same": np.repeat(of_runs, 5)})
    events = events.assign(setting="a", rate=0.1, shifted=events.same - 1, none=np.nan)
    found = intervals(events, lambda own: own[["same", "shifted", "none"]].mean(), 300)
    half = (found.loc["same", "high"] - found.loc["same", "low"]) / 2
    assert half == pytest.approx(1.96 * of_runs.std() / 10, rel=0.2)
    assert found.loc["same", "low"] < of_runs.mean() == pytest.approx(found.loc["same", "estimate"])
    behind = found.loc["shifted", ["behind", "behind_low", "behind_high"]].tolist()
    assert behind == pytest.approx([1, 1, 1])
    assert found.loc["none"].isna().all()
