"""The claims of docs/claims.md and the table of docs/report.md, from docs/claims.yaml and numbers on other pages.

python docs/claims.py   # writes them
"""

import argparse
import math
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

import yaml
from scipy.stats import t

ROOT = Path(__file__).parents[1]
PAGE, REPORT, DATA = (ROOT / "docs" / name for name in ("claims.md", "report.md", "claims.yaml"))
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
BEGIN, END = "<!-- written by docs/claims.py -->\n", "<!-- end -->"
SIGNS = {"confirmed": "✓", "refuted": "✗", "undecided": "?"}
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
BESIDE = "·"  # of a measurement that does not count
Interval = tuple[float, float]


def plain(text: str) -> str:
    """Return a text with a hyphen for each minus sign, without marks of Markdown and double spaces."""
    return " ".join(re.sub(r"[*`]", "", text.replace("−", "-")).split())


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def section(link: str) -> str:
    """Return the text of the section that `page.md#anchor` names, with those below it; without an anchor the page."""
    page, _, anchor = link.partition("#")
    text = (ROOT / "docs" / page).read_text()
    if not anchor:
        return text
    prose = BLOCK.sub(lambda block: " " * len(block[0]), text)
    headings = [(found.start(), len(found[1]), slug(found[2])) for found in HEADING.finditer(prose)]
    for number, (start, level, own) in enumerate(headings):
        if own == anchor:
            ends = (end for end, other, _ in headings[number + 1 :] if other <= level)
            return text[start : next(ends, len(text))]
    raise ValueError(f"there is no heading {link}")


def tables(text: str) -> Iterator[list[list[str]]]:
    """Return the tables of a text as rows of cells, the header first; all rows of those that tables.py writes."""
    parts = TABLES["MARKED"].split(text)  # text, and the three groups of each match
    for prose, table in zip_longest(parts[::4], parts[2::4]):
        yield from tables_in(prose)
        if table:
            yield [[plain(cell) for cell in row] for row in TABLES["full"](yaml.safe_load(table))]


def tables_in(prose: str) -> Iterator[list[list[str]]]:
    """Return the tables of a text in Markdown, or as `compare` prints them."""
    lines = prose.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"\|[-:| ]+\||─+", line):
            body = takewhile(lambda row: row.strip() and not row.startswith("```"), lines[number + 1 :])
            rows = [row.strip("|") for row in (lines[number - 1], *body)]
            yield [[plain(cell) for cell in re.split(r"\|" if "|" in row else " {2,}", row.strip())] for row in rows]


def cell(link: str, row: str, column: str, table: int) -> str:
    """Return the cell of the row that begins with some words, in the n-th table of a section that has the column."""
    found = [rows for header, *rows in tables(section(link)) if column in header]
    headers = [header for header, *_ in tables(section(link)) if column in header]
    for cells in found[table - 1] if len(found) >= table else []:
        if " ".join(cells).startswith(f"{row} "):
            return cells[headers[table - 1].index(column)]
    raise ValueError(f"{link}: there is no row {row!r} in a table {table} with a column {column!r}")


def numbers(text: str) -> list[float]:
    """Return all numbers of a text."""
    return [float(number) for number in re.findall(r"(?<![\d.])[-+]?\d+(?:\.\d+)?", plain(text))]


def estimate(entry: Mapping[str, Any]) -> tuple[float, Interval | None]:
    """Measured value of an entry, and its 95 % interval, which a row without spread does not have.

    Read from the page: an interval that stands there; differences of the same seed, by Student's t; or two means with
    standard deviations, by Welch's t.
    """
    link, seeds = entry["link"], entry["seeds"]
    if "quote" in entry:
        if plain(entry["quote"]) not in plain(section(link)):
            raise ValueError(f"{link} does not say {entry['quote']!r}")
        values = numbers(entry["quote"])
        if " to " in entry["quote"]:
            return values[-3], (values[-2], values[-1])
        middle = sum(values) / len(values)
        spread = math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))
        return middle, around(middle, spread, len(values) - 1)
    column, table = entry["column"], entry.get("table", 1)
    first = numbers(cell(link, entry["row"], column, table))
    if "minus" not in entry:
        return first[0], (first[1], first[2])
    other = numbers(cell(link, entry["minus"], column, table))
    if len(first) < 2 or len(other) < 2:
        return first[0] - other[0], None
    parts = [first[1] ** 2 / seeds, other[1] ** 2 / seeds]
    freedom = sum(parts) ** 2 / sum(part**2 for part in parts) * (seeds - 1)
    return first[0] - other[0], around(first[0] - other[0], math.sqrt(sum(parts)), freedom)


