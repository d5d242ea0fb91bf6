"""Which weights of a model to act on: a preset, narrowed by names."""

import re
from typing import Literal

from torch import nn

from lightning_fire.where.layers import Candidate, candidates_of, is_causal_language_model
from lightning_fire.where.selection import ByName, Row, Selection, some, table_of
from lightning_fire.where.weight_view import WeightView

Preset = Literal["auto", "cnn", "vit", "gpt", "dqn", "sac"]
PRESETS = {
    "cnn": lambda kind, view: True,
    "vit": lambda kind, view: view.role in ("q", "k"),
    "gpt": lambda kind, view: kind == "linear",
    "dqn": lambda kind, view: kind == "conv",
    "sac": lambda kind, view: kind == "linear",
}


class Weights(ByName):
    """Selects weight matrices of a model by a preset, narrowed by names.

    A weight is taken if the preset takes it, some pattern of `include` (if given) matches its name, and none of
    `exclude` does. Never taken: frozen weights and depthwise convolutions. A tied weight is taken once.

    Args:
        preset: `cnn`: every Linear and convolution weight. `vit`: query and key projections. `gpt`: every Linear
            weight, a fused query-key-value projection in three parts. `dqn`: every convolution weight, as the authors
            do where the Linear layers of a Nature CNN are reset. `sac`: every Linear weight of actor and critic.
            `auto`: `gpt` for a causal language model, see `attention.is_causal_language_model`; `vit` for other
            models with attention; otherwise `cnn`.
        include: Regular expressions, searched in names such as `layer1.0.conv1.weight` or `attn.qkv.weight[q]`.
        exclude: Likewise.

    Raises:
        ValueError: If `preset` is unknown, or `include` or `exclude` is no list of regular expressions.

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
        require_preset(preset)
        self.preset = preset
        super().__init__(include, exclude)

    def select(self, module: nn.Module) -> Selection:
        """Apply the selection to a model.

        Args:
            module: Any module: with fused, tied, frozen or grouped weights, compiled or not.

        Returns:
            The selected weights, which also print as a table of the whole model.

        Raises:
            ValueError: If nothing is selected, a pattern matches no weight, a selected weight is parametrised, or a
                lazy layer is not initialised.
        """
        candidates = candidates_of(module)
        self.check([view.name for candidate in candidates for view in candidate.views])
        attention = any(candidate.attention for candidate in candidates)
        preset = preset_for(self.preset, attention, is_causal_language_model(module))
        taken, lost, verdicts = [], [], {}
        for candidate in candidates:
            reasons = {
                view: candidate.obstacle or self._refusal(preset, candidate.kind, view) for view in candidate.views
            }
            chosen = [view for view, reason in reasons.items() if not reason]
            lost += [candidate] if chosen and candidate.parametrization else []
            taken += chosen
            parameter = candidate.views[0].parameter
            verdicts[parameter] = (candidate, verdict_of(reasons))
        if lost:
            raise ValueError(_about_parametrizations(lost))
        rows = table_of(module, verdicts)
        if not taken:
            raise ValueError(f"{self} selects no weight of {type(module).__name__}: {_about_nothing(rows)}")
        return Selection(taken, rows)

    def _refusal(self, preset: str, kind: str, view: WeightView) -> str:
        if not PRESETS[preset](kind, view):
            return f"not in preset {preset}"
        return self.refusal(view.name)


def require_preset(preset: str) -> None:
    """Refuse a preset that there is not.

    Args:
        preset: Its name.

    Raises:
        ValueError: Names those that there are.
    """
    if preset != "auto" and preset not in PRESETS:
        raise ValueError(f"`preset` must be one of {['auto', *PRESETS]}, got {preset!r}")


def preset_for(preset: str, attention: bool, language_model: bool = False) -> str:
    """Return which of `PRESETS` a preset stands for.

    Args:
        preset: Its name, or `auto`.
        attention: Whether the model has query or key projections.
        language_model: Whether it is a causal language model; of the tensors of a file that cannot be told.
    """
    if preset != "auto":
        return preset
    return "cnn" if not attention else "gpt" if language_model else "vit"


def verdict_of(reasons: dict[WeightView, str]) -> str:
    """Say what becomes of a weight.

    Args:
        reasons: For each of its parts, one at least, why it is not taken; empty if it is.
    """
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values())) or "taken"
    return ", ".join(f"{view.role} {reason or 'taken'}" for view, reason in reasons.items())


def _about_parametrizations(lost: list[Candidate]) -> str:
    which = some([f"{candidate.name} ({candidate.parametrization})" for candidate in lost])
    exclude = [f"^{re.escape(candidate.name)}" for candidate in lost]
    return (
        f"selected weights are computed by a parametrization, so that a new value would be lost: {which}. Remove the"
        f" parametrization before the fit, or leave these layers out with exclude={exclude!r}"
    )


def _about_nothing(rows: list[Row]) -> str:
    """Say each reason once, with the first weight it holds for: a deep model has hundreds of weights."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if len(row.shape) > 1:
            names.setdefault(row.verdict, []).append(row.name)
    reasons = [f"{some(listed, most=1)}: {verdict}" for verdict, listed in names.items()]
    return some(reasons, "; ") or ("none of its parameters is a matrix" if rows else "it has no parameters")
