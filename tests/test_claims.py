"""docs/claims.md is up to date with its data and the pages that it reads; links and statuses are right."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "claims.py"))
CLAIMS = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())
EVIDENCE = [entry for claim in CLAIMS for entry in claim.get("evidence", [])]
SECTION = re.compile(r"^## (\d+): (\w+)\n\n\*\*(.+?)\*\* \((.+?)\)\.\n(.*?)(?=^<)", re.MULTILINE | re.DOTALL)


def test_the_pages_are_up_to_date():
    for path, text in SCRIPT["pages"]().items():
        assert text == path.read_text(), "run python docs/claims.py"


def test_every_claim_has_a_section_with_its_status_by_the_rule():
    sections = SECTION.findall((ROOT / "docs" / "claims.md").read_text())
    assert [int(number) for number, *_ in sections] == list(range(1, 34))
    for (_, status, text, source, measured), claim in zip(sections, CLAIMS, strict=True):
        shown = re.findall(r"^- ([✓✗?·]) (?:\(([a-z])\) )?\[", measured, re.MULTILINE)
        assert (text, source, len(shown)) == (claim["claim"], claim["source"], len(claim.get("evidence", [])))
        parts = [{sign for sign, part in shown if part == name and sign != "·"} for name in {part for _, part in shown}]
        parts = [signs for signs in parts if signs]
        refuted, confirmed = {"✗"} in parts, all(signs == {"✓"} for signs in parts)
        assert status == (
            "untried" if not parts else "refuted" if refuted else "confirmed" if confirmed else "undecided"
        )


def test_the_readme_counts_the_statuses():
    counts = re.search(r"(\d+) claims: (\d+) confirmed, (\d+) refuted", (ROOT / "docs" / "claims.md").read_text())
    told = r"paper's (\d+) claims (\d+) are confirmed here,\s(\d+) are refuted"
    assert re.search(told, (ROOT / "README.md").read_text()).groups() == counts.groups()


@pytest.mark.parametrize("link", sorted({entry["link"] for entry in EVIDENCE}))
def test_links_exist(link):
    if ".py::" in link:
        path, name = link.split("::")
        assert f"def {name}(" in (ROOT / path).read_text()
    else:
        assert SCRIPT["section"](link)


def test_links_of_the_page_exist():
    for link in re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "claims.md").read_text()):
        assert SCRIPT["section"](link) if ".md" in link else (ROOT / "docs" / link).is_file()


def test_entries_have_what_they_need_and_no_more():
    for entry in EVIDENCE:
        keys = entry.keys() - {"scale", "link", "what", "unit", "table", "part", "beside"}
        sides = keys & {"above", "below", "within"}
        assert keys == {"holds"} or (
            len(sides) == 1 and keys - sides - {"minus"} in ({"seeds", "quote"}, {"seeds", "row", "column"})
        )


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with both kinds of table, and words with numbers."""
    text = """# Title
## A section: words, and more
| method | final | minus vanilla (95 %) |
|---|--:|--:|
| `vanilla` | 0.50 ± 0.10 | – |
| `fire` | 0.80 ± 0.10 | +0.3 (**+0.1** to +0.5) |

FIRE is ahead by
1.0, 2.0 and 3.0 points, and elsewhere by 2 (−1 to +5).

## Printed
```text
start  method   final
─────────────────────
best   vanilla  1.0
best   fire     0.4
```
"""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(text)
    monkeypatch.setitem(SCRIPT["section"].__globals__, "ROOT", tmp_path)
    return "page.md#a-section-words-and-more"


def test_estimates_are_read_from_the_page(page):
    """Welch: 4 and 4 seeds with equal spreads have 6 degrees of freedom, t = 2.447; three differences t = 4.303."""
    cell = {"link": page, "seeds": 4, "row": "fire"}
    assert SCRIPT["estimate"](cell | {"column": "minus vanilla (95 %)"}) == (0.3, (0.1, 0.5))
    middle, (low, high) = SCRIPT["estimate"](cell | {"column": "final", "minus": "vanilla"})
    assert (middle, low, high) == pytest.approx((0.3, 0.3 - 2.447 * 0.1 / 2**0.5, 0.3 + 2.447 * 0.1 / 2**0.5), abs=1e-4)
    quote = {"link": page, "seeds": 3, "quote": "FIRE is ahead by 1.0, 2.0 and 3.0 points"}
    middle, (low, high) = SCRIPT["estimate"](quote)
    assert (middle, low, high) == pytest.approx((2, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-3)
    assert SCRIPT["estimate"](quote | {"quote": "elsewhere by 2 (-1 to +5)"}) == (2, (-1, 5))
    printed = {"link": "page.md#printed", "seeds": 3, "row": "best fire", "minus": "best vanilla", "column": "final"}
    assert SCRIPT["estimate"](printed) == (pytest.approx(-0.6), None)


def test_what_is_not_on_the_page_is_an_error(page):
    cell = {"link": page, "seeds": 3, "row": "fire", "column": "minus vanilla (95 %)"}
    for wrong in ({"row": "dash"}, {"column": "first"}, {"table": 2}, {"link": "page.md#none"}):
        with pytest.raises(ValueError, match=r"page\.md"):
            SCRIPT["estimate"](cell | wrong)
    with pytest.raises(ValueError, match="does not say"):
        SCRIPT["estimate"]({"link": page, "seeds": 3, "quote": "ahead by 9.0, 2.0 and 3.0 points"})


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ({"above": 0}, "confirmed"),
        ({"above": 0.2}, "undecided"),
        ({"above": 0.6}, "refuted"),
        ({"below": 0}, "refuted"),
        ({"below": 0.6}, "confirmed"),
        ({"within": 0.6}, "confirmed"),
        ({"within": 0.3}, "undecided"),
        ({"within": 0.05}, "refuted"),
    ],
)
def test_statuses(page, side, expected):
    """The interval is 0.1 to 0.5."""
    entry = {"link": page, "seeds": 3, "row": "fire", "column": "minus vanilla (95 %)", **side}
    assert SCRIPT["outcome"](entry) == expected


def test_a_claim_is_undecided_where_settings_disagree():
    yes, no = {"holds": True}, {"holds": False}
    status = SCRIPT["status"]
    assert [status({"evidence": e}) for e in ([yes], [no, no], [yes, no])] == ["confirmed", "refuted", "undecided"]
    assert status({}) == "untried"


def test_a_claim_of_several_parts_is_refuted_with_one_of_them():
    status = SCRIPT["status"]

    def evidence(**parts):
        return {"evidence": [{"part": part, "holds": holds} for part, each in parts.items() for holds in each]}

    assert status(evidence(a=[True, True], b=[False])) == "refuted"
    assert status(evidence(a=[True, True], b=[True, False])) == "undecided"
    assert status(evidence(a=[True], b=[True])) == "confirmed"


def test_a_measurement_beside_a_claim_does_not_count():
    beside = {"holds": False, "beside": True}
    assert SCRIPT["status"]({"evidence": [{"holds": True}, beside]}) == "confirmed"
    assert SCRIPT["status"]({"evidence": [beside]}) == "untried"
