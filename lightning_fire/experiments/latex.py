"""Tables of results in LaTeX."""

import re
from collections.abc import Sequence

_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
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


def as_latex(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, its first row the header, as a `tabular` of the package booktabs.

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
    head, *body = (" & ".join(map(_cell, row)) + r" \\" for row in rows)
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [
        f"\\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    escaped = "".join(_SIGNS.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.,=+-])([+-])(?=\d)", r"$\1$", escaped)
