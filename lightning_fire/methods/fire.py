"""FIRE: Frobenius-isometry reinitialization (ICLR 2026)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_fire.distributed import warn
from lightning_fire.functional._cpu import projected
from lightning_fire.functional.orthogonal import Coefficients, Scale, fire_of_finite
from lightning_fire.functional.products import by_svd
from lightning_fire.methods.base.change import Change, change_weights
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import EventMethod, left_out_of
from lightning_fire.methods.base.optimizers import OptimizerPolicy, Optimizers
from lightning_fire.methods.base.report import Report, matrices_in_words
from lightning_fire.where import Weights, WeightView, normalized_weights
from lightning_fire.where.selection import shorten

ISOMETRY = 1e-4  # normalized deviation of one: rounding to bfloat16 leaves 1e-6, a missing direction of n leaves 1 / n
LARGE, LARGE_IN_GPT = 3.0, 1.2  # growth of the norm; new weights of torch's layers grow by 1.7 (docs/which_scale.md)
_ADVICE = "the old weights are small for this scale: try scale='procrustes', which roughly keeps their size"


@dataclass(frozen=True)
class FIRE(EventMethod):
    """Replaces selected weights by the nearest orthogonal ones.

    Args:
        where: The weights to replace. Default: `Weights()`: of a causal language model every Linear weight, of other
            transformers the query and key projections, otherwise every Linear and convolution weight. Layers with one
            output or one input are excluded, as only their length would change (`Weights(vectors=True)` includes them).
        steps: Newton–Schulz steps (paper: 10 in vision, 5 for GPT), or `exact` for the limit.
        coefficients: Of the Newton–Schulz polynomial: `cubic` (paper, Algorithm 1), `quintic` or `muon`.
        scale: `paper`: √(out / in) / kernel positions; `none`: singular values near 1; `procrustes`: the scale with the
            smallest Frobenius error for each matrix; `auto`: `paper` for weights followed by a normalization layer,
            otherwise `procrustes`. For an MLP in classification, or a language model after a short first training, try
            `procrustes` (docs/which_scale.md).
        optimizer_state: Whose optimizer state to drop: `keep` drops nothing, `touched` that of the replaced weights,
            `all` everything, as the paper does in vision and language (for every method: `OptimizerReset`).

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.
    """

    name: ClassVar[str] = "fire"
    default_where: ClassVar[Weights] = Weights()
    acts_on_shards = True
    measures_curvature: ClassVar[bool] = True

    where: Weights | None = None
    steps: int | Literal["exact"] = 10
    coefficients: Coefficients = "cubic"
    scale: Scale | Literal["auto"] = "paper"
    optimizer_state: OptimizerPolicy = "touched"

    def __post_init__(self) -> None:
        super().__post_init__()
        few = min(self.steps, 1) if isinstance(self.steps, Integral) else self.steps
        scale = "paper" if self.scale == "auto" else self.scale
        fire_of_finite([torch.eye(1, device="cpu")], few, self.coefficients, [scale])  # checks them

    def selected(self, model: nn.Module, training: Loop) -> str:
        """Describe how many weights it replaces, by which preset, and with `scale="auto"` the scales."""
        weights = self.selection.select(model, training.trained(model))
        names = " … ".join(dict.fromkeys([weights[0].name, weights[-1].name]))
        scales = f", {_in_words(scales_of(model, weights))}" if self.scale == "auto" else ""
        return f"{matrices_in_words(weights)} ({names}){scales}"

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Compute the nearest orthogonal weights."""
        weights = self.selection.select(model, training.trained(model))
        names = [view.name for view in weights]
        scales = scales_of(model, weights) if self.scale == "auto" else dict.fromkeys(names, self.scale)

        missed: set[str] = set()

        def new_weights(views: Sequence[WeightView], old: Sequence[Tensor]) -> list[Tensor]:
            project = projected if missed.isdisjoint(view.name for view in views) else by_svd
            own = [scales[view.name] for view in views]
            return fire_of_finite(old, self.steps, self.coefficients, own, views[0].groups, project)

        measure = training.measure or self.steps == "exact"
        change = change_weights(weights, new_weights, training.share_work, measure)
        if self.steps == "exact":
            missed.update(_missed(change, weights))
        if missed:
            warn(f"FIRE computes {shorten(sorted(missed))} again, by singular value decompositions", model)
            change = change_weights(weights, new_weights, training.share_work, measure)
        if change.report and (zeros := change.report.zeros):
            warn(f"FIRE leaves all-zero matrices at zero, they have no nearest isometry: {', '.join(zeros)}", model)
        large = LARGE_IN_GPT if getattr(weights, "preset", "") == "gpt" else LARGE
        if change.report and (change.report.norm_ratio or 0) > large:
            change = replace(change, report=replace(change.report, advice=_ADVICE))
        report = change.report or Report()
        if not training.measure:
            report, change = Report(taken=report.taken), replace(change, weights=())
        return replace(change, report=replace(report, left_out=left_out_of(weights)))


def fire_(
    model: nn.Module | Sequence[nn.Module],
    where: Weights | None = None,
    steps: int | Literal["exact"] = 10,
    coefficients: Coefficients = "cubic",
    scale: Scale | Literal["auto"] = "paper",
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    averages: Any = (),
) -> Report:
    """Replace selected weights of a model by the nearest orthogonal ones, in place. Function form of `FIRE`.

    Args:
        model: Any module, or a list of them, which change together, see `EventMethod.__call__`.
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains stay.
        averages: One or several averages of the weights, which restart from the new weights, see `Loop`.

    Returns:
        Deviation from isometry before and after, squared Frobenius error, and seconds, of all weights and by weight.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, `where` matches no weight, the optimizers train none of the matched
            weights, or a weight has a NaN or Inf. The model is unchanged then.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> report = fire_(model, optimizers=optimizer)
        >>> report["dfi_normalized_after"] < report["dfi_normalized_before"]
        True
    """
    return FIRE(where, steps, coefficients, scale, optimizer_state)(model, Loop(optimizers, averages=averages))


def scales_of(model: nn.Module, weights: Sequence[WeightView]) -> dict[str, Scale]:
    """Choose a scale for each weight by the layers after it, as `scale="auto"` does.

    `paper` if a normalization layer comes later in the network, as it undoes the scale; otherwise `procrustes`, which
    roughly keeps the size of the weight.

    Args:
        model: Any module.
        weights: Selected weights of the model.

    Returns:
        The scale of each weight, by name.
    """
    normalized = normalized_weights(model, weights)
    return {view.name: "paper" if view.name in normalized else "procrustes" for view in weights}


def _missed(change: Change, weights: Sequence[WeightView]) -> list[str]:
    """Return the names of new weights that are not isometries because Newton–Schulz did not converge."""
    report = change.report or Report()
    by_products = [view.name for view in weights if view.parameter.device.type != "cpu"]  # other ranks check their own
    after = report.table["dfi_normalized_after"]
    return [name for name in by_products if not after[name] < ISOMETRY and name not in report.zeros]


def _in_words(scales: Mapping[str, Scale]) -> str:
    """Describe which weights have which scale, and the reason."""
    reasons = {"paper": "normalized later", "procrustes": "not normalized later"}
    found = {scale: [name for name, own in scales.items() if own == scale] for scale in reasons}
    parts = [
        f"{scale} for the {len(names)} that are {reasons[scale]} ({shorten(names, most=3)})"
        for scale, names in found.items()
        if names
    ]
    return f"scale {' and '.join(parts)}"
