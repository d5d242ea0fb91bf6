"""Low-rank factors of adapters (LoRA), recognized by names and shapes of tensors."""

import re
from collections.abc import Mapping, Sequence

_NAMES = re.compile(r"(?<![a-zA-Z])(lora|loha|lokr|hada|glora|dora|vera)(?![a-z])|adapter_?(down|up)(?![a-z])")
_PAIRS = (("a", "b"), ("down", "up"), ("left", "right"), ("u", "v"))
_NUMBERS = (("1", "2"), ("0", "1"))  # of layers in a row as well
_LEAST = 2  # rows and columns of the product, by the rank
_BASES = ("weight", "base_layer.weight", "base.weight", "linear.weight", "original.weight", "orig.weight")
_BASES += ("wrapped.weight", "layer.weight")


def low_rank_factors(shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Return the names of weights that are factors of low-rank corrections, trained beside a weight or in its place.

    One factor starts at 0 and stays near it, so that to give it the norm of a new weight would make a small correction
    a large one. A weight is such a factor if it has a name of PEFT, kohya or diffusers (`lora_A`, `lora_down`,
    `lora.up`, …), or is one of a pair A, of shape `(r, in)`, and B, of shape `(out, r)`, with r at most half of in and
    of out, whose names differ in one word (a and b, down and up, …), if beside the pair lies a weight of shape
    `(out, in)`, or all matrices of the file are such pairs.

    Args:
        shapes: Shapes of all tensors by name.

    Example:
        >>> shapes = {"q.weight": (64, 64), "q.a.weight": (4, 64), "q.b.weight": (64, 4), "fc.weight": (9, 64)}
        >>> sorted(low_rank_factors(shapes))
        ['q.a.weight', 'q.b.weight']
        >>> sorted(low_rank_factors({"encoder.weight": (4, 64), "decoder.weight": (64, 4)}))
        []
    """
    named = {name for name, shape in shapes.items() if len(shape) > 1 and _NAMES.search(name)}
    matrices = {name for name, shape in shapes.items() if len(shape) > 1}
    pairs = [(a, b) for a in matrices for b in _partners(a, _PAIRS) if _fit(shapes[a], shapes.get(b, ()))]
    paired = {name for pair in pairs for name in pair}
    if matrices <= paired | named:
        return matrices
    pairs += [(a, b) for a in matrices for b in _partners(a, _NUMBERS) if _fit(shapes[a], shapes.get(b, ()))]
    return named | {name for pair in pairs if _has_base(*pair, shapes) for name in pair}


def _partners(name: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names that a factor B would have beside a factor A of this name."""
    words = re.split(r"([._])", name)
    found = []
    for index, word in enumerate(words):
        for first, second in pairs:
            if word.lower() == first:
                other = second.upper() if word.isupper() else second
                found.append("".join([*words[:index], other, *words[index + 1 :]]))
    return found


def _fit(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return whether A and B multiply to a matrix of a rank below its size; of convolutions, B has one position."""
    return len(a) > 1 and len(a) == len(b) and a[0] == b[1] and _LEAST * a[0] <= min(a[1], b[0])


def _has_base(a: str, b: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    product = (shapes[b][0], shapes[a][1])
    words = a.split(".")
    parents = (".".join(words[:end]) for end in range(len(words) - 1, max(-1, len(words) - 5), -1))
    bases = (f"{parent}.{base}".lstrip(".") for parent in parents for base in _BASES)
    return any(base not in (a, b) and shapes.get(base, ())[:2] == product for base in bases)
