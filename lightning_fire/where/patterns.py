"""Names of a model's weights, narrowed by regular expressions."""

import re
from collections.abc import Sequence


class ByName:
    """Selects by name: one is taken if some pattern of `include` (if given) matches it, and none of `exclude` does.

    Args:
        include: Regular expressions, searched in the names; default: every name is taken.
        exclude: Likewise, to leave out.

    Raises:
        ValueError: If one of them is no list of regular expressions.
    """

    def __init__(self, include: list[str] | None = None, exclude: list[str] | None = None):
        self.include, self.exclude = _patterns("include", include), _patterns("exclude", exclude)

    def __repr__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def refusal(self, name: str) -> str:
        """Say why a name is not taken; empty if it is.

        Args:
            name: The name.
        """
        if self.include is not None and not any(re.search(pattern, name) for pattern in self.include):
            return "not included"
        return "excluded" if any(re.search(pattern, name) for pattern in self.exclude or ()) else ""

    def check(self, names: Sequence[str], thing: str = "weight") -> None:
        """Refuse patterns that match nothing: they are misspelt.

        Args:
            names: All names there are.
            thing: What they are names of.

        Raises:
            ValueError: Names the pattern, and what there is.
        """
        for argument in ("include", "exclude"):
            for pattern in getattr(self, argument) or ():
                if not any(re.search(pattern, name) for name in names):
                    raise ValueError(
                        f"`{argument}` has {pattern!r}, which matches no {thing}; there are: {some(names) or 'none'}"
                    )


def some(items: Sequence[str], separator: str = ", ", most: int = 8) -> str:
    """Join the first few items, and say how many more there are.

    Args:
        items: The items.
        separator: Between them.
        most: How many to name.
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


def _patterns(argument: str, patterns: list[str] | None) -> list[str] | None:
    if isinstance(patterns, str):  # its letters would be taken for patterns
        raise ValueError(f"`{argument}` must be a list of regular expressions, got the string {patterns!r}")
    for pattern in patterns or ():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"`{argument}` has {pattern!r}, which is no regular expression: {error}") from error
    return None if patterns is None else list(patterns)
