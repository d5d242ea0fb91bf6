"""Strict YAML: duplicate keys are an error, where YAML would silently use the last."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"  # the key <<
_MOST = 10_000  # the largest recipe has 500 values; jsonargparse takes time for each value behind an alias


def read_yaml(path: Path, load: Callable[[str], Any] = yaml.safe_load) -> Any:
    """Read a YAML file without running code in it."""
    try:
        text = path.read_text(encoding="utf-8")
        require_unambiguous(text)
        return load(text)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # numbers and dates raise ValueError
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{path}{f', line {mark.line + 1}' if mark else ''}: {problem}") from None


def require_unambiguous(text: str) -> None:
    """Raise an error for YAML with duplicate keys, also `a.b: 1` beside `a: {b: 2}`, or `a+: …` beside `a: …`.

    Example:
        >>> require_unambiguous("{steps: 5, steps: 10}")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        yaml.error.MarkedYAMLError: the key steps is given twice
        ...line 1, column 12...
    """
    try:
        _leaves(yaml.compose(text, Loader=yaml.SafeLoader), count())
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply, or an alias refers to a node that contains it") from None


def _leaves(node: yaml.Node | None, visited: Iterator[int]) -> list[tuple[str, yaml.Mark]]:
    """Return the dotted keys that set values in a node, as jsonargparse accepts them; duplicates are an error."""
    if next(visited) >= _MOST:
        raise yaml.YAMLError(f"it has more than {_MOST:,} values, with those behind an alias each time")
    keys: list[tuple[str, yaml.Mark]] = []
    leaves: list[tuple[str, yaml.Mark]] = []
    for item in node.value if isinstance(node, yaml.SequenceNode) else []:
        _leaves(item, visited)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        below = _leaves(value, visited)
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:  # a key beside << overrides on purpose
            own = key.value.removesuffix("+"), key.start_mark  # `key+` appends to the value of `key`
            keys.append(own)
            nested = isinstance(value, yaml.MappingNode)
            leaves += [(f"{key.value}.{leaf}", mark) for leaf, mark in below] if nested else [own]
    for together in (keys, leaves):
        seen = set()
        for key, mark in together:
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key} is given twice", problem_mark=mark)
            seen.add(key)
    return leaves
