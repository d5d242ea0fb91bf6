"""The tables of the pages are those of the files in docs/results, whose numbers agree with each other."""

import csv
import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPT = runpy.run_path(str(DOCS / "tables.py"))
MARKED = {page: SCRIPT["MARKED"].findall(page.read_text()) for page in sorted(DOCS.glob("*.md"))}
TABLES = [(page.stem, yaml.safe_load(table)) for page, found in MARKED.items() for _, table, _ in found]
FILES = sorted((DOCS / "results").glob("*.csv"))
REFERENCES = {  # of the column of differences: whose mean is subtracted, and which column has the means
    "streams": {"vanilla": "online, last", "full reset": "online, last"},
    "protocols": {"vanilla": "final accuracy"},
    "layers": {"vanilla": "accuracy", "reset_all": "accuracy"},
    "memory": {"full_reset": "accuracy"},
    "steps": {"fire_10": "accuracy"},
    "units": {"full_reset": "online, last", "redo": "online, last"},
    "one_pass": {"full_reset": "online, last"},
    "regression": {"full_reset": "online error, last"},
    "memory_of_texts": {"full_reset": "final loss"},
    "shuffled_labels": {"full reset": "online, last"},
    "months": {"continuing": "next month, %"},
}


def lines_of(name):
    with (DOCS / "results" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("page", [page for page, found in MARKED.items() if found], ids=lambda page: page.stem)
def test_a_page_is_up_to_date(page):
    assert SCRIPT["written"](page.read_text()) == page.read_text(), "run python docs/tables.py"


def test_every_file_is_of_a_table():
    assert {table["file"] for _, table in TABLES} >= {f"results/{path.name}" for path in FILES}


def test_what_a_table_leaves_out_is_linked_from_its_page():
    for page, table in TABLES:
        if {"rows", "columns"} & table.keys():
            assert f"]({table['file']})" in (DOCS / f"{page}.md").read_text(), f"{page}: {table['file']}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_intervals_hold_their_values(path):
    for line in lines_of(path.stem):
        if line.get("low"):
            assert float(line["low"]) <= float(line["value"]) <= float(line["high"]), line


@pytest.mark.parametrize("name", REFERENCES)
def test_differences_are_those_of_the_means(name):
    """Up to the rounding of the three numbers."""
    lines, checked = lines_of(name), 0
    keys = [key for key in lines[0] if key not in SCRIPT["NUMBER"]]
    values = {(*(line[key] for key in keys), line["column"]): line["value"] for line in lines}
    for line in lines:
        for reference, column in REFERENCES[name].items():
            other = {**line, "method": reference.replace(" ", "_"), "choice": reference}
            own, its = (values.get((*(of[key] for key in keys), column)) for of in (line, other))
            if line["column"] == f"minus {reference} (95 %)" and line["low"] and own and its:
                unit = 10.0 ** -len(line["value"].partition(".")[2])
                assert float(line["value"]) == pytest.approx(float(own) - float(its), abs=1.51 * unit), line
                checked += 1
    assert checked


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of two methods on two streams."""
    lines = ["stream,method,column,value,sd,low,high,seeds"]
    lines += ["a,x,mean,0.5,0.1,,,5", "a,y,mean,0.3,0.1,,,5", "b,x,mean,0.7,0.1,,,5"]
    lines += ["a,x,minus y (95 %),0.2,,-0.1,0.5,5"]
    (tmp_path / "file.csv").write_text("\n".join(lines))
    monkeypatch.setitem(SCRIPT["read"].__globals__, "DOCS", tmp_path)
    SCRIPT["lines_of"].cache_clear()
    yield {"file": "file.csv"}
    SCRIPT["lines_of"].cache_clear()


def test_rows_and_columns_of_a_table(file):
    whole = SCRIPT["read"]({**file, "where": {"stream": "a"}})
    assert whole == [
        ["method", "mean", "minus y (95 %)"],
        ["x", "0.5 ± 0.1", "+0.2 (-0.1 to +0.5)"],
        ["y", "0.3 ± 0.1", "–"],
    ]
    across = {**file, "where": {"column": "mean"}, "across": "stream", "head": "means", "rows": ["x"]}
    assert SCRIPT["shown"](across) == "\n| means | a | b |\n|---|--:|--:|\n| `x` | 0.5 ± 0.1 | 0.7 ± 0.1 |\n"
    assert SCRIPT["full"](across)[0] == ["means", "a", "b"]
    assert SCRIPT["shown"]({**across, "rows": []}) == ""
    assert SCRIPT["shown"]({**file, "where": {"stream": "a"}, "columns": ["method", "mean"]}).count("minus") == 0


def test_a_table_is_written_between_its_marks(file):
    mark = "<!-- table {file: file.csv, where: {stream: b}} -->"
    page = f"before\n{mark}old\n<!-- end -->\nafter"
    table = "\n| method | mean |\n|---|--:|\n| `x` | 0.7 ± 0.1 |\n"
    assert SCRIPT["written"](page) == f"before\n{mark}{table}<!-- end -->\nafter"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"where": {"stream": "c"}}, "has no line with"),
        ({"rows": ["z"]}, "there are no rows"),
        ({"columns": ["z"]}, "'z' is not in list"),
    ],
)
def test_what_a_file_lacks_is_an_error(file, table, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SCRIPT["shown"]({**file, **table})
