"""Tables and figures for a paper."""

import csv
import re

from history import HISTORY, IDLE, named

from lightning_fire.experiments.chunks import ChunkReport
from lightning_fire.experiments.figures import draw, relabelled
from lightning_fire.experiments.tables import FORMATS, as_latex


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


def test_a_table_is_printed_in_each_format_with_the_labels_given(tmp_path, capsys):
    report = ChunkReport(named({"vanilla": {0: IDLE}, "fire": {0: HISTORY, 1: HISTORY}}), "vanilla")
    report.labels = {"vanilla": "continue_", "fire": "FIRE (a|b), 100 %"}
    printed = {}
    for form in FORMATS:
        report.publish(tmp_path, "title", form=form)
        printed[form] = capsys.readouterr().out
    assert r"FIRE (a|b), 100 \% & 2 & 0.600" in printed["latex"] and r"minus continue\_ (95 \%)" in printed["latex"]
    assert r"| FIRE (a\|b), 100 % | 2 | 0.600" in printed["markdown"]
    rows = list(csv.reader(printed["csv"].strip().split("\n\n")[0].splitlines()))
    assert rows[2][:2] == ["FIRE (a|b), 100 %", "2"] and {len(row) for row in rows} == {len(rows[0])}
    assert "FIRE (a|b), 100 %  2" in printed["text"]


def test_figures_are_equal_bytes_in_each_form_with_the_labels_given(tmp_path):
    report = ChunkReport(named({"vanilla": {0: IDLE}, "fire": {0: HISTORY}}), "vanilla")
    panels = [relabelled(panel, {"fire": "ours"}) for panel in report.panels()]
    assert [list(panel.curves) for panel in panels] == 2 * [["vanilla", "ours"]]
    assert panels[0].labels["ours"] == "ours  0.800"
    for form, begin in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        for name in ("one", "other"):
            draw(panels, tmp_path / f"{name}.{form}", "my title", form=form)
        one, other = ((tmp_path / f"{name}.{form}").read_bytes() for name in ("one", "other"))
        assert one == other and one.startswith(begin)
