"""Names from a file, safe to print."""


def printable(text: str) -> str:
    r"""Escape control characters, which a terminal would obey: names in a checkpoint can be chosen by an attacker.

    Example:
        >>> printable("fc\x1b[2J.weight")
        'fc\\x1b[2J.weight'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
