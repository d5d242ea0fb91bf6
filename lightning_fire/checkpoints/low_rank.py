"""Low-rank factors of adapters such as LoRA, by the names and shapes of tensors."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import permutations

_NAMED = re.compile(
    r"(?<![a-zA-Z])((q|x|g|ada|dy|rs)?lora|loha|hada|lokr|vera|dora)(?![a-z])|adapter_?(down|up)(?![a-z])"
)
_FIRST = re.compile(r"((?:.*_)?)(a$|u$|left$|down|(?<!_)[01]$)((?:_proj)?)", re.IGNORECASE)
_SECOND = {"a": "b", "u": "v", "left": "right", "down": "up", "0": "1", "1": "2"}
_BASES = ("", ".base_layer", ".base", ".linear", ".original", ".orig", ".wrapped", ".layer")


def low_rank_factors(shapes: Mapping[str, tuple[int, ...]], frozen: Collection[str] = ()) -> set[str]:
    """Return the names of weights that are low-rank factors of an adapter, whose product is added to a weight.

    One factor starts at 0 and stays small: with the norm of a new weight, the product would be large. Factors are: (1)
    weights with "lora" (or another kind of adapter) in the name; (2) two weights A (r, in) and B (out, r), with r at
    most half of in and out and A without a bias, if they are called A and B, or if their names differ in one word (a
    and b, down and up, …) and there is a weight (out, in) beside or around them to which they can be added; (3) two
    such trained weights of any name beside a frozen one.

    Args:
        shapes: The shape of each weight, `(out, in, *kernel)`, by names such as `layers.0.lora_down.weight`, and of
            each bias.
        frozen: Names of weights that are not trained.

    Example:
        >>> shapes = {"q.weight": (64, 64), "q.down.weight": (4, 64), "q.up.weight": (64, 4), "head.weight": (9, 64)}
        >>> sorted(low_rank_factors(shapes))
        ['q.down.weight', 'q.up.weight']
        >>> sorted(low_rank_factors({"encoder.weight": (4, 64), "decoder.weight": (64, 4)}))
        []
    """
    found = {name for name in shapes if _NAMED.search(name)}
    layers = _layers(shapes)
    modules: dict[str, set[str]] = defaultdict(set)  # the layers of each module, by its path
    for layer in layers:
        if not layer.rpartition(".")[2].isdigit():
            modules[layer.rpartition(".")[0]].add(layer)
    for a, b, module, prefix in named_pairs(shapes, numbers=True):
        parents = module.split(".")
        around = [".".join(parents[:end]) for end in range(len(parents), max(-1, len(parents) - 4), -1)]
        bases = modules[module] | {f"{path}{base}".lstrip(".") for path in around for base in _BASES}
        others = modules[module] - {a.removesuffix(".weight"), b.removesuffix(".weight")}
        if {layer for layer in others if layer == prefix or layer.startswith(f"{prefix}_")} == {prefix}:
            bases = {prefix}  # `q` beside `q_a` and `q_b`
        beside = [shapes[layers[base]][:2] for base in bases & set(layers)]
        alone = beside.count((shapes[b][0], shapes[a][1])) == 1 and f"{a.removesuffix('.weight')}.bias" not in shapes
        if a.removesuffix(".weight").endswith(".A") or alone:
            found |= {a, b}
    for module, held in modules.items():
        names = {layers[layer] for layer in held}
        own = {layers[module]} if module in layers else set()  # `q.weight` beside `q.first`, not below it
        fixed = {shapes[name][:2] for name in (names | own).intersection(frozen)}
        for a, b in permutations(names.difference(frozen), 2) if fixed else ():
            if _is_low_rank(shapes[a], shapes[b]) and (shapes[b][0], shapes[a][1]) in fixed:
                found |= {a, b}
    return found


def named_pairs(shapes: Mapping[str, tuple[int, ...]], numbers: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield names of A (r, in) and B (out, r) that differ in a word (or number), their module, and the shared name."""
    layers = _layers(shapes)
    for layer, a in layers.items():
        words = layer.split(".")
        for index, word in enumerate(words):
            if (match := _FIRST.fullmatch(word)) and (numbers or not word.isdigit()):
                before, first, after = match.groups()
                second = _SECOND[first.lower()]
                other = f"{before}{second.upper() if first.isupper() else second}{after}"
                b = layers.get(".".join([*words[:index], other, *words[index + 1 :]]))
                if b and _is_low_rank(shapes[a], shapes[b]):
                    yield a, b, ".".join(words[:index]), ".".join([*words[:index], before.rstrip("_")])


def _layers(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    return {name.removesuffix(".weight"): name for name, shape in shapes.items() if len(shape) > 1}


def _is_low_rank(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and a[0] == b[1] and 2 * a[0] <= min(a[1], b[0])
