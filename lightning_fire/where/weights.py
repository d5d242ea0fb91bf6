"""Selection of weight matrices by a preset, narrowed by names."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from torch import nn

from lightning_fire.where.attention import is_causal_language_model, mostly_attention
from lightning_fire.where.candidate import LOW_RANK, STALE, Candidate, is_matrix, is_vector
from lightning_fire.where.fused import candidate_in
from lightning_fire.where.layers import candidates_of, looks_like_a_weight, plain
from lightning_fire.where.selection import ByName, Row, Selection, about, patterns, some, times
from lightning_fire.where.trained import FROZEN, UNTRAINED
from lightning_fire.where.weight_view import LAYOUTS, Layout, WeightView

VECTOR = "one row or column: only its length would change"
# reasons that the user did not choose
_TECHNICAL = ("fused", "sharing memory", "router", "scaled", "recurrent", "gradient hook", STALE)
Preset = Literal["auto", "cnn", "vit", "gpt", "dqn", "sac"]
PRESETS: dict[str, Callable[[WeightView], bool]] = {
    "cnn": lambda view: True,
    "vit": lambda view: view.role in ("q", "k"),
    "gpt": lambda view: len(view.shape) == 2,
    "dqn": lambda view: len(view.shape) > 2,
    "sac": lambda view: len(view.shape) == 2,
}


class Weights(ByName):
    """Selects weight matrices of a model by a preset, narrowed by names.

    A weight is taken if the preset includes it, a pattern of `include` (if given) matches its name, and no pattern of
    `exclude` does. A tied weight is taken once. Never taken are: frozen weights (and, if the optimizers are known,
    weights that none of them trains); weights of a target network beside its original; weights that overlap others in
    memory; depthwise convolutions; low-rank factors of adapters (LoRA); fused projections in an unknown order (unless
    `splits` gives it); weights with one row or column (unless `vectors`).

    Args:
        preset: `cnn`: every Linear and convolution weight. `vit`: query and key projections. `gpt`: every Linear
            weight, a fused query-key-value projection in three parts. `dqn`: every convolution weight, as in the
            authors' code, which resets the Linear layers of a Nature CNN. `sac`: every Linear weight of actor and
            critic.
            `auto`: `gpt` for a causal language model, see `attention.is_causal_language_model`; `vit` for other
            transformers, see `attention.mostly_attention`; otherwise `cnn`.
        include: Regular expressions, searched in names such as `layer1.0.conv1.weight` or `attn.qkv.weight[q]`.
        exclude: Regular expressions; a weight is left out if a pattern matches its name.
        splits: Parts of fused weights, by a regular expression for their names: part names in row order with their
            numbers of rows, such as `{"attn.qkv": {"q": 64, "k": 16, "v": 16}}`. It overrides the split found from
            names and numbers of heads. The parts q, k and v are queries, keys and values; other parts may have any
            name. If the parts are interleaved, `blocks` is the number of repetitions (default: 1).
        vectors: Whether to take weights with one row or column, such as the output layer of a critic. Orthogonalization
            changes only their length.
        layers: Layout of the weights of unknown layers, by module class or by a regular expression for parameter names:
            `out_in`, `in_out` (`(*kernel, in, out)`), `transposed_conv`, or for a stack of matrices, such as experts,
            `stacked_out_in` or `stacked_in_out`. Example: `{"W_enc": "in_out"}`.
        recurrent: Whether to take the weights of recurrent layers, each gate as a matrix.

    Raises:
        ValueError: If `preset` is unknown, `include` or `exclude` is not a list of regular expressions, `splits` is not
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
        splits: dict[str, dict[str, int]] | None = None,
        vectors: bool = False,
        layers: dict[type[nn.Module] | str, Layout] | None = None,
        recurrent: bool = False,
    ):
        if preset != "auto" and preset not in PRESETS:
            raise ValueError(f"`preset` must be one of {['auto', *PRESETS]}, got {preset!r}")
        self.preset = preset
        super().__init__(include, exclude)
        self.splits, self.vectors = _checked(splits), vectors
        self.layers, self.recurrent = _checked_layers(layers), recurrent

    def select(self, module: nn.Module) -> Selection[WeightView]:
        """Apply the selection to a model.

        Returns:
            The selected weights. `print` shows a table of the whole model.

        Raises:
            ValueError: If nothing is selected, a pattern matches no weight, a selected weight is parametrized, or a
                lazy layer is not initialized.
        """
        candidates = candidates_of(module, self.layers, self.recurrent)
        declared = [candidate.name for candidate in candidates if candidate.declared]
        for key in self.layers:
            by_class = isinstance(key, type) and any(isinstance(part, key) for part in module.modules())
            if not by_class and not (isinstance(key, str) and any(re.search(key, name) for name in declared)):
                shown = key.__name__ if isinstance(key, type) else repr(key)
                raise ValueError(f"`layers` has {shown}, which matches no parameter")
        candidates = self.declared(candidates)
        preset = self.preset_for(candidates, is_causal_language_model(module))
        parameters, known = _parameters_of(module), {candidate.views[0].parameter for candidate in candidates}
        passed_over = [each.names[0] for p, each in parameters.items() if each.may_be_weight and p not in known]
        never = {
            each.names[0]: _why_no_weight(each.names[0], p) or type(each.owner).__name__
            for p, each in parameters.items()
            if p not in known
        }
        reasons = self.reasons(candidates, preset, passed_over, never)
        lost = [c for c in candidates if c.parametrization and not all(reasons[view] for view in c.views)]
        if lost:
            raise ValueError(_about_parametrizations(lost))
        takes = PRESETS[preset]
        missed = [
            candidate
            for candidate in candidates
            if candidate.reason.startswith((UNTRAINED, *_TECHNICAL)) and not self.reason(candidate.name)
            if any(takes(replace(view, role=view.role or "q" * candidate.attention)) for view in candidate.views)
        ]
        untrained = [candidate.name for candidate in missed if candidate.reason == UNTRAINED]
        left_out = [f"{candidate.name}: {candidate.reason}" for candidate in missed if candidate.reason != UNTRAINED]
        rows = _rows(parameters, candidates, reasons)
        if preset not in ("vit", "dqn"):  # which would not take them
            unknown = [row for row in rows if row.name in passed_over and not self.reason(row.name)]
            left_out += [f"{row.name}: {row.reason}" for row in unknown]
        selection = selected_weights(reasons, rows, candidates, preset, left_out, untrained)
        if not selection:
            reason = about(row for row in selection.rows if len(row.shape) > 1)
            reason = reason or ("none of its parameters is a matrix" if selection.rows else "it has no parameters")
            if FROZEN in reason:
                adapter = "merge_and_unload() of the adapter and " if LOW_RANK in reason else ""
                reason += f". Frozen weights are taken after {adapter}model.requires_grad_()"
            raise ValueError(f"{self} selects no weight of {type(module).__name__}: {reason}")
        return selection

    def declared(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates, split according to `splits`."""
        for pattern in self.splits:
            if not any(re.search(pattern, candidate.name) for candidate in candidates):
                names = some([candidate.name for candidate in candidates]) or "none"
                raise ValueError(f"`splits` has {pattern!r}, which matches no weight; there are: {names}")
        return [self._declared(candidate) for candidate in candidates]

    def _declared(self, candidate: Candidate) -> Candidate:
        rows = next((rows for pattern, rows in self.splits.items() if re.search(pattern, candidate.name)), None)
        if rows is None or not candidate.views:
            return candidate
        shape, blocks = candidate.whole.shape, rows.get("blocks", 1)
        widths = {name: number for name, number in rows.items() if name != "blocks"}
        if blocks * sum(widths.values()) != shape[0]:
            raise ValueError(
                f"`splits` gives {candidate.name} {blocks} · ({' + '.join(map(str, widths.values()))}) ="
                f" {blocks * sum(widths.values())} rows, but it has {shape[0]}"
            )
        reason = "" if candidate.reason.startswith("fused") else candidate.reason
        return replace(candidate, views=candidate_in((widths, blocks), candidate.whole).views, reason=reason)

    def reasons(
        self,
        candidates: Sequence[Candidate],
        preset: str,
        others: Sequence[str] = (),
        never: Mapping[str, str] | None = None,
    ) -> dict[WeightView, str]:
        """Return for each view of candidates why it is not taken; patterns may also match the names `others`.

        Kinds of parameters that are `never` taken are named in the error about a pattern that matches only them.
        """
        known = [name for c in candidates for name in (*(view.name for view in c.views), *c.aliases)]
        self.check([*known, *others], never=never)
        found = {}
        for candidate in candidates:
            for view in candidate.views:
                vector = VECTOR if is_vector(view) and not self.vectors else ""
                found[view] = candidate.reason or vector
                found[view] = found[view] or (f"not in preset {preset}" if not PRESETS[preset](view) else "")
                found[view] = found[view] or self.reason(view.name, *candidate.aliases)
        return found

    def preset_for(self, candidates: Sequence[Candidate], language_model: bool, in_order: bool = True) -> str:
        """Return the preset; `auto` is resolved from all candidates of a model or file."""
        if self.preset != "auto":
            return self.preset
        candidates = [candidate for candidate in candidates if candidate.reason != UNTRAINED]
        if language_model and any(candidate.attention for candidate in candidates):
            return "gpt"
        return "vit" if mostly_attention(candidates, in_order) else "cnn"


def selected_weights(
    reasons: Mapping[WeightView, str],
    rows: Sequence[Row],
    candidates: Iterable[Candidate],
    preset: str,
    left_out: Iterable[str] = (),
    untrained: Iterable[str] = (),
) -> Selection[WeightView]:
    """Return the selection of the views without a reason, with the total number of matrices."""
    taken = {view.name: view for view, reason in reasons.items() if not reason}
    # counts each part of a fused weight, and the selected vectors
    matrices = sum(is_matrix(c) or view.name in taken for c in candidates for view in c.views)
    counted = f"{len(taken)} of {matrices} weight matrices"
    heads = ("parameter", "shape", "matrices")
    return Selection(taken, rows, heads, counted, preset=preset, left_out=left_out, untrained=untrained)


def row_of(candidate: Candidate, shape: tuple[int, ...], reasons: Mapping[WeightView, str]) -> Row:
    """Return the row of a candidate in the table of a selection."""
    parts = {view.role: reasons[view] or "taken" for view in candidate.views} or {"": candidate.reason}
    reason = parts.popitem()[1] if len(set(parts.values())) == 1 else ", ".join(map(" ".join, parts.items()))
    notes = [candidate.note, f"tied with {', '.join(candidate.aliases)}" if candidate.aliases else ""]
    views = ", ".join(f"{view.role} {_matrices_of(view)}".strip() for view in candidate.views)
    return Row(candidate.name, shape, views, reason + "".join(f" ({note})" for note in notes if note))


def _matrices_of(view: WeightView) -> str:
    """Format the shape of a view; a stack as `4 of 16×8`."""
    if not view.layout.startswith("stacked"):
        return times(view.shape)
    return f"{view.groups} of {times((view.shape[0] // view.groups, *view.shape[1:]))}"


def _checked(splits: Mapping[str, Mapping[str, int]] | None) -> dict[str, dict[str, int]]:
    example = '{"attn.qkv": {"q": 64, "k": 16, "v": 16}}'
    if splits is not None and not isinstance(splits, Mapping):
        raise ValueError(f"`splits` must be a mapping such as {example}, got {splits!r}")
    for pattern, rows in (splits or {}).items():
        patterns("splits", [pattern])
        numbers = list(rows.values()) if isinstance(rows, Mapping) else []
        if not numbers or set(rows) == {"blocks"} or any(type(number) is not int or number < 1 for number in numbers):
            raise ValueError(f"`splits` must have numbers of rows, as {example} has, got {rows!r} for {pattern!r}")
    return {pattern: dict(rows) for pattern, rows in (splits or {}).items()}


def _checked_layers(
    layers: Mapping[type[nn.Module] | str, Layout] | None,
) -> dict[type[nn.Module] | str, Layout]:
    if layers is not None and not isinstance(layers, Mapping):
        raise ValueError(f'`layers` must be a mapping such as {{"W_enc": "in_out"}}, got {layers!r}')
    for key, layout in (layers or {}).items():
        if not isinstance(key, type):
            patterns("layers", [key])
        if layout not in LAYOUTS:
            raise ValueError(f"`layers` must have one of {list(LAYOUTS)}, got {layout!r} for {key!r}")
    return dict(layers or {})


class _Named(NamedTuple):
    """A parameter with its names, the first module that holds it, and whether it may be a weight there."""

    names: list[str]
    owner: nn.Module
    may_be_weight: bool


def _parameters_of(module: nn.Module) -> dict[nn.Parameter, _Named]:
    found: dict[nn.Parameter, _Named] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        several = isinstance(owner, nn.ParameterList | nn.ParameterDict)
        # the method of nn.Module: some libraries override it
        for leaf, parameter in nn.Module.named_parameters(owner, recurse=False, remove_duplicate=False):
            name = plain(f"{path}.{leaf}" if path else leaf)
            trained = parameter.requires_grad and parameter.is_floating_point() and min(parameter.shape, default=0) > 1
            unlike = re.search("Embed|Norm", type(owner).__name__) or "parametrized" in _why_no_weight(name, parameter)
            weight = trained and parameter.ndim > 1 and not unlike and (several or looks_like_a_weight(name))
            names, first, known = found.get(parameter, _Named([], owner, False))
            found[parameter] = _Named([*names, name], first, known or weight)
    return found


def _rows(
    parameters: Mapping[nn.Parameter, _Named], candidates: Sequence[Candidate], reasons: Mapping[WeightView, str]
) -> list[Row]:
    """List every parameter of a model, with all its names."""
    by_parameter = {candidate.views[0].parameter: candidate for candidate in candidates}
    rows = []
    for parameter, (names, owner, may_be_weight) in parameters.items():
        hint = ": if it is a weight, Weights(layers=…) takes it" if may_be_weight else ""
        reason = _why_no_weight(names[0], parameter) or f"{type(owner).__name__}: neither Linear nor convolution{hint}"
        candidate = by_parameter.get(parameter) or Candidate(names[0], reason=reason)
        candidate = replace(candidate, aliases=tuple(name for name in names if name != candidate.name))
        rows.append(row_of(candidate, tuple(parameter.shape), reasons))
    return rows


def _why_no_weight(name: str, parameter: nn.Parameter) -> str:
    if "parametrizations." in name or name.endswith(("weight_g", "weight_v", "weight_orig")):
        return "part of a parametrized weight"
    return "" if parameter.ndim > 1 else "not a matrix"


def _about_parametrizations(lost: list[Candidate]) -> str:
    which = some([f"{candidate.name} ({candidate.parametrization})" for candidate in lost])
    exclude = [f"^{re.escape(candidate.name)}" for candidate in lost]
    return (
        f"selected weights are computed by a parametrization, so that a new value would be lost: {which}. Remove the"
        f" parametrization before the fit, or leave these layers out with exclude={exclude!r}"
    )
