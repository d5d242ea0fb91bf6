"""Strict reading of YAML: a duplicate key is an error, where YAML would silently take the last."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"  # the key <<
_MOST_REPEATED = 1000  # jsonargparse takes time for each value behind each alias: 300 bytes can hold millions of them


def read_yaml(path: Path, load: Callable[[str], Any] = yaml.safe_load) -> Any:
    """Read a YAML file without running anything in it."""
    try:
        text = path.read_text(encoding="utf-8")
        require_unambiguous(text)
        return load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # numbers and dates raise ValueError
        raise ValueError(f"{path}{_place_and_problem(error)}") from None


def require_unambiguous(text: str) -> None:
    """Raise an error for YAML that sets a key twice, also as `a.b: 1` and `a: {b: 2}`, or `a+: …` and `a: …`.

    Example:
        >>> require_unambiguous("{steps: 5, steps: 10}")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        yaml.error.MarkedYAMLError: the key steps is given twice
        ...line 1, column 12...
    """
    try:
        sizes: dict[yaml.Node | None, int] = {}
        repeated = _measure(yaml.compose(text, Loader=yaml.SafeLoader), sizes) - len(sizes)
        if repeated > _MOST_REPEATED:
            raise yaml.YAMLError(f"its aliases repeat {repeated} values; at most {_MOST_REPEATED} may be repeated")
        for mapping in sizes:
            if isinstance(mapping, yaml.MappingNode):
                _require_different(_keys(mapping))
                _require_different(_leaves(mapping))
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def _measure(node: yaml.Node | None, sizes: dict[yaml.Node | None, int]) -> int:
    """Return how many nodes a node is made of, itself among them; those behind an alias count each time."""
    if node not in sizes:
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in children for child in pair]
        sizes[node] = 0
        sizes[node] = 1 + sum(_measure(child, sizes) for child in children)
    if not sizes[node]:
        raise yaml.MarkedYAMLError(problem="an alias leads to what it is part of", problem_mark=node.start_mark)
    return sizes[node]


def _keys(mapping: yaml.MappingNode) -> Iterator[tuple[str, yaml.Mark]]:
    """Return the keys of a mapping; jsonargparse's `key+` appends to what `key` would set."""
    for key, _ in _plain(mapping):
        yield key.value.removesuffix("+"), key.start_mark


def _leaves(mapping: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, yaml.Mark]]:
    """Return the keys that set values, dotted, as jsonargparse takes them."""
    for key, value in _plain(mapping):
        if isinstance(value, yaml.MappingNode):
            yield from _leaves(value, f"{prefix}{key.value}.")
        else:
            yield prefix + key.value.removesuffix("+"), key.start_mark


def _plain(mapping: yaml.MappingNode) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Return the entries without merges: a key beside << overrides on purpose."""
    return [(k, v) for k, v in mapping.value if isinstance(k, yaml.ScalarNode) and k.tag != _MERGE]


def _require_different(keys: Iterator[tuple[str, yaml.Mark]]) -> None:
    seen = set()
    for key, mark in keys:
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key} is given twice", problem_mark=mark)
        seen.add(key)


def _place_and_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or next(iter(str(error).splitlines()), type(error).__name__)
    return f"{f', line {mark.line + 1}' if mark else ''}: {problem}"
