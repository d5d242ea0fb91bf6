"""Names from a file, safe to print."""


def printable(text: str) -> str:
    r"""Escape control characters, which a terminal would execute: an attacker can choose the names in a checkpoint.

    Example:
        >>> printable("fc\x1b[2J.weight")
        'fc\\x1b[2J.weight'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
