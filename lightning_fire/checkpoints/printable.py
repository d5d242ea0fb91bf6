"""Names from a file, shown to people."""


def printable(text: str) -> str:
    r"""Escape what a terminal would obey: whoever wrote a checkpoint chose the names in it.

    Args:
        text: Lines of text.

    Example:
        >>> printable("fc\x1b[2J.weight")
        'fc\\x1b[2J.weight'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
