"""Tables in LaTeX."""

import re

from history import HISTORY, IDLE, named

from lightning_fire.experiments.chunks import ChunkReport
from lightning_fire.experiments.tables import as_latex


def test_special_characters_are_escaped():
    rows = [["a & b", "50 %"], ["$x_1$ #{~^\\\\}", "-0.1 (-0.2 to +0.3)"]]
    _, _, head, _, row, *_ = as_latex(rows).splitlines()
    assert head == r"a \& b & 50 \% \\"
    name, value = row.split(" & ")
    assert name == r"\$x\_1\$ \#\{\textasciitilde{}\textasciicircum{}\textbackslash{}\textbackslash{}\}"
    assert value == r"$-$0.1 ($-$0.2 to $+$0.3) \\"


def test_the_tables_of_a_comparison_are_ascii_and_rectangular():
    """Names such as `fire,steps=5` keep their signs."""
    report = ChunkReport(named({"vanilla": {0: IDLE}, "fire,steps=5": {0: HISTORY, 1: HISTORY}}), "vanilla")
    for table in report.tables():
        text = as_latex(table)
        assert text.isascii() and "fire,steps=5 & " in text
        assert {len(re.split(r"(?<!\\\\)&", line)) for line in text.splitlines() if "&" in line} == {len(table[0])}
