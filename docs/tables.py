"""The tables of the pages, from the files in docs/results.

python docs/tables.py           # writes them into the pages
python docs/tables.py --check   # only names the pages that are not up to date

A table stands in a page between a comment that describes it and `<!-- end -->`:

    <!-- table {file: results/streams.csv, where: {stream: random labels}, rows: [fire], columns: [method, ...]} -->

`where` chooses lines of the file, `rows` (by how they begin) and `columns` what is shown of them, all by default. The
headings are what the file has in `column`, or in the column `across`; `head` renames the first. claims.py reads all
that `where` chooses, shown or not.

A file has one number a line: first of what it is, in columns with names of their own, then `column` (its heading),
`value`, `sd` (standard deviation over the seeds), `low` and `high` (95 % interval of a difference) and `seeds`. A file
without `column` has cells as they are shown.
"""

import argparse
import csv
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parent
MARKED = re.compile(r"(<!-- table (\{.*?\}) -->).*?(<!-- end -->)", re.DOTALL)
NUMBER = ("column", "value", "sd", "low", "high", "seeds")
CODE = {"method", "script"}  # columns whose cells are set as code
NUMERIC = re.compile(r"[-+×]? ?\d")  # such columns are to the right
MISSING = "–"


@cache
def lines_of(name: str) -> list[dict[str, str]]:
    """The lines of a file in docs."""
    with (DOCS / name).open() as file:
        return list(csv.DictReader(file))


def cell(line: Mapping[str, str]) -> str:
    """Number as it is shown: a difference with its sign and interval, others with their standard deviation if known."""
    value, sd, low, high = (line[name] for name in ("value", "sd", "low", "high"))
    if low:
        value, low, high = (text if text.startswith("-") else f"+{text}" for text in (value, low, high))
        return f"{value} ({low} to {high})"
    return f"{value} ± {sd}" if sd else value


def read(table: Mapping[str, Any]) -> list[list[str]]:
    """All rows of cells that `file` and `where` choose, the header first."""
    where = {name: str(value) for name, value in table.get("where", {}).items()}
    lines = [line for line in lines_of(table["file"]) if all(line[name] == value for name, value in where.items())]
    if not lines:
        raise ValueError(f"{table['file']} has no line with {where}")
    across = table.get("across", "column")
    keys = [name for name in lines[0] if name not in {*where, across, *(NUMBER if "column" in lines[0] else ())}]
    columns = list(dict.fromkeys(line[across] for line in lines if across in line))
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for line in lines:
        row = rows.setdefault(tuple(line[key] for key in keys), {})
        if columns:
            row[line[across]] = cell(line)
    body = [[text or MISSING for text in (*key, *(row.get(name, "") for name in columns))] for key, row in rows.items()]
    return [[*keys, *columns], *body]


def full(table: Mapping[str, Any]) -> list[list[str]]:
    """The same, with the first heading as the page has it."""
    (first, *head), *rows = read(table)
    return [[table.get("head", first), *head], *rows]


def shown(table: Mapping[str, Any]) -> str:
    """The chosen rows and columns in Markdown; nothing if `rows` is empty."""
    head, *rows = read(table)
    if "rows" in table:
        found = [[row for row in rows if f"{' '.join(row)} ".startswith(f"{name} ")] for name in table["rows"]]
        if not all(found):
            raise ValueError(f"{table['file']}: there are no rows {table['rows']}, but {[row[0] for row in rows]}")
        rows = [row for each in found for row in each]
    if not rows:
        return ""
    chosen = [head.index(str(name)) for name in table.get("columns", head)]
    rows = [[f"`{text}`" if name in CODE else text for name, text in zip(head, row, strict=True)] for row in rows]
    head = full(table)[0]
    sides = ["--:" if n and any(NUMERIC.match(row[n]) for row in rows) else "---" for n in chosen]
    lines = [[head[n] for n in chosen], *([row[n] for n in chosen] for row in rows)]
    heading, *body = (f"| {' | '.join(line)} |\n" for line in lines)
    return "".join(["\n", heading, f"|{'|'.join(sides)}|\n", *body])


def written(page: str) -> str:
    """The text of a page with its tables."""
    return MARKED.sub(lambda found: found[1] + shown(yaml.safe_load(found[2])) + found[3], page)


def main() -> None:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not up to date")
    check = parser.parse_args().check
    pages = [page for page in sorted(DOCS.glob("*.md")) if written(page.read_text()) != page.read_text()]
    for page in pages:
        print(f"{page.name}: {'not up to date' if check else 'written'}")
        if not check:
            page.write_text(written(page.read_text()))
    sys.exit(bool(check and pages))


if __name__ == "__main__":
    main()
