"""Names from a file, safe to print, and numbers that JSON has."""

import math
from collections.abc import Mapping
from typing import Any


def printable(text: str) -> str:
    r"""Escape control characters, which a terminal would execute: an attacker can choose the names in a checkpoint.

    Example:
        >>> printable("fc\x1b[2J.weight")
        'fc\\x1b[2J.weight'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def without_nan(thing: Any) -> Any:
    """Return nested lists and dicts with None instead of NaN and Inf, which JSON lacks.

    Example:
        >>> without_nan({"loss": [0.5, float("nan")]})
        {'loss': [0.5, None]}
    """
    if isinstance(thing, Mapping):
        return {key: without_nan(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [without_nan(value) for value in thing]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing
