"""What the board shows, from rows whose numbers are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from board_rows import SUITE, around, row
from scipy import stats

from lightning_fire.board.table import best_of, cells, differences, gains, table

TASKS = list(SUITE.tasks)


def test_the_intervals_are_those_of_paired_t_tests_by_holm():
    rng = np.random.default_rng(0)
    vanilla, scratch = around(rng, 0.2), around(rng, 0.5)
    rows = {
        name: row(name, random_labels=(around(rng, m), vanilla, scratch)) for name, m in {"a": 0.6, "b": 0.2}.items()
    }
    found = differences(rows, SUITE)
    every = {}
    for name, of in rows.items():
        values = np.array([*of.cells["random_labels"].values.values()])
        for reference, other in (("vanilla", vanilla), ("scratch", scratch)):
            every[name, "random_labels", reference] = 100 * (values - np.array(other))
    p_values = {key: stats.ttest_1samp(of, 0).pvalue for key, of in every.items()}
    level, open_ = 0.0, True
    for rank, key in enumerate(sorted(p_values, key=p_values.get)):
        level = 0.05 / (len(p_values) - rank) if open_ else level
        open_ = open_ and p_values[key] <= level
        low, high = stats.t.interval(1 - level, 9, every[key].mean(), stats.sem(every[key]))
        assert found[key].low == pytest.approx(low) and found[key].high == pytest.approx(high)
        assert found[key].decided == (p_values[key] <= level)


@pytest.mark.parametrize(
    ("value", "mark"),
    [(0.9, "●"), (0.4, "○"), (0.05, "×"), (0.2, "")],
    ids=["better than both", "better than vanilla", "worse", "not shown"],
)
def test_a_mark_says_what_is_shown(value, mark):
    rng = np.random.default_rng(1)
    three = around(rng, value), around(rng, 0.2), around(rng, 0.5)
    (_, (_, cell)) = cells({"one": row("one", random_labels=three)}, SUITE)
    assert cell.endswith(f") {mark}".rstrip()) and (not mark or mark in cell)


def test_less_is_better_where_the_task_says_so():
    task = next(iter(SUITE.tasks.values()))
    assert gains(task, {0: 0.5}) == {0: 50.0}
    assert gains(replace(task, mode="min", scale=1.0), {0: 0.5}) == {0: -0.5}


def test_copies_of_vanilla_are_told_apart_on_at_most_five_of_a_hundred_boards():
    """Three methods that are vanilla with other draws, on all tasks, beside a scratch that is truly better."""
    rng, shown, boards = np.random.default_rng(2), 0, 600
    for _ in range(boards):
        of_tasks = {task: (around(rng, 0.3), around(rng, 0.5)) for task in TASKS}
        rows = {
            name: row(name, **{task: (around(rng, 0.3), *of_tasks[task]) for task in TASKS}) for name in ("a", "b", "c")
        }
        found = differences(rows, SUITE)
        shown += any(of.decided for (_, _, reference), of in found.items() if reference == "vanilla")
    assert shown / boards <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / boards)  # 5 % at most, beside the luck of the draw


def test_intervals_for_one_pair_alone_would_tell_them_apart():
    """The simulation above could fail: t-tests without adjustment find differences on most of its boards."""
    rng, shown = np.random.default_rng(2), 0
    for _ in range(100):
        pairs = [(around(rng, 0.3), around(rng, 0.3)) for _ in range(3 * len(TASKS))]
        shown += any(stats.ttest_rel(*pair).pvalue < 0.05 for pair in pairs)
    assert shown > 30


def test_the_best_are_those_that_none_is_shown_to_be_better_than():
    rng = np.random.default_rng(3)
    vanilla, scratch = around(rng, 0.2), around(rng, 0.5)
    values = {"first": 0.702, "second": 0.7, "third": 0.4}
    rows = {name: row(name, random_labels=(around(rng, m), vanilla, scratch)) for name, m in values.items()}
    assert set(best_of(rows, SUITE.tasks["random_labels"])) == {"first", "second"}
    assert best_of({}, SUITE.tasks["random_labels"]) == []


def test_cells_without_an_interval_say_why():
    rng = np.random.default_rng(4)
    vanilla, scratch = around(rng, 0.2), around(rng, 0.5)
    rows = {
        "vanilla": row("vanilla", random_labels=(vanilla, vanilla, scratch)),
        "same": row("same", random_labels=(vanilla, vanilla, scratch)),
        "diverged": row("diverged", random_labels=([math.nan, *vanilla[1:]], vanilla, scratch)),
        "elsewhere": row("elsewhere", permuted_labels=(scratch, vanilla, scratch)),
        "infinite_schedule": row("infinite_schedule", language=(scratch, vanilla, scratch)),  # no other task has it
    }
    told = {method: of[0] for method, *of in cells(rows, SUITE)[1:]}
    assert told["same"] == "never acted"
    assert told["diverged"] == "1 of 10 diverged"
    assert told["elsewhere"] == "–" and told["infinite_schedule"] == "n/a"
    assert told["vanilla"] == f"{100 * np.mean(vanilla):.1f}"
    assert "random_labels: same, vanilla" in table(rows, SUITE) or "random_labels: vanilla, same" in table(rows, SUITE)


def test_cells_of_tasks_that_the_suite_lacks_are_left_out():
    rng = np.random.default_rng(5)
    three = around(rng, 0.9), around(rng, 0.2), around(rng, 0.5)
    rows = {"one": row("one", random_labels=three, another_task=three)}
    assert {task for _, task, _ in differences(rows, SUITE)} == {"random_labels"}
    assert "another_task" not in table(rows, SUITE)
