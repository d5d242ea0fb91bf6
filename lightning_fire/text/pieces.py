"""Texts in pieces: long documents are never in memory as a whole, and where they are cut the tokens stay the same."""

import hashlib
from typing import NamedTuple

PIECE = 1 << 18
"""Length of the longest piece: bytes of a file, characters of a row of a data set."""

Position = tuple[int, ...]
"""Place in a text, which only the source of the text understands."""


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
        text: The part.
        split: `train` or `val`.
        ends: Whether it is the last of its document.
        following: Where the next one begins.
    """

    text: str
    split: str
    ends: bool
    following: Position


def cut(text: str) -> int:
    """Tell where to end a piece: at the last place where a tokenizer that splits words at spaces splits anyway.

    That is after the last line end that stands alone; without one before the last white space. There the pieces have
    the tokens that the text has as a whole, with the byte pair encodings of GPT-2 and its successors.

    Example:
        >>> text = "one two\\nthree four"
        >>> text[: cut(text)], "no lines"[: cut("no lines")], cut("oneword")
        ('one two\\n', 'no', 7)
    """
    at = len(text) - 1
    while (at := text.rfind("\n", 1, at)) > 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
    for at in range(len(text) - 1, 0, -1):
        if text[at].isspace() and not text[at - 1].isspace():
            return at
    return len(text)


def held_out(seed: int, document: int, share: float) -> bool:
    """Tell whether a document is for validation: a pure function of seed and number."""
    return draw(seed, document) < share


def draw(seed: int, document: int) -> float:
    """Return a number in [0, 1), evenly distributed: documents with one below the share are held out."""
    digest = hashlib.blake2b(f"{seed}:{document}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)
