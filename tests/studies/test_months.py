"""The study of the advice of each month: its judgement of a made-up table, and two tiny months."""

import json
import sys

import pandas as pd
import pytest
from lightning.pytorch import callbacks

from studies import months

pytestmark = pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="came with Lightning 2.6")


def made_up(held_out, next_month):
    """Return runs of one year, from accuracies in percent by choice: for each month, of each run."""
    return pd.DataFrame(
        {
            "seed": 0,
            "month": month,
            "method": choice,
            "run": 100 * month + run,
            "held_out": of[run] / 100,
            "next_month": next_month[choice][month - 1] / 100,
        }
        for choice, by_month in held_out.items()
        for month, of in enumerate(by_month, 1)
        for run in range(len(of))
    )


HELD_OUT = {
    "vanilla": [[80, 81, 82], [80, 81, 82]],
    "scratch": [[85, 80, 84], [80, 79, 81]],
    "fire": [[80, 83, 83], [90, 91.1, 92]],
}
NEXT_MONTH = {"vanilla": [60, 60], "scratch": [63, 60], "fire": [62, 65]}


@pytest.mark.parametrize(
    ("rule", "by", "choices", "regrets", "gains"),
    [
        (months.by_decision, "held_out", ["vanilla", "fire"], [3, 0], [0, 5]),
        (months.by_mean, "held_out", ["scratch", "fire"], [0, 0], [3, 5]),
        (months.by_mean, "next_month", ["vanilla", "scratch"], [3, 5], [0, 0]),  # in month 2 of month 1
        (months.by_decision, "next_month", ["vanilla", "vanilla"], [3, 5], [0, 0]),  # 3 equal differences
        (months.by_leading, "held_out", ["scratch", "fire"], [0, 0], [3, 5]),  # worth 0.9 and 0.5 points
        (months.so_far(months.by_mean), "held_out", ["scratch", "fire"], [0, 0], [3, 5]),
        (months.so_far(months.by_decision), "held_out", ["vanilla", "vanilla"], [3, 5], [0, 0]),
        (months.always("scratch"), "held_out", ["scratch", "scratch"], [0, 5], [3, 0]),
    ],
)
def test_rules_are_judged_by_the_next_month(rule, by, choices, regrets, gains):
    found = months.judged(made_up(HELD_OUT, NEXT_MONTH), rule, by)
    assert list(found.choice) == choices
    assert list(found.regret) == pytest.approx(regrets)
    assert list(found.gain) == pytest.approx(gains)


def test_each_subset_of_the_runs_is_asked():
    found = months.judged(made_up(HELD_OUT, NEXT_MONTH), months.by_mean, count=1)
    assert list(found[found.month == 1].choice) == ["scratch", "fire", "scratch"]
    assert set(found[found.month == 2].choice) == {"fire"}


def test_of_equal_means_going_on_is_first():
    assert months.by_mean([{"fire": {0: 0.5, 1: 0.7}, "scratch": {0: 0.6}, "vanilla": {0: 0.6}}]) == "vanilla"


def test_less_than_what_is_worth_a_change_is_not_chosen():
    values = {"vanilla": {0: 0.60, 1: 0.70}, "fire": {0: 0.61, 1: 0.71}}  # worth half of 7 points
    assert (months.by_mean([values]), months.by_leading([values])) == ("fire", "vanilla")


def test_a_hit_is_within_one_point():
    found = months.judged(made_up(HELD_OUT, NEXT_MONTH), months.by_mean, count=1)
    assert months.line("best mean", 1, found) == ["best mean", "1", "2 of 2", "0.2", "–", "0", "1", "1", "0"]
    found = months.judged(made_up(HELD_OUT, {**NEXT_MONTH, "fire": [61.9, 65]}), months.by_mean, count=1)
    assert months.line("best mean", 1, found)[2] == "1.67 of 2"


def test_some_images_of_a_month_are_of_its_classes_as_all_are():
    """Of the first 200, most are of the newest class."""
    (_, before), (images, labels) = (month["train"] for month in months.twelve_months.months_of(0, 1))
    (newest,) = set(labels.tolist()) - set(before.tolist())
    some, their_labels = months.some(images, labels, 0)
    assert len(some) == len(their_labels) == 200 and (labels[:200] == newest).float().mean() > 0.7
    assert (their_labels == newest).float().mean() == pytest.approx(float((labels == newest).float().mean()), abs=0.1)
    first = int((images == some[0]).flatten(1).all(1).nonzero()[0])
    assert labels[first] == their_labels[0]


@pytest.mark.slow(10)
def test_two_months_of_one_year(tmp_path, capsys, monkeypatch):
    for name, value in {"TRAIN": 60, "HELD_OUT": 40, "EPOCHS": 1}.items():
        monkeypatch.setattr(months.twelve_months, name, value)
    for month in range(2):
        months.ask(0, month, 2, tmp_path)
    (own,) = tmp_path.glob("*/month1")
    assert sorted(path.name for path in own.glob("*.ckpt")) == ["deployed.ckpt"]
    row = json.loads((own / "fire_100.json").read_text())
    assert row["all_held_out"][-1] == row["held_out"]
    assert "Decision: " in (own / "decision.txt").read_text()
    events = months.events_of(tmp_path)
    assert list(events.chunk) == [1] and events.notna().all(axis=None)
    monkeypatch.setattr(sys, "argv", ["months", str(tmp_path), "--seeds", "1", "--months", "2", "--runs", "2"])
    months.main()  # nothing is run again
    printed = capsys.readouterr().out
    assert "| the choice, held out | 2 | " in printed and "year 0" not in printed
