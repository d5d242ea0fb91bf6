"""Tables on pages are those of the values in the CSV files beside them."""

import runpy
from pathlib import Path

import pandas as pd

from studies import drift, rejuvenation, signs, timing
from studies.runs import tables

DOCS = Path(__file__).parents[2] / "docs"
TABLES = runpy.run_path(str(DOCS / "tables.py"))


def test_tables_of_slow_drift():
    runs = pd.read_csv(DOCS / "slow_drift.csv")
    parts = {key: own for key, own in runs.groupby(["stream", "drift"], sort=False)}
    assert len(parts) == 12 and (runs.groupby(["stream", "drift", "method"]).seed.nunique() == 5).all()
    timed = [f"fire_procrustes {at}" for at in drift.times(0.5, 1)]
    of_runs = {
        "lost": drift.what_is_lost(parts),
        "methods": drift.minus(parts, drift.ACTING, "vanilla"),
        "times": drift.minus(parts, timed, "fire_procrustes"),
    }
    for name, table in of_runs.items():
        rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
        assert rows == TABLES["read"]({"file": f"results/drift_{name}.csv"})[1:]


def test_the_table_of_schedules():
    runs, page = pd.read_csv(DOCS / "timing.csv"), (DOCS / "when_to_act.md").read_text()
    lines = tables(runs, timing.NAMES, ["every_change"]).splitlines()
    assert len(lines) == 13
    assert "\n".join(line for line in lines if not line.startswith("| `every_change`")) in page


def test_the_table_of_signs():
    values, page = pd.read_csv(DOCS / "signs.csv"), (DOCS / "when_to_act.md").read_text()
    found = {key: own.set_index("value") for key, own in values.groupby(["measure", "of"], sort=False)}
    table = signs.table(found, dict(zip(values.value, values.sign.replace("+", ""), strict=True)))
    assert len(table.splitlines()) == 2 + len(signs.SHOWN) and table in page


def test_the_numbers_of_optimizers():
    rows, page = pd.read_csv(DOCS / "optimizers.csv"), " ".join((DOCS / "around_an_event.md").read_text().split())
    assert (rows.optimizers.str.count(",") + 1 == rows.number).all()
    tried = rows[rows["one weight reset"] != "not tried"]
    number = tried.groupby(["one weight reset", "all reset"]).number.sum()
    assert rows.library.nunique() == 9
    assert f"of {tried.number.sum()} optimizers of nine libraries {number['equal', 'equal']} always step as" in page
    assert f'{number["warned", "equal"]} do with `optimizer_state="all"`' in page
    assert f"and {number['warned', 'warned']} always warn." in page
    assert f"{rows.number.sum() - tried.number.sum()} more were not tried" in page


def test_the_tables_of_rejuvenation():
    runs, page = pd.read_csv(DOCS / "rejuvenation.csv"), (DOCS / "rejuvenation.md").read_text()
    assert (runs.groupby("method").seed.nunique() == 10).all()
    assert list(dict.fromkeys(runs.method)) == list(rejuvenation.ARMS)
    assert rejuvenation.table(runs) in page
    assert all(cell in page for cell in rejuvenation.differences(runs, rejuvenation.PARTS))
