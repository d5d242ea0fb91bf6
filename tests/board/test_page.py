"""docs/board.md, its figure and its CSV are those of the rows in docs/board."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from board_rows import SUITE, around, row

from lightning_fire.board.row import write_row

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "board.py"))


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    vanilla, scratch = around(rng, 0.2), around(rng, 0.5)
    found = {"vanilla": row("vanilla", random_labels=(vanilla, vanilla, scratch))}
    found["fire"] = row("fire", random_labels=(around(rng, 0.7), vanilla, scratch))
    found["l2_init"] = row("l2_init", random_labels=([value + 0.001 for value in vanilla], vanilla, scratch))
    noisy = [
        value + noise for value, noise in zip(vanilla, [0.01, 0.012, 0.011, 0.01, 0.012, *[-0.01] * 5], strict=True)
    ]
    found["redo"] = row("redo", random_labels=(noisy, vanilla, scratch))
    found["mine"] = row("mine", random_labels=(scratch, vanilla, scratch))
    return SCRIPT["ordered"](found, SUITE)


def test_the_page_is_up_to_date():
    shown = SCRIPT["ordered"](SCRIPT["read_rows"](DOCS / "board"), SUITE)
    lost, _ = SCRIPT["vanished"](shown, SUITE)
    assert len(shown) > 3 and SCRIPT["page"](shown, SUITE, lost) == (DOCS / "board.md").read_text(), (
        "run python docs/board.py"
    )


def test_rows_have_tried_the_settings_of_the_suite():
    for name, of in SCRIPT["read_rows"](DOCS / "board").items():
        for task, cell in of.cells.items():
            space = SUITE.space_of(SUITE.tasks[task], name)
            wanted = {f"{key}={value}" for key, values in space.items() for value in values}
            assert set(cell.tried) == wanted, (name, task)


def test_unknown_tasks_diverged_runs_and_tasks_of_vanilla_alone_are_drawn_and_told(rows, tmp_path, monkeypatch):
    cell = rows["mine"].cells["random_labels"]
    nan = replace(cell, values={**cell.values, 0: math.nan}, curve=[(0.1, 0.01), (math.nan, math.nan)])
    rows["mine"] = replace(rows["mine"], cells={"random_labels": nan, "other_task": cell})
    rows["vanilla"] = replace(rows["vanilla"], cells={**rows["vanilla"].cells, "language": cell})
    rows["redo"] = replace(rows["redo"], cells={"random_labels": replace(cell, vanilla=nan.values)})
    for name, one in rows.items():
        write_row(tmp_path / "board" / f"{name}.json", one)
    page = (DOCS / "board.md").read_text()
    (tmp_path / "board.md").write_text(page)
    of = SCRIPT["main"].__globals__
    for key in ("DOCS", "ROWS", "PAGE", "CURVES", "CSV", "FIGURE"):
        monkeypatch.setitem(of, key, tmp_path / of[key].relative_to(DOCS))
    SCRIPT["main"]()
    told = (tmp_path / "board.md").read_text()
    assert "| `mine` | [1 of 10 diverged](board_curves.md#random_labels) | – |" in told and "other_task" not in told
    assert "| `redo` | [vanilla: 1 of 10 diverged]" in told
    assert (
        not (tmp_path / "board_language.png").exists() and "language" not in (tmp_path / "board_curves.md").read_text()
    )


def test_rows_come_in_the_order_of_the_suite_and_joined_ones_last(rows):
    assert list(rows) == ["vanilla", "fire", "redo", "l2_init", "mine"]


def test_a_cell_has_one_result_with_its_interval_a_mark_and_a_link(rows):
    lines = SCRIPT["main_table"](rows, SUITE).splitlines()
    assert lines[2].startswith("| `vanilla` | [20.")
    assert lines[3].startswith("| `fire` | [+49.9 ± 1.") and lines[3].endswith(" ●](board_curves.md#random_labels) |")


def test_what_five_seeds_showed_and_ten_do_not_is_told(rows):
    told, table = SCRIPT["vanished"](rows, SUITE)
    assert told.startswith("Of 7 differences that five seeds show, 1 are not shown by ten, and 0 more not after")
    assert "| random_labels | 7 | `redo` | none |" in table
    _, *five = SCRIPT["alone"](rows["redo"], SUITE.tasks["random_labels"], "vanilla", 5)
    assert five == pytest.approx((0.976, 1.224), abs=1e-3)


def test_who_is_first_is_told(rows):
    assert "| random_labels | `fire` | none |" in SCRIPT["first_table"](rows, SUITE)


def test_settings_at_an_end_of_their_range_are_counted(rows):
    cell = rows["redo"].cells["random_labels"]
    for method, setting in ("redo", {"threshold": 0.05}), ("l2_init", {"strength": 0.1}), ("mine", {"size": 3}):
        rows[method] = replace(rows[method], cells={"random_labels": replace(cell, setting=setting)})
    assert SCRIPT["tuning"](rows, SUITE).startswith("Of 2 tuned cells 1 have the smallest or the largest of")


def test_figures_and_csv_are_written(rows, tmp_path, monkeypatch):
    of = SCRIPT["main"].__globals__
    monkeypatch.setitem(of, "CSV", tmp_path / "board.csv")
    monkeypatch.setitem(of, "FIGURE", tmp_path / "board.png")
    monkeypatch.setitem(of, "DOCS", tmp_path)
    SCRIPT["write_csv"](rows, SUITE)
    SCRIPT["draw_board"](rows, SUITE)
    SCRIPT["draw_curves"](rows, SUITE.tasks["random_labels"])
    lines = (tmp_path / "board.csv").read_text().splitlines()
    assert len(lines) == 1 + len(rows) and lines[2].startswith("random_labels,fire,70,0.741,10,")
    assert {line.count(",") for line in lines} == {lines[0].count(",")}
    assert {path.name for path in tmp_path.iterdir()} == {"board.csv", "board.png", "board_random_labels.png"}
