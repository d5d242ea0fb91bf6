"""Low-rank factors of adapters such as LoRA, by the names and shapes of tensors."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

_NAMED = re.compile(r"(^|[._])((q|x|ada|dy|rs)?lora|loha|hada|lokr|vera|dora)(?=[._\dA-Z]|$)")
_FIRST, _SECOND = ("A", "a", "down"), ("B", "b", "up")


def low_rank_factors(shapes: Mapping[str, tuple[int, ...]], frozen: Collection[str] = ()) -> set[str]:
    """Return the names of weights that are factors of an adapter, whose product is a small correction of a weight.

    These are: weights with "lora" (or another kind of adapter) in the name; two weights A (r, in) and B (out, r) of
    one module, with r at most half of in and of out, if they are called A and B, or `…_a` and `…_b`, or down and up
    and a weight (out, in) is beside them; or, whatever their names, if that weight is frozen and they are not.

    Args:
        shapes: The shape of each weight, `(out, in, *kernel)`, by names such as `layers.0.lora_down.weight`.
        frozen: Names of those that are not trained.

    Example:
        >>> shapes = {"q.weight": (64, 64), "q.down.weight": (4, 64), "q.up.weight": (64, 4), "head.weight": (9, 64)}
        >>> sorted(low_rank_factors(shapes))
        ['q.down.weight', 'q.up.weight']
    """
    found = {name for name in shapes if _NAMED.search(name)}
    modules: dict[str, dict[str, str]] = defaultdict(dict)  # by its path, the weights of a module by their layers
    for name, shape in shapes.items():
        if len(shape) > 1:
            parent, _, layer = name.removesuffix(".weight").rpartition(".")
            modules[parent][layer] = name
    for path, layers in modules.items():
        bases = {shapes[name][:2] for name in layers.values()}
        if whole := modules.get(path.rpartition(".")[0], {}).get(path.rpartition(".")[2]):  # a Linear with factors
            bases.add(shapes[whole][:2])
        trained = {layer: name for layer, name in layers.items() if name not in frozen and not layer.isdigit()}
        fixed = {shapes[name][:2] for name in layers.values() if name in frozen}
        for layer, name in trained.items():
            for other in _others(layer, trained):
                out, rank, inputs = shapes[trained[other]][0], shapes[name][0], shapes[name][1]
                if shapes[trained[other]][1] != rank or 2 * rank > min(out, inputs):
                    continue
                named = _second_name(layer) == other
                if (out, inputs) in (bases if named else fixed) or (named and layer == "A"):
                    found |= {name, trained[other]}
    return found


def _others(layer: str, layers: Collection[str]) -> list[str]:
    return [other for other in layers if other != layer]


def _second_name(layer: str) -> str:
    """Return the name of the second factor for that of the first one: `w_b` for `w_a`, `up` for `down`."""
    for first, second in zip(_FIRST, _SECOND, strict=True):
        name = re.sub(rf"(^|_){first}(?=$|_proj$)" if first == "down" else rf"(^|_){first}$", rf"\g<1>{second}", layer)
        if name != layer:
            return name
    return ""
