"""What a selection takes of a model, and whether the rows of fused projections are those of its numbers of heads."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from lightning_fire.where import Selection, Weights, WeightView

from .architectures import on_meta
from .gradients import confirmed

COLUMNS = (
    *("library", "architecture", "weights", "taken", "left_out", "silent"),
    *("split", "by_heads", "by_gradient", "unconfirmed", "auto", "reasons"),
)
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "embed_dim", "dim", "dim_out")
_SIZES = ("head_dim", "head_size", "attention_head_size", "dim_head")
_KEYS = ("num_key_value_heads", "num_kv_heads", "n_query_groups", "kv_n_heads", "num_attention_heads_kv")


def outcome(library: str, name: str, build: Callable[[], nn.Module]) -> dict[str, Any]:
    """Return a row of the table.

    `weights` are the parameters of 2 or more dimensions: those `taken` by the preset that takes all, and those
    `left_out` with a reason; `silent` are those without one. `split` are taken in parts, which are confirmed by the
    numbers of heads that the model declares, or by gradients of a forward pass; `unconfirmed` are by neither.
    """
    model = on_meta(build)
    selection = selected(model)
    rows = [row for row in selection.rows if len(row.shape) > 1]
    left = [row for row in rows if "taken" not in row.reason]
    by_weight: dict[str, list[WeightView]] = defaultdict(list)
    for view in selection:
        by_weight[view.name.partition("[")[0]].append(view)
    split = {weight: views for weight, views in by_weight.items() if len(views) > 1}
    doubtful = {weight: views for weight, views in split.items() if not is_right(model, weight, views)}
    by_gradient = confirmed_by_gradients(build, doubtful) if doubtful else set()
    unconfirmed = sorted(doubtful.keys() - by_gradient)
    try:
        auto = Weights().select(model).summary
    except ValueError as error:
        auto = f"none: {str(error)[:80]}"
    reasons = Counter(re.sub(r" \(.*|, which .*|width \d+", "", row.reason) for row in left)
    return {
        "library": library,
        "architecture": name,
        "weights": len(rows),
        "taken": len(rows) - len(left),
        "left_out": sum(bool(row.reason) for row in left),
        "silent": sum(not row.reason for row in left),
        "split": len(split),
        "by_heads": len(split) - len(doubtful),
        "by_gradient": len(by_gradient),
        "unconfirmed": len(unconfirmed),
        "auto": auto.replace(" weight matrices, preset", ","),
        "reasons": "; ".join(f"{number} {reason}" for reason, number in reasons.most_common()),
        "names": [*(f"    {row.name} {row.shape} {row.reason}" for row in left), *unconfirmed],
    }


def selected(model: nn.Module, exclude: list[str] | None = None) -> Selection[WeightView]:
    """Select all weights but those that a parametrization computes, which have to be excluded."""
    try:
        kinds = [nn.RNNBase, nn.RNNCellBase]
        found = [kind for kind in kinds if any(isinstance(module, kind) for module in model.modules())]
        return Weights("cnn", exclude=exclude, layers=dict.fromkeys(found, "gates")).select(model)
    except ValueError as error:
        _, _, computed = str(error).partition("exclude=")
        if exclude is None and computed.startswith("["):
            return selected(model, ast.literal_eval(computed))
        return Selection({}, [], ("", "", ""), str(error))  # nothing to take


def confirmed_by_gradients(build: Callable[[], nn.Module], doubtful: Collection[str]) -> set[str]:
    """Return those of some weights that gradients of a small forward pass confirm; none if it does not run."""
    if sum(parameter.numel() for parameter in on_meta(build).parameters()) > 300e6:
        return set()
    torch.manual_seed(0)
    model = build().eval()
    size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    images = torch.randn(1, *size)
    parts: dict[str, dict[str, WeightView]] = {}
    for view in Weights("cnn").select(model):
        name = view.name.partition("[")[0]
        if name in doubtful:
            parts.setdefault(name, {})[view.role] = view
    given = (images, images.unsqueeze(2), {"pixel_values": images}, {"input_ids": torch.arange(2, 18).unsqueeze(0)})
    for inputs in given:
        try:
            return confirmed(model, inputs, parts)
        except Exception:  # another kind of input
            continue
    return set()


def is_right(model: nn.Module, weight: str, views: list[WeightView]) -> bool:
    """Return whether the numbers of rows are those of the heads in the nearest module or config that declares them."""
    rows = {view.role: view.shape[0] // view.groups for view in views}
    if set(rows) == {"gate", "up"} or set(rows) <= set("ifgorzn"):
        return len(set(rows.values())) == 1 and sum(rows.values()) * views[0].groups == _outputs(views[0])
    for expected in _expected(model, weight):
        if all(expected.get(role) == number for role, number in rows.items()):
            return True
    return False


def _outputs(view: WeightView) -> int:
    stored = view.parameter.shape
    if view.layout.startswith("stacked"):
        return stored[0] * (stored[2] if view.layout == "stacked_in_out" else stored[1])
    return stored[1] if view.layout == "in_out" else stored[0]


def _widths_after(module: nn.Module, weight: str) -> list[int]:
    """Return the input dimensions of the layers beside a projection, one of which takes the output of attention."""
    layers = [layer for name, layer in module.named_modules() if name and not weight.endswith(f"{name}.weight")]
    named = ("in_features", "in_channels")
    return [width for layer in layers for name in named if type(width := getattr(layer, name, None)) is int]


def _expected(model: nn.Module, weight: str) -> list[dict[str, int]]:
    """Return the rows that the declared numbers say, from the modules around a weight and their configs."""
    found = []
    path = weight.split(".")[:-1]
    for end in range(len(path), -1, -1):
        module = model.get_submodule(".".join(path[:end])) if end else model
        if isinstance(module, nn.MultiheadAttention):
            return [dict.fromkeys("qkv", module.embed_dim)]
        for owner in (module, getattr(module, "config", None)):
            numbers = getattr(owner, "__dict__", {})
            heads = next((numbers[name] for name in _HEADS if type(numbers.get(name)) is int), None)
            if heads is None:
                continue
            keys = next((numbers[name] for name in _KEYS if type(numbers.get(name)) is int), heads)
            multi_query = numbers.get("multi_query") and not numbers.get("new_decoder_architecture")
            keys = 1 if multi_query else keys
            if numbers.get("multi_query") is False and not numbers.get("new_decoder_architecture"):
                keys = heads
            widths = [numbers[name] for name in _WIDTHS if type(numbers.get(name)) is int]
            sizes = [numbers[name] for name in _SIZES if type(numbers.get(name)) is int]
            sizes = sizes or [width // heads for width in widths]
            sizes = sizes or [width // heads for width in _widths_after(module, weight) if width % heads == 0]
            found += [{"q": heads * size, "k": keys * size, "v": keys * size} for size in sizes]
            if type(numbers.get("key_dim")) is int:
                one = {
                    "q": numbers["key_dim"],
                    "k": numbers["key_dim"],
                    "v": numbers.get("val_dim", numbers["key_dim"]),
                }
                found.append(one if "qkvs." in weight else {})  # EfficientViT: one projection for each head
                value = numbers.get("val_dim", numbers.get("head_dim", numbers["key_dim"]))
                found.append({"q": heads * numbers["key_dim"], "k": heads * numbers["key_dim"], "v": heads * value})
            if type(numbers.get("v_head_dim")) is int:
                found.append({"kv": numbers["kv_lora_rank"], "k": numbers["qk_rope_head_dim"]})
                found.append({"k": heads * numbers["qk_nope_head_dim"], "v": heads * numbers["v_head_dim"]})
        if found:
            break
    if not found:  # one head, of the width of the layer that follows
        found = [
            dict.fromkeys("qkv", width) for width in _widths_after(model.get_submodule(".".join(path[:-1])), weight)
        ]
    return found
