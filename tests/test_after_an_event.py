"""The example of accuracy right after an event, shortened."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "after_an_event.py"


@pytest.mark.slow
def test_the_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["after_an_event.py", "--seeds", "1", "--steps", "180"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in capsys.readouterr().out.splitlines()]
    table = {(row[0], row[1]): [float(cell or "nan") for cell in row[2:]] for row in rows[2:]}
    assert len(table) == 10
    for network in ("with BatchNorm", "without BatchNorm"):
        none, fire, procrustes = (table[network, name] for name in ("no event", "FIRE", 'FIRE, scale="procrustes"'))
        assert none[0] > 60
        assert fire[0] < procrustes[0] - 5  # right after; closer to no event
    assert table["with BatchNorm", "FIRE"][1] > table["with BatchNorm", "FIRE"][0] + 10
