"""Selection of weight matrices by a preset, narrowed by names."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from lightning_fire.where.adapters import LOW_RANK, adapters, target_networks
from lightning_fire.where.found import Declared, Found, parameters_of
from lightning_fire.where.layers import ComputedWeight
from lightning_fire.where.presets import PRESETS, Preset, is_vector, preset_for
from lightning_fire.where.projections import UnknownRows
from lightning_fire.where.selection import ByName, Row, Selection, format_shape, patterns, reasons_in_words, shorten
from lightning_fire.where.trained import FROZEN, UNTRAINED, as_set, why_not_trained
from lightning_fire.where.weight_view import LAYOUTS, WeightView

TARGET = "target network, by its name: Weights(include=['target']) takes it"
DEPTHWISE = "depthwise convolution: single columns, no matrices"
VECTOR = "one row or column: only its length would change"
EXPANDED = "expanded from fewer values (stride 0): weight.data = weight.data.clone() gives it memory of its own"


class Weights(ByName):
    """Selects weight matrices of a model by a preset, narrowed by names.

    A weight is taken if the preset includes it, a pattern of `include` (if given) matches its name, and no pattern of
    `exclude` does. A tied weight is taken once. Queries, keys and values, and gate and up projections (`gate_up_proj`)
    that are fused into one weight are split; other fused layers count as one. Never taken are: frozen weights (and, if
    the optimizers are known, weights that none of them trains); fused queries, keys and values of other libraries than
    `projections.LIBRARIES`, whose order is not known, unless `split` gives it; layers that no reader knows, subclasses
    of `nn.Linear` and convolutions with a forward of their own, and recurrent layers, unless `layers` gives them;
    target networks, by their names, unless a pattern of `include` with "target" matches; low-rank factors of adapters
    (LoRA); depthwise convolutions; weights with one row or column (unless `vectors`).

    Args:
        preset: `cnn`: every Linear and convolution weight. `vit`: query and key projections. `gpt`: every Linear
            weight, a fused query-key-value projection in three parts. `dqn`: every convolution weight, as in the
            authors' code, which resets the Linear layers of a Nature CNN. `sac`: every Linear weight of actor and
            critic.
            `auto`: `gpt` for a causal language model, see `presets.is_causal_language_model`; `vit` for other
            transformers, see `presets.mostly_attention`; otherwise `cnn`.
        include: Regular expressions, searched in names such as `layer1.0.conv1.weight` or `attn.qkv.weight[q]`.
        exclude: Regular expressions; a weight is left out if a pattern matches its name.
        split: Parts of fused weights, by a regular expression for their names: part names in row order with their
            numbers of rows, such as `{"attn.qkv": {"q": 64, "k": 16, "v": 16}}`. It overrides the split found from
            classes and numbers of heads. The parts q, k and v are queries, keys and values; other parts may have any
            name. If the parts are interleaved, `blocks` is the number of repetitions (default: 1).
        vectors: Whether to take weights with one row or column, such as the output layer of a critic. Orthogonalization
            changes only their length.
        layers: Layout of the weights of layers that no reader knows, by module class, by the name of a class, or by a
            regular expression for parameter names: `out_in`, `in_out` (`(*kernel, in, out)`), `transposed_conv`, or for
            a stack of matrices, such as experts, `stacked_out_in` or `stacked_in_out`. For the class of a recurrent
            layer of torch, `gates` takes each gate as a matrix. Example: `{"W_enc": "in_out", "LSTM": "gates"}`.

    Raises:
        ValueError: If `preset` is unknown, `include` or `exclude` is not a list of regular expressions, `split` is not
            a mapping from regular expressions to numbers of rows, or `layers` not a mapping from classes and regular
            expressions to layouts.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2, bias=False))
        >>> print(Weights(exclude=["^3"]).select(net))
        parameter  shape    matrices
        0.weight   8×3×3×3  8×3×3×3   taken
        0.bias     8                  not a matrix
        1.weight   8                  not a matrix
        1.bias     8                  not a matrix
        3.weight   2×8      2×8       excluded
        1 of 2 weight matrices taken, preset cnn
    """

    def __init__(
        self,
        preset: Preset = "auto",
        include: list[str] | None = None,
        exclude: list[str] | None = None,
        split: dict[str, dict[str, int]] | None = None,
        vectors: bool = False,
        layers: dict[type[nn.Module] | str, Declared] | None = None,
    ):
        if preset != "auto" and preset not in PRESETS:
            raise ValueError(f"`preset` must be one of {['auto', *PRESETS]}, got {preset!r}")
        self.preset = preset
        super().__init__(include, exclude)
        self.split, self.vectors, self.layers = _checked_split(split), vectors, _checked_layers(layers)

    def select(self, model: nn.Module, trained: Collection[Tensor] | None = None) -> Selection[WeightView]:
        """Apply the selection to a model.

        Args:
            model: Any module.
            trained: The parameters that optimizers step. Default: those with `requires_grad`.

        Returns:
            The selected weights. `print` shows a table of the whole model.

        Raises:
            ValueError: If nothing is selected, a pattern matches no weight, a selected weight is parametrized, or a
                lazy layer is not initialized.
        """
        found = parameters_of(model, self.layers, self.split)
        weights = [each for each in found if each.is_weight]
        known = dict.fromkeys(name for each in weights for name in [*each.names, *(view.name for view in each.views)])
        self.check(list(known), never={each.name: each.reason for each in found if not each.is_weight})
        never = self._never(model, found, None if trained is None else as_set(trained))
        matrices = [each for each in found if each.views and never[each.name] not in (DEPTHWISE, LOW_RANK, "empty")]
        matrices = [each for each in matrices if not all(map(is_vector, each.views))]
        candidates = [each for each in matrices if never[each.name] != UNTRAINED]
        preset = preset_for(model, candidates) if self.preset == "auto" else self.preset
        reasons = {view: self._reason(view, each, preset, never) for each in found for view in each.views}
        taken = {view.name: view for view, reason in reasons.items() if not reason}
        computed = [each for each in found if isinstance(each.parameter, ComputedWeight)]
        if lost := [each for each in computed if not all(reasons[view] for view in each.views)]:
            raise ValueError(_about_parametrizations(lost))
        missed = [each for each in found if each.is_weight and not self.reason(*each.names) and _takes(preset, each)]
        vectors = [view for each in found if each not in matrices for view in each.views if view.name in taken]
        unknown = [each for each in found if each.is_weight and not each.views]
        number = sum(len(each.views) for each in matrices) + len(vectors) + len(unknown)
        selection = Selection(
            taken,
            [_row(each, reasons, never[each.name]) for each in found],
            ("parameter", "shape", "matrices"),
            f"{len(taken)} of {number} weight matrices",
            preset=preset,
            left_out=[
                f"{each.name}: {never[each.name]}"
                for each in missed
                if never[each.name] in (each.reason or EXPANDED, EXPANDED, TARGET)
            ],
            untrained=[each.name for each in missed if each.views and never[each.name] == UNTRAINED],
        )
        if not selection:
            raise ValueError(f"{self} selects no weight of {type(model).__name__}: {_why_nothing(selection.rows)}")
        return selection

    def _never(self, model: nn.Module, found: Sequence[Found], trained: Collection[Tensor] | None) -> dict[str, str]:
        """Return for each parameter why no preset takes it; empty if some may."""
        targets = target_networks(model)
        named = [pattern for pattern in self.include or () if "target" in pattern]
        never = {}
        for each in found:
            reason = _why_never(each, trained) if each.is_weight else ""
            paths = [path for path in targets if each.views and each.name.startswith(path)]
            if paths and reason in ("", UNTRAINED) and not any(re.search(pattern, each.name) for pattern in named):
                reason = "target network" if any(targets[path] for path in paths) else TARGET
            never[each.name] = reason
        shapes = {each.name: each.whole.shape for each in found if each.views}
        factors = adapters(model, shapes, [name for name in shapes if never[name] in (FROZEN, UNTRAINED)])
        return {each.name: never[each.name] or (LOW_RANK if each.name in factors else each.reason) for each in found}

    def _reason(self, view: WeightView, found: Found, preset: str, never: Mapping[str, str]) -> str:
        """Return why a weight is not taken; empty if it is."""
        reason = never[found.name] or (VECTOR if is_vector(view) and not self.vectors else "")
        reason = reason or ("" if PRESETS[preset](view) else f"not in preset {preset}")
        return reason or self.reason(view.name, *found.names[1:])


def _why_never(found: Found, trained: Collection[Tensor] | None) -> str:
    """Return why a weight can never be selected; empty if it can."""
    parameter = found.parameter
    if not parameter.is_floating_point():  # before frozen: a quantized weight is always frozen too
        return f"quantized or complex ({parameter.dtype})"
    sources = parameter.sources if isinstance(parameter, ComputedWeight) else [parameter]
    reasons = [why_not_trained(source, trained) for source in sources]
    if all(reasons) or not found.views:
        return reasons[0]
    if parameter.numel() == 0:
        return "empty"
    if any(stride == 0 and size > 1 for stride, size in zip(parameter.stride(), parameter.shape, strict=True)):
        return EXPANDED
    whole = found.whole
    return DEPTHWISE if whole.groups > 1 and whole.shape[1] == 1 else ""


def _takes(preset: str, found: Found) -> bool:
    """Return whether a preset would take a weight if nothing else kept it from that."""
    role = "q" if isinstance(found.reason, UnknownRows) else ""
    views = [replace(view, role=view.role or role) for view in found.views]
    return any(map(PRESETS[preset], views)) if views else preset not in ("vit", "dqn")


def _row(found: Found, reasons: Mapping[WeightView, str], never: str) -> Row:
    parts = {view.role: reasons[view] or "taken" for view in found.views} or {"": never}
    reason = parts.popitem()[1] if len(set(parts.values())) == 1 else ", ".join(map(" ".join, parts.items()))
    tied = f" (tied with {', '.join(found.names[1:])})" if found.names[1:] else ""
    views = ", ".join(f"{view.role} {_matrices_of(view)}".strip() for view in found.views)
    return Row(found.name, tuple(found.parameter.shape), views, reason + tied)


def _matrices_of(view: WeightView) -> str:
    """Format the shape of a view; a stack as `4 of 16×8`."""
    if not view.layout.startswith("stacked"):
        return format_shape(view.shape)
    return f"{view.groups} of {format_shape((view.shape[0] // view.groups, *view.shape[1:]))}"


def _why_nothing(rows: Sequence[Row]) -> str:
    reason = reasons_in_words(row for row in rows if len(row.shape) > 1)
    if FROZEN in reason:
        adapter = "merge_and_unload() of the adapter and " if LOW_RANK in reason else ""
        reason += f". Frozen weights are taken after {adapter}model.requires_grad_()"
    return reason or ("none of its parameters is a matrix" if rows else "it has no parameters")


def _about_parametrizations(lost: Sequence[Found]) -> str:
    by = {each.name: each.parameter.by for each in lost if isinstance(each.parameter, ComputedWeight)}
    which = shorten([f"{name} ({how})" for name, how in by.items()])
    exclude = [f"^{re.escape(name)}" for name in by]
    return (
        f"selected weights are computed by a parametrization, so that a new value would be lost: {which}. Remove the"
        f" parametrization before the fit, or leave these layers out with exclude={exclude!r}"
    )


def _checked_split(split: Mapping[str, Mapping[str, int]] | None) -> dict[str, dict[str, int]]:
    example = '{"attn.qkv": {"q": 64, "k": 16, "v": 16}}'
    for pattern, rows in _mapping("split", split, example).items():
        numbers = list(rows.values()) if isinstance(rows, Mapping) else []
        if not numbers or set(rows) == {"blocks"} or any(type(number) is not int or number < 1 for number in numbers):
            raise ValueError(f"`split` must have numbers of rows, as {example} has, got {rows!r} for {pattern!r}")
    return {pattern: dict(rows) for pattern, rows in (split or {}).items()}


def _checked_layers(layers: Mapping[type[nn.Module] | str, Declared] | None) -> dict[type[nn.Module] | str, Declared]:
    for key, layout in _mapping("layers", layers, '{"W_enc": "in_out"}').items():
        if layout not in (*LAYOUTS, "gates"):
            raise ValueError(f"`layers` must have one of {[*LAYOUTS, 'gates']}, got {layout!r} for {key!r}")
    return dict(layers or {})


def _mapping(argument: str, given: Mapping[Any, Any] | None, example: str) -> Mapping[Any, Any]:
    """Return a mapping whose keys are classes or regular expressions; raise a ValueError if it is not one."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"`{argument}` must be a mapping such as {example}, got {given!r}")
    patterns(argument, [key for key in given or () if not isinstance(key, type)])
    return given or {}
