"""Tables for people."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align the cells of a table.

    Args:
        rows: Rows of equally many cells, the first of them the head.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
