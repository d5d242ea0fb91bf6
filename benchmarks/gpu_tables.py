"""Results of `benchmarks/gpu.py` as tables in Markdown.

python benchmarks/gpu_tables.py [FOLDER]            # prints them; default: benchmarks/gpu
python benchmarks/gpu_tables.py FOLDER --write      # puts that of an event into docs/speed.md
"""

import argparse
import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "speed.md"
BEGIN, END = "<!-- tables of benchmarks/gpu_tables.py -->\n", "<!-- end of the tables -->\n"
ON_THE_PAGE = {"event_cost"}
FLOPS_A_TOKEN = 6 * 124e6 + 12 * 12 * 768 * 1024  # GPT-2 124M, blocks of 1024, forward and backward, as nanoGPT counts
PEAK = {"A100": 312e12, "H100": 989e12, "H200": 989e12}  # operations a second, bf16, dense
TRAINED = ", 1.6e4, float32"  # about the condition of trained weights: the others are left to the file
HEADS = {"bytes": "MB", "share_of_the_loops_speed": "fraction of the loop's speed"}
NOTES = {
    "exact_cost": "float64, other conditions and half of the rank are in the file.",
    "event_cost": "The paper, TITAN RTX: FIRE 0.06 s, 55 MB; S&P 0.002 s, 27 MB; DASH (all batches) 69 s, 2834 MB.",
}


def tables_of(folder: Path, names: Container[str] | None = None) -> str:
    """Return the tables of all results in a folder, or of those with some names."""
    paths = sorted([*folder.glob("*.json"), *folder.glob("*.xml")])
    return "\n".join(of_result(path) for path in paths if names is None or path.stem in names)


def of_result(path: Path) -> str:
    """Return the tables of one result: of a benchmark from the file of its `--json`, or of tests from their XML."""
    return of_tests(path) if path.suffix == ".xml" else of_benchmark(path)


def of_tests(path: Path) -> str:
    """Numbers of tests that passed, failed and were skipped, and the names of those that failed."""
    suite = ElementTree.parse(path).getroot().find("testsuite")
    if suite is None:
        return ""
    failed = [
        case for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    number, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    counts = f"{number - skipped - len(failed)} passed, {skipped} skipped, {len(failed)} failed"
    names = [f"- failed: `{case.get('classname')}.{case.get('name')}`" for case in failed]
    return "\n".join([f"### {path.stem}\n", f"{counts}, in {float(suite.get('time', 0)):.0f} s.", *names, ""])


def of_benchmark(path: Path) -> str:
    """Return the tables of a benchmark; of GPT-2 with the fraction of the card's peak."""
    result = json.loads(path.read_text())
    device = str(result.get("device"))
    peak = next((flops for card, flops in PEAK.items() if card in device), None)
    rows_of = next((result[key] for key in ("models", "medians", "ways", "rows") if key in result), {})
    if path.stem == "exact_cost":
        rows_of = {name: row for name, row in rows_of.items() if TRAINED in name}
    named = result.get("nets") or {"": rows_of}
    parts = []
    for net, rows in named.items():
        if net == "gpt-2" and peak:
            rows = {way: {**row, "MFU": row["tokens_a_second"] * FLOPS_A_TOKEN / peak} for way, row in rows.items()}
        parts += [f"### {path.stem} {net}".rstrip(), f"`{result.get('command')}`, {device}", markdown(rows)]
    if misses := result.get("misses"):
        missed, number = (sum(each) for each in zip(*misses.values(), strict=True))
        kinds = ", ".join(f"{kind} {own} of {of}" for kind, (own, of) in misses.items())
        parts.append(f"Left to the singular value decomposition: {missed} of {number} matrices ({kinds}).")
    return "\n\n".join([*parts, *([NOTES[path.stem]] if path.stem in NOTES else [])]) + "\n"


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return rows of numbers as a table; memory in MB, ranges with a dash."""
    keys = list(dict.fromkeys(key for row in rows.values() for key in row))
    heads = [HEADS.get(key, key.replace("_", " ")) for key in keys]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'--:|' * len(keys)}"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(_text(key, row[key]) if key in row else '–' for key in keys)} |")
    return "\n".join(lines)


def _text(key: str, value: Any) -> str:
    if isinstance(value, list):
        return " – ".join("×".join(map(str, part)) if isinstance(part, list) else _text(key, part) for part in value)
    if key == "bytes":
        return f"{value / 1e6:.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def written(page: str, tables: str) -> str:
    """Return a page with other tables between its two marks."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}{tables}{END}{rest.split(END)[1]}"


def main() -> None:
    """Print, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER / "gpu")
    parser.add_argument("--write", action="store_true", help="into docs/speed.md")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), f"\n{tables_of(options.folder, ON_THE_PAGE)}\n"))
    else:
        print(tables_of(options.folder))


if __name__ == "__main__":
    main()
