"""The file of a row."""

import json
import math
from dataclasses import replace

import pytest

from lightning_fire.board.row import Cell, Row, read_row, read_rows, write_row

CELL = Cell(
    {0: 0.5, 1: math.nan},
    {0: 0.25},
    {0: 0.75},
    {"strength": 0.1},
    {"strength=0.1": 0.4},
    [(0.1, math.nan)],
    2.5,
    "abc",
    "def",
)
ROW = Row("mine", {"method": {"class_path": "mine.Mine"}}, {"task": replace(CELL, versions={"torch": "2"})})


def test_a_row_is_read_as_it_was_written(tmp_path):
    write_row(tmp_path / "rows" / "mine.json", ROW)
    read = read_rows(tmp_path / "rows")["mine"]
    assert math.isnan(read.cells["task"].values.pop(1)) and math.isnan(ROW.cells["task"].values[1])
    assert read.cells["task"].values == {0: 0.5}
    assert (read.method, read.config) == ("mine", ROW.config)
    cell = read.cells["task"]
    assert (cell.setting, cell.seconds, cell.source, cell.versions) == ({"strength": 0.1}, 2.5, "def", {"torch": "2"})
    assert cell.curve[0][0] == 0.1 and math.isnan(cell.curve[0][1])


def test_the_file_is_json_that_any_program_reads(tmp_path):
    write_row(tmp_path / "mine.json", ROW)

    def refuse(word):
        raise AssertionError(word)

    json.loads((tmp_path / "mine.json").read_text(), parse_constant=refuse)  # called for NaN and Infinity


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": {"a": {"values": 3}}}', '{"cells": {}, "more": 1}'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "row.json").write_text(text)
    with pytest.raises(ValueError, match="is not a row of the board"):
        read_row(tmp_path / "row.json")
