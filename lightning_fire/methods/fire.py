"""FIRE: Frobenius-isometry reinitialization (ICLR 2026)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from lightning_fire.distributed import warn
from lightning_fire.functional import fire
from lightning_fire.functional.orthogonal import Coefficients, Scale
from lightning_fire.methods.base.change import Change, change_weights, in_place
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, Optimizers, check_policy
from lightning_fire.methods.base.selecting import select_weights, trained_by
from lightning_fire.where import Weights, WeightView, normalized_weights


def plan_fire(
    model: nn.Module,
    where: Weights | None = None,
    steps: int | Literal["exact"] = 10,
    coefficients: Coefficients = "cubic",
    scale: Scale | Literal["auto"] = "paper",
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    share_work: bool = False,
    measure: bool = True,
) -> Change:
    """Replace selected weights of a model by the nearest orthogonal ones, in place.

    Args:
        where: The weights to replace. Default: `Weights()`: of a causal language model every Linear weight, of other
            transformers the query and key projections, otherwise every Linear and convolution weight.
        steps: Newton–Schulz steps (paper: 10 in vision, 5 for GPT), or `"exact"` for the limit.
        coefficients: Of the Newton–Schulz polynomial, see `functional.orthogonalize`.
        scale: Scale of the new weights, see `functional.fire`; `"auto"`: see `scales_of`.
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains, such as those
            of a teacher, stay, with a warning. Without them every trainable weight may be selected.
        optimizer_state: What to drop: `"keep"` nothing, `"touched"` the state of new weights, `"all"` everything.
        share_work: With `torch.distributed`, let each rank compute some of the weights and send them to the others.
            All ranks must call this and have the same weights. Without it they compute the same values on their own.
        measure: Whether to fill the report, which costs some matrix products.

    Returns:
        Deviation from isometry before and after, squared Frobenius error, and seconds, of all weights and by weight.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If an argument is out of range, `where` matches no weight, the optimizers train none of the matched
            weights, or a weight has a NaN or Inf. The model is unchanged then.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> report = fire_(model, optimizers=optimizer)
        >>> report["dfi_normalized_after"] < report["dfi_normalized_before"]
        True
    """

    check_policy(optimizer_state, "optimizer_state")
    with trained_by(model, optimizers) as optimizers:
        weights, left_out = select_weights(model, where, Weights())
    scales = scales_of(model, weights) if scale == "auto" else dict.fromkeys((view.name for view in weights), scale)

    def new_weight(view: WeightView, weight: Tensor) -> Tensor:
        return fire(weight, steps, coefficients, scales[view.name], view.groups)

    change = change_weights(weights, new_weight, optimizers, optimizer_state, share_work, measure)
    if zeros := change.report.zeros:
        warn(f"FIRE leaves all-zero matrices at zero, they have no nearest isometry: {', '.join(zeros)}", model)
    return replace(change, left_out=left_out)


fire_ = in_place(plan_fire)


def scales_of(model: nn.Module, weights: Sequence[WeightView]) -> dict[str, Scale]:
    """Choose a scale for each weight by what follows it, as `scale="auto"` does.

    `paper` where a normalization layer comes later in the network, as it undoes the scale. `procrustes`, which keeps
    the size of the weight, where none does.

    Args:
        model: Any module.
        weights: Selected weights of the model.

    Returns:
        The scale of each weight, by name.
    """
    normalized = normalized_weights(model, weights)
    return {view.name: "paper" if view.name in normalized else "procrustes" for view in weights}
