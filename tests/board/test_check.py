"""What the check of a row compares, and what it cannot check."""

import math
from pathlib import Path

import pytest
from board_rows import SUITE, row

from lightning_fire.board import check

SAME = [0.5 + seed / 100 for seed in range(10)]


@pytest.fixture
def reproduce_row(monkeypatch):
    """Check a row whose training again gives `SAME`."""

    def evaluate(suite, task, methods, *rest):
        numbers = [SAME[seed] for seed in suite.seeds]
        return {method: row(method, task=[numbers] * 3).cells["task"] for method in methods}

    monkeypatch.setattr(check, "evaluate", evaluate)
    monkeypatch.setattr(check, "recipe_digest", lambda *of: "")  # as of the rows
    return lambda of: check.reproduce_row(of, "", SUITE, list(of.cells), Path(), None)


@pytest.mark.parametrize("method", ["vanilla", "full_reset", "fire"])
@pytest.mark.parametrize("wrong", range(3))
def test_all_three_numbers_of_a_cell_are_compared(reproduce_row, method, wrong):
    assert reproduce_row(row(method, random_labels=[SAME] * 3))
    assert not reproduce_row(row(method, random_labels=[[x + (i == wrong) for x in SAME] for i in range(3)]))


@pytest.mark.parametrize(
    ("before", "after", "distance"), [(0.5, 0.25, 0.25), (math.nan, math.inf, 0), (0.5, math.inf, math.inf)]
)
def test_runs_that_diverged_agree_however_they_did(before, after, distance):
    assert check._distance(before, after) == check._distance(after, before) == distance


def test_a_method_that_the_task_does_not_take_and_a_cell_without_seeds_are_not_checked(reproduce_row, capsys):
    (name, task) = next((name, task) for name, task in SUITE.tasks.items() if task.left_out)
    method, reason = next(iter(task.left_out.items()))
    assert not reproduce_row(row(method, **{name: [SAME] * 3}))
    assert f"{name}: not checked: {reason}" in capsys.readouterr().out
    assert not reproduce_row(row("fire", random_labels=[[]] * 3))
