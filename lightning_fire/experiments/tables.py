"""Tables of results: cells, aligned text, Markdown, LaTeX and CSV, and their files."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from lightning_fire.atomic import atomic_file
from lightning_fire.experiments.statistics import difference

Table = Sequence[Sequence[str]]  # rows of cells; the first is the header
_SIGNS = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "−": "$-$",
    "–": "--",
    "‖": r"$\Vert$",
    "²": "$^2$",
    "ᵀ": r"$^\top$",
    "λ": r"$\lambda$",
}


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    there = [value for value in values if not np.isnan(value)]
    return float(np.mean(there)) if there else float("nan")


def number(value: float, digits: int = 3) -> str:
    """Format a number; NaN as a dash."""
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def with_spread(values: Sequence[float], digits: int = 3) -> str:
    """Format mean and standard deviation (n - 1); a single value has none."""
    known = len(values) > 1 and not np.isnan(values).any()
    spread = f" ± {number(float(np.std(values, ddof=1)), digits)}" if known else ""
    return number(mean(values), digits) + spread


def when_reached(values: Sequence[float], digits: int = 0) -> str:
    """Format the mean of finite values (Inf: not reached), and their number if not all are."""
    known = [value for value in values if not np.isnan(value)]
    there = [value for value in known if np.isfinite(value)]
    if not there:
        return "never" if known else "–"
    return number(mean(there), digits) + ("" if there == known else f" ({len(there)} of {len(known)})")


def difference_cell(values: Mapping[int, float], reference: Mapping[int, float], digits: int = 3) -> str:
    """Format the `difference` to a reference: `0` if all seeds equal it, a dash with fewer than two finite pairs."""
    middle, low, high = difference(values, reference)
    if np.isnan(middle):
        return "–"
    return "0" if low == high == 0 else f"{middle:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def aligned(rows: Table) -> str:
    """Align the cells of a table, with a line under its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])


def as_latex(rows: Table) -> str:
    """Format a table as a `tabular` of the package booktabs.

    Example:
        >>> print(as_latex([["method", "final (95 %)"], ["full_reset", "-0.1 ± 0.2"]]))
        \\begin{tabular}{lr}
        \\toprule
        method & final (95 \\%) \\\\
        \\midrule
        full\\_reset & $-$0.1 $\\pm$ 0.2 \\\\
        \\bottomrule
        \\end{tabular}
    """

    def cell(text: str) -> str:
        escaped = "".join(_SIGNS.get(sign, sign) for sign in text)
        return re.sub(r"(?<![\w.,=+-])([+-])(?=\d)", r"$\1$", escaped)

    head, *body = (" & ".join(map(cell, row)) + r" \\" for row in rows)
    begin = f"\\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])


def as_markdown(rows: Table) -> str:
    """Format a table for Markdown.

    Example:
        >>> print(as_markdown([["method", "a|b"], ["fire", "0.5"]]))
        | method | a\\|b |
        |---|--:|
        | fire | 0.5 |
    """
    head, *body = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return "\n".join([head, f"|---{'|--:' * (len(rows[0]) - 1)}|", *body])


def as_csv(rows: Table) -> str:
    """Format a table as comma-separated values.

    Example:
        >>> print(as_csv([["method", "final, mean"], ["fire", "0.5"]]))
        method,"final, mean"
        fire,0.5
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().rstrip("\n")


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "text": aligned,
    "latex": as_latex,
    "csv": as_csv,
    "markdown": as_markdown,
}


def figures(name: str, figure: Callable[..., None]) -> dict[str, Callable[[Path], None]]:
    """Return functions that write a figure as PNG, SVG and PDF, by file name."""
    return {f"{name}.{form}": partial(figure, form=form) for form in ("png", "svg", "pdf")}


def deliver(
    output: Path,
    tables: Sequence[Table],
    files: Mapping[str, Callable[[Path], object]],
    note: str,
    name: str = "table",
    form: str = "text",
) -> None:
    """Print tables in one of the `FORMATS`; write them as text and LaTeX, and other files; print a note and paths."""
    printed, text, latex = ("\n\n".join(map(FORMATS[to], tables)) for to in (form, "text", "latex"))
    print(f"\n{printed}\n")
    texts = {f"{name}.txt": f"{text}\n", f"{name}.tex": f"% \\usepackage{{booktabs}}\n{latex}\n"}
    for file, content in texts.items():
        with _whole_file(output / file) as part:
            part.write_text(content, encoding="utf-8")
    for file, write in files.items():
        with _whole_file(output / file) as part:
            write(part)
    print(note)
    kinds = {Path(file).suffix: output / file for file in reversed([*files, f"{name}.tex"])}
    for what, endings in {"figure": [".png"], "for papers": [".pdf", ".svg", ".tex"], "every run": [".csv"]}.items():
        if there := [str(kinds[ending]) for ending in endings if ending in kinds]:
            print(f"{what + ':':12} {', '.join(there)}")


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    try:
        with atomic_file(path) as part:
            yield part
    except OSError as error:
        reason = error if error.errno is None else error.strerror
        raise SystemExit(f"{path} cannot be written: {reason}. The same command writes it, without training.") from None
