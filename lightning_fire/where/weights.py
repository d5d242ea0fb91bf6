"""Selection of weight matrices by a preset, narrowed by names."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torch import nn

from lightning_fire.where.layers import Candidate, candidates_of, is_causal_language_model, plain
from lightning_fire.where.selection import ByName, Row, Selection, about, some, times
from lightning_fire.where.weight_view import WeightView

Preset = Literal["auto", "cnn", "vit", "gpt", "dqn", "sac"]
PRESETS: dict[str, Callable[[WeightView], bool]] = {
    "cnn": lambda view: True,
    "vit": lambda view: view.role in ("q", "k"),
    "gpt": lambda view: view.parameter.ndim == 2,
    "dqn": lambda view: view.parameter.ndim > 2,
    "sac": lambda view: view.parameter.ndim == 2,
}


class Weights(ByName):
    """Selects weight matrices of a model by a preset, narrowed by names.

    A weight is taken if the preset takes it, some pattern of `include` (if given) matches its name, and none of
    `exclude` does. A tied weight is taken once. Never taken: weights that are frozen, belong to a target network beside
    its original or overlap others in memory, depthwise convolutions, low-rank factors of adapters (LoRA), and fused
    projections in an unknown order.

    Args:
        preset: `cnn`: every Linear and convolution weight. `vit`: query and key projections. `gpt`: every Linear
            weight, a fused query-key-value projection in three parts. `dqn`: every convolution weight, as the authors
            do where the Linear layers of a Nature CNN are reset. `sac`: every Linear weight of actor and critic.
            `auto`: `gpt` for a causal language model, see `layers.is_causal_language_model`; `vit` for other models
            with attention; otherwise `cnn`.
        include: Regular expressions, searched in names such as `layer1.0.conv1.weight` or `attn.qkv.weight[q]`.
        exclude: Regular expressions; a weight is left out if some pattern matches its name.

    Raises:
        ValueError: If `preset` is unknown, or `include` or `exclude` is not a list of regular expressions.

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
        1 weight matrices taken
    """

    def __init__(self, preset: Preset = "auto", include: list[str] | None = None, exclude: list[str] | None = None):
        if preset != "auto" and preset not in PRESETS:
            raise ValueError(f"`preset` must be one of {['auto', *PRESETS]}, got {preset!r}")
        self.preset = preset
        super().__init__(include, exclude)

    def select(self, module: nn.Module) -> Selection:
        """Apply the selection to a model.

        Returns:
            The selected weights, which also print as a table of the whole model.

        Raises:
            ValueError: If nothing is selected, a pattern matches no weight, a selected weight is parametrised, or a
                lazy layer is not initialised.
        """
        candidates, language_model = candidates_of(module), is_causal_language_model(module)
        reasons = self.reasons(candidates, language_model)
        lost = [c for c in candidates if c.parametrization and not all(reasons[view] for view in c.views)]
        if lost:
            raise ValueError(_about_parametrizations(lost))
        taken = [view for view, reason in reasons.items() if not reason]
        takes = PRESETS[self._preset_for(candidates, language_model)]
        left_out = [
            f"{candidate.name}: {candidate.reason}"
            for candidate in candidates
            if candidate.reason.startswith(("fused", "sharing memory")) and not self.reason(candidate.name)
            if any(takes(replace(view, role=view.role or "q" * candidate.attention)) for view in candidate.views)
        ]
        selection = Selection(taken, _rows(module, candidates, reasons), left_out)
        if not selection:
            reason = about(row for row in selection.rows if len(row.shape) > 1)
            reason = reason or ("none of its parameters is a matrix" if selection.rows else "it has no parameters")
            raise ValueError(f"{self} selects no weight of {type(module).__name__}: {reason}")
        return selection

    def reasons(self, candidates: Sequence[Candidate], language_model: bool = False) -> dict[WeightView, str]:
        """Return for each view of some candidates why it is not taken; empty if it is.

        Args:
            candidates: The candidates of a model or of a file.
            language_model: Whether they are those of a causal language model.

        Raises:
            ValueError: If a pattern matches no name.
        """
        self.check([name for c in candidates for name in (*(view.name for view in c.views), *c.aliases)])
        preset = self._preset_for(candidates, language_model)
        found = {}
        for candidate in candidates:
            for view in candidate.views:
                found[view] = candidate.reason or (f"not in preset {preset}" if not PRESETS[preset](view) else "")
                found[view] = found[view] or self.reason(view.name, *candidate.aliases)
        return found

    def _preset_for(self, candidates: Sequence[Candidate], language_model: bool) -> str:
        if self.preset != "auto":
            return self.preset
        return ("gpt" if language_model else "vit") if any(c.attention for c in candidates) else "cnn"


def row_of(candidate: Candidate, shape: tuple[int, ...], reasons: Mapping[WeightView, str]) -> Row:
    """Return the row of a candidate in the table of a selection."""
    parts = {view.role: reasons[view] or "taken" for view in candidate.views} or {"": candidate.reason}
    reason = parts.popitem()[1] if len(set(parts.values())) == 1 else ", ".join(map(" ".join, parts.items()))
    notes = [candidate.note, f"tied with {', '.join(candidate.aliases)}" if candidate.aliases else ""]
    views = ", ".join(f"{view.role} {times(view.shape)}".strip() for view in candidate.views)
    return Row(candidate.name, shape, views, reason + "".join(f" ({note})" for note in notes if note))


def _rows(module: nn.Module, candidates: Sequence[Candidate], reasons: Mapping[WeightView, str]) -> list[Row]:
    """List every parameter of a model, with all its names."""
    by_parameter = {candidate.views[0].parameter: candidate for candidate in candidates}
    names: dict[nn.Parameter, list[str]] = {}
    owners: dict[nn.Parameter, nn.Module] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        # of nn.Module: some libraries override it
        for leaf, parameter in nn.Module.named_parameters(owner, recurse=False, remove_duplicate=False):
            names.setdefault(parameter, []).append(plain(f"{path}.{leaf}" if path else leaf))
            owners.setdefault(parameter, owner)
    rows = []
    for parameter, aliases in names.items():
        candidate = by_parameter.get(parameter)
        if candidate is None:
            candidate = Candidate(aliases[0], reason=_why_no_weight(aliases[0], parameter, owners[parameter]))
        candidate = replace(candidate, aliases=tuple(alias for alias in aliases if alias != candidate.name))
        rows.append(row_of(candidate, tuple(parameter.shape), reasons))
    return rows


def _why_no_weight(name: str, parameter: nn.Parameter, owner: nn.Module) -> str:
    if "parametrizations." in name or name.endswith(("weight_g", "weight_v", "weight_orig")):
        return "part of a parametrised weight"
    return f"{type(owner).__name__}: neither Linear nor convolution" if parameter.ndim > 1 else "not a matrix"


def _about_parametrizations(lost: list[Candidate]) -> str:
    which = some([f"{candidate.name} ({candidate.parametrization})" for candidate in lost])
    exclude = [f"^{re.escape(candidate.name)}" for candidate in lost]
    return (
        f"selected weights are computed by a parametrization, so that a new value would be lost: {which}. Remove the"
        f" parametrization before the fit, or leave these layers out with exclude={exclude!r}"
    )