def around(middle: float, error: float, freedom: float) -> Interval:
    """Return the 95 % Student-t interval."""
    half = float(t.ppf(0.975, freedom)) * error
    return middle - half, middle + half


def outcome(entry: Mapping[str, Any]) -> str:
    """Return the status of a claim by one entry, by the rule on the page."""
    if "holds" in entry:
        return "confirmed" if entry["holds"] else "refuted"
    interval = estimate(entry)[1]
    if interval is None:
        return "undecided"
    low, high = interval
    if "within" in entry:
        least, most = -entry["within"], entry["within"]
    elif "above" in entry:
        least, most = entry["above"], math.inf
    else:
        least, most = -math.inf, entry["below"]
    return "confirmed" if least < low and high < most else "refuted" if high < least or low > most else "undecided"


def counted(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the measurements of a claim that decide its status: all but those beside it."""
    return [entry for entry in claim.get("evidence", []) if not entry.get("beside")]


def status(claim: Mapping[str, Any]) -> str:
    """Return the status of a claim, by the rule on the page."""
    parts: dict[str, set[str]] = {}
    for entry in counted(claim):
        parts.setdefault(entry.get("part", ""), set()).add(outcome(entry))
    if any(outcomes == {"refuted"} for outcomes in parts.values()):
        return "refuted"
    outcomes = set().union(*parts.values())
    return "untried" if not outcomes else "confirmed" if outcomes == {"confirmed"} else "undecided"


def shown(entry: Mapping[str, Any]) -> str:
    """Return an entry as a line of the list."""
    link = entry["link"] if entry["link"].partition("#")[0].endswith(".md") else f"../{entry['link'].split('::')[0]}"
    part = f"({entry['part']}) " if "part" in entry else ""
    text = f"{BESIDE if entry.get('beside') else SIGNS[outcome(entry)]} {part}[{entry['scale']}]({link})"
    if "holds" in entry:
        return f"{text}: {entry['what']}"
    middle, interval = estimate(entry)
    digits = 0 if abs(middle) >= 10 else 1 if abs(middle) >= 1 or entry.get("unit") == "points" else 3
    ends = f"{interval[0]:+.{digits}f} to {interval[1]:+.{digits}f}" if interval else "no interval"
    value = f"{middle:+.{digits}f} ({ends})".replace("-", "−")
    return f"{text}, n = {entry['seeds']}: {entry['what']} {value}"


def written(claims: list[dict[str, Any]]) -> str:
    """Return the totals, and a section for each claim with its measurements, as Markdown."""
    count = Counter(map(status, claims))
    totals = ", ".join(f"{count[name]} {name}" for name in ("confirmed", "refuted", "undecided", "untried"))
    parts = [f"{len(claims)} claims: {totals}."]
    for number, claim in enumerate(claims, 1):
        lines = [f"- {line}" for line in map(shown, claim.get("evidence", []))]
        note = [f"\n{claim['note']}."] if "note" in claim else []
        told = (
            f'<a id="claim-{number}"></a>\n\n## {number}: {status(claim)}\n\n**{claim["claim"]}** ({claim["source"]}).'
        )
        parts.append("\n".join([told, *([""] if lines else []), *lines, *note]))
    return "\n\n".join(parts) + "\n"


def counts(claims: list[dict[str, Any]]) -> str:
    """Return the table of statuses with the number of measurements for and against each claim, as Markdown."""
    rows = ["| | the paper says | status | ✓ | ✗ | ? |", "|--:|---|---|--:|--:|--:|"]
    for number, claim in enumerate(claims, 1):
        outcomes = Counter(map(outcome, counted(claim)))
        cells = (str(outcomes[name] or "") for name in SIGNS)
        link = f"[{number}](claims.md#claim-{number})"
        rows.append(f"| {link} | {claim['claim']} | {status(claim)} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def pages() -> dict[Path, str]:
    """Return the pages as they should be."""
    claims = yaml.safe_load(DATA.read_text())
    found = {}
    for path, table in ((PAGE, written(claims)), (REPORT, counts(claims))):
        head, rest = path.read_text().split(BEGIN)
        found[path] = head + BEGIN + table + END + rest.split(END)[1]
    return found


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in pages().items():
        path.write_text(text)
