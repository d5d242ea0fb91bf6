"""Results of benchmarks and comparisons as tables in Markdown."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLOPS_A_TOKEN = 6 * 124e6 + 12 * 12 * 768 * 1024  # GPT-2 124M, blocks of 1024, forward and backward, as nanoGPT counts
PEAK = {"A100": 312e12, "H100": 989e12, "H200": 989e12}  # operations a second, bf16, dense
NOTES = {
    "event_cost": "The paper, TITAN RTX: FIRE 0.06 s, 55 MB; S&P 0.002 s, 27 MB; DASH (all batches) 69 s, 2834 MB.",
}


def of_benchmark(path: Path) -> str:
    """Return the tables of a benchmark from the file of its `--json`; of GPT-2 with the fraction of the card's peak."""
    result = json.loads(path.read_text())
    device = str(result.get("device"))
    peak = next((flops for card, flops in PEAK.items() if card in device), None)
    named = result.get("nets") or {"": result.get("models") or result.get("medians") or result.get("ways") or {}}
    parts = []
    for net, rows in named.items():
        if net == "gpt-2" and peak:
            rows = {way: {**row, "MFU": row["tokens_a_second"] * FLOPS_A_TOKEN / peak} for way, row in rows.items()}
        parts += [f"## {path.stem} {net}".rstrip(), f"`{result.get('command')}`, {device}", markdown(rows)]
    return "\n\n".join([*parts, *([NOTES[path.stem]] if path.stem in NOTES else [])]) + "\n"


def of_comparison(folder: Path) -> str:
    """Return the table of `lightning-fire compare` from its folder."""
    printed = [line for line in (folder / "table.txt").read_text().splitlines() if line.strip()]
    head, _, *rows = (re.split(" {2,}", line.strip()) for line in printed)
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return f"## {folder.name}\n\n" + "\n".join(lines) + "\n"


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return rows of numbers as a table; memory in MB, ranges with a dash."""
    keys = list(dict.fromkeys(key for row in rows.values() for key in row))
    lines = [f"| | {' | '.join('MB' if key == 'bytes' else key for key in keys)} |", f"|---|{'--:|' * len(keys)}"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(_text(key, row[key]) if key in row else '–' for key in keys)} |")
    return "\n".join(lines)


def _text(key: str, value: Any) -> str:
    if isinstance(value, list):
        return " – ".join("×".join(map(str, part)) if isinstance(part, list) else _text(key, part) for part in value)
    if key == "bytes":
        return f"{value / 1e6:.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
