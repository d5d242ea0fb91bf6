"""Each sentence of advice in docs/advice.yaml stands on its page, and agrees with the cells that it names."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "claims.py"))
ADVICE = yaml.safe_load((ROOT / "docs" / "advice.yaml").read_text())
ENTRIES = [(page, advice) for page, every in ADVICE.items() for advice in every]
COMPLETE = sorted(ADVICE.keys() - {"fire.md", "around_an_event.md", "which_scale.md"})  # with all of their bold words
SIDES = {"above", "below", "level", "ahead", "behind"}


def evidence_of(entry):
    """Return the value of an entry, and its 95 % interval if there is one."""
    entry = {"seeds": 5, **entry}
    if "quote" in entry:
        return SCRIPT["estimate"](entry)
    tables = [rows for rows in SCRIPT["tables"](SCRIPT["section"](entry["link"])) if entry["column"] in rows[0]]
    heads = [rows[0][0] for rows in tables]
    if "of" in entry:
        assert entry["of"] in heads, f"{entry['link']}: no table of {entry['of']!r}, there are {heads}"
        entry["table"] = heads.index(entry["of"]) + 1
    else:  # the first with the row
        found = [n for n, rows in enumerate(tables, 1) for row in rows if " ".join(row).startswith(f"{entry['row']} ")]
        assert found, f"{entry['link']}: no row {entry['row']!r}"
        entry["table"] = found[0]
    if "minus" in entry:
        return SCRIPT["estimate"](entry)
    text = SCRIPT["cell"](entry["link"], entry["row"], entry["column"], entry["table"])
    middle, *ends = SCRIPT["numbers"](text)[:3]
    return middle, tuple(ends) if len(ends) == 2 else None


def holds(entry):
    """Return whether the cells of an entry are as it says."""
    value, interval = evidence_of(entry)
    low, high = interval or (value, value)
    checks = {
        "above": lambda: low > entry["above"],
        "below": lambda: high < entry["below"],
        "level": lambda: low <= 0 <= high,
        "ahead": lambda: value > 0,
        "behind": lambda: value < 0,
    }
    digits = len(str(entry.get("about", 0)).partition(".")[2])
    rounded = abs(abs(value) - abs(entry.get("about", value))) <= 0.51 * 10.0**-digits
    assert SIDES & entry.keys(), entry
    return rounded and all(check() for side, check in checks.items() if side in entry)


def text_of(link):
    """Return a page or a section of it, without links and marks of Markdown."""
    return SCRIPT["plain"](re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", SCRIPT["section"](link)))


@pytest.mark.parametrize(
    ("page", "advice"), ENTRIES, ids=lambda value: value if isinstance(value, str) else value["says"][:40]
)
def test_advice_agrees_with_its_cells(page, advice):
    assert SCRIPT["plain"](advice["says"]) in text_of(page), f"{page} does not say {advice['says']!r}"
    assert advice["evidence"]
    wrong = [(entry, evidence_of(entry)) for entry in advice["evidence"] if not holds(entry)]
    assert not wrong


@pytest.mark.parametrize("page", COMPLETE)
def test_all_advice_in_bold_is_covered(page):
    """Tables aside, what a page sets in bold is its advice."""
    prose = "\n".join(line for line in SCRIPT["section"](page).splitlines() if not line.startswith("|"))
    for words in re.findall(r"\*\*(.+?)\*\*", prose, re.DOTALL):
        words = SCRIPT["plain"](re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)).rstrip(":")
        said = [SCRIPT["plain"](advice["says"]) for advice in ADVICE[page]]
        assert words == "Not known" or any(words in one or one.rstrip(":") in words for one in said), words


CELL = {"link": "which_layers.md", "of": "method", "row": "fire_procrustes_hidden_last", "column": "random labels"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"minus": "fire_procrustes_all", "above": 0},
        {"minus": "fire_procrustes_all", "ahead": True},
        {"minus": "fire_procrustes_all", "level": True},
        {"minus": "fire_procrustes_all", "below": 0, "about": 12},
    ],
)
def test_wrong_advice_is_found(wrong):
    assert holds(CELL | {"minus": "fire_procrustes_all", "below": 0, "about": -22})
    assert not holds(CELL | wrong)
