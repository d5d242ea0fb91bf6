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
    ("rule", "choices", "regrets", "gains"),
    [
        (months.by_decision, ["vanilla", "fire"], [3, 0], [0, 5]),
        (months.by_mean, ["scratch", "fire"], [0, 0], [3, 5]),
        (months.worth(2.5), ["vanilla", "fire"], [3, 0], [0, 5]),
        (months.by_mean_so_far, ["scratch", "fire"], [0, 0], [3, 5]),
        (months.by_decision_so_far, ["vanilla", "vanilla"], [3, 5], [0, 0]),  # months differ more than runs
        (months.always("scratch"), ["scratch", "scratch"], [0, 5], [3, 0]),
    ],
)
def test_rules_are_judged_by_the_next_month(rule, choices, regrets, gains):
    found = months.judged(made_up(HELD_OUT, NEXT_MONTH), rule)
    assert list(found.choice) == choices
    assert list(found.regret) == pytest.approx(regrets)
    assert list(found.gain) == pytest.approx(gains)


def test_each_subset_of_the_runs_is_asked():
    found = months.judged(made_up(HELD_OUT, NEXT_MONTH), months.by_mean, count=1)
    assert list(found[found.month == 1].choice) == ["scratch", "fire", "scratch"]
    assert set(found[found.month == 2].choice) == {"fire"}


def test_a_hit_is_within_one_point():
    line = months.table(made_up(HELD_OUT, NEXT_MONTH), {"the best": months.by_mean}, [None, 1]).splitlines()
    assert [cell.strip() for cell in line[2].split("|")[2:5]] == ["3", "2", "0.0"]
    assert [cell.strip() for cell in line[3].split("|")[2:5]] == ["1", "2", "0.2"]  # fire: 1 point, a third of the time


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
    assert "| the advice | 2 |" in printed and "year 0" not in printed
