"""Iterator that gives back items."""

from collections import deque
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

_MODULES = {"builtins", "itertools", "torch.utils.data.dataloader"}  # others have attributes, or are open files


class Replayed(Iterator[Any]):
    """Iterator over another one that records the items drawn, until `rewound` puts them back."""

    def __init__(self, source: Iterator[Any]):
        self.source = source
        self.ahead: deque[Any] = deque()  # items put back
        self.drawn: list[Any] | None = []  # items since recording began; None: not recording

    def __next__(self) -> Any:
        item = self.ahead.popleft() if self.ahead else next(self.source)
        if self.drawn is not None:
            self.drawn.append(item)
        return item

    def rewound(self) -> Iterator[Any]:
        """Put the recorded items back and stop recording; return the source itself if no item is ahead of it."""
        self.ahead, self.drawn = deque([*(self.drawn or ()), *self.ahead]), None
        return self if self.ahead else self.source


def recorded(iterator: Iterator[Any]) -> Replayed:
    """Return an iterator over the items of another one that can be rewound to here.

    Example:
        >>> letters = recorded(iter("abc"))
        >>> next(letters), next(letters), list(letters.rewound())
        ('a', 'b', ['a', 'b', 'c'])
    """
    if isinstance(iterator, Replayed) and iterator.drawn is None:
        iterator.drawn = []
        return iterator
    return Replayed(iterator)


def is_iterator(value: object) -> bool:
    """Return whether a value is an iterator of Python or of a DataLoader, whose position cannot be copied."""
    if not hasattr(type(value), "__next__"):
        return False
    return isinstance(value, Replayed | GeneratorType) or type(value).__module__ in _MODULES
