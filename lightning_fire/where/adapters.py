"""Low-rank factors of adapters such as LoRA, and target networks: weights that a selection leaves out."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import permutations

from torch import nn

from lightning_fire._private import is_a
from lightning_fire.where.layers import plain

LOW_RANK = "low-rank factor of an adapter"
_ADAPTER = re.compile(
    r"(?<![a-zA-Z])((q|x|g|ada|dy|rs)?lora|loha|hada|lokr|vera|dora)(?![a-z])|adapter_?(down|up)(?![a-z])"
)
_TARGET = re.compile(r"(^|_)target(_|$)")


def adapters(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], untrained: Collection[str]) -> set[str]:
    """Return the names of the weights of adapters, whose product is added to a weight.

    One factor starts at 0 and stays small: with the norm of a new weight, the product would be large. Found are weights
    with "lora" (or another kind of adapter) in their names, all of a layer of PEFT but its `base_layer`, and two
    trained weights A (r, in) and B (out, r), with r at most half of in and out, beside an untrained one (out, in).

    Args:
        model: The model.
        shapes: The shape of each weight, `(out, in, *kernel)`, by name.
        untrained: Names of weights that are not trained.
    """
    held = tuple(f"{plain(path)}.".lstrip(".") for path, part in model.named_modules() if is_a(part, "BaseTunerLayer"))
    found = {
        name
        for name in shapes
        if _ADAPTER.search(name)
        or any(name.startswith(path) and not name[len(path) :].startswith("base_layer.") for path in held)
    }
    trained: dict[str, list[str]] = defaultdict(list)  # by the module that holds the layer, or the bare weight
    for name in shapes.keys() - set(untrained):
        module, _, leaf = name.removesuffix(".weight").rpartition(".")
        if not leaf.isdigit():  # of a Sequential
            trained[module].append(name)
    for name in untrained:
        layer = name.removesuffix(".weight")
        for a, b in (pair for at in {layer, layer.rpartition(".")[0]} for pair in permutations(trained[at], 2)):
            (first, inputs), (out, second) = shapes[a][:2], shapes[b][:2]
            if (out, inputs) == shapes[name][:2] and first == second and 2 * first <= min(out, inputs):
                found |= {a, b}
    return found


def target_networks(model: nn.Module) -> dict[str, bool]:
    """Return the prefixes of modules such as `q_net_target`, and whether there is such a module without "target"."""
    paths = {plain(path) for path, _ in model.named_modules()}
    found = {}
    for path in paths:
        parent, dot, leaf = path.rpartition(".")
        if _TARGET.search(leaf):
            found[f"{path}."] = f"{parent}{dot}{re.sub('^target_|_target$', '', leaf)}" in paths - {path}
    return found
