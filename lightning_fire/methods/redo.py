"""ReDo: recycling dormant neurons (Sokar et al., ICML 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from lightning_fire.distributed import mean_over_ranks
from lightning_fire.functional import dormant
from lightning_fire.functional.checks import at_least, one_of
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import EventMethod
from lightning_fire.methods.base.passes import same_buffers
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.unit_reset import (
    OfUnits,
    reset_units,
    select_units,
    trained_units,
    units_in,
    units_in_words,
)
from lightning_fire.methods.base.unit_scores import (
    Score,
    incoming_weights,
    mean_activities,
    mean_gradients,
)
from lightning_fire.methods.initial_values import seed_of_draw
from lightning_fire.when import EveryNEpochs, Schedule
from lightning_fire.where import HiddenUnits, UnitLayer


@dataclass(frozen=True)
class ReDo(OfUnits, EventMethod):
    """Re-initializes the dormant hidden units.

    A unit is dormant if its score on batches of the training data is at most τ times the mean score of its layer. The
    incoming weights of a dormant unit are drawn by the layer's `reset_parameters`. Its bias, its outgoing weights and
    the matching entries of the optimizer's moments become 0. In normalization layers its scale and running variance
    become 1, its shift and running mean 0. With `score="gradient"` its outgoing weights stay, as without them it would
    have no gradient.

    Reports `dormant_fraction`, of all units and by layer, and `units`, the number of re-initialized units.

    Args:
        threshold: τ, at least 0 (ReDo: 0.025; the FIRE paper: tuned, 0.01 to 0.5; ReGraMa's code: 0).
        num_batches: Number of batches for the scores, at most one epoch.
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        seed: Seed of the new weights, the same on every rank.
        score: `"activation"`: mean |h| of the unit's output h after normalization and nonlinearity (ReDo).
            `"pre_activation"`: mean max(0, z) of its output z before normalization (the code of the FIRE paper's
            authors). `"gradient"`: mean |∂loss/∂w| over its incoming weights w (ReGraMa, Liu et al., 2025).

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.

    Example:
        >>> import torch
        >>> from lightning_fire.methods import Loop
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> _ = nn.init.constant_(model[0].bias, -100.0)
        >>> x = torch.ones(16, 2)
        >>> ReDo()(model, Loop(forward=lambda: model(x)))["units"]
        8.0
    """

    name: ClassVar[str] = "redo"
    when: ClassVar[Schedule] = EveryNEpochs(1)  # as the authors of the FIRE paper do; ReDo's own code: 1000 steps
    optimizer_state = "keep"  # except for the entries of new units
    remakes_network: ClassVar[bool] = False

    threshold: float = 0.025
    num_batches: int = 1
    where: HiddenUnits | None = None
    seed: int = 0
    score: Score = "activation"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, whole=False, threshold=self.threshold)
        at_least(1, num_batches=self.num_batches)
        one_of(Score, score=self.score)

    def selected(self, model: nn.Module, training: Loop) -> str:
        """Describe the number of units and layers that it watches."""
        return units_in_words(select_units(model, training, self.where))

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Score the units and draw new weights for dormant ones."""
        with same_buffers(model):  # new values of buffers start from those before the passes
            layers = select_units(model, training, self.where)
            means = mean_over_ranks(self._scores(layers, training), training.ranks)
        scores = means.split([layer.size for layer in layers])
        dormant_units = units_in([dormant(each, self.threshold) for each in scores], layers)
        chosen = dormant_units
        if any(len(units) for _, units in chosen):
            chosen = list(trained_units(chosen, model, layers, training))
        values: dict[Tensor, Tensor] = {}
        seed = seed_of_draw(self.seed, training.event)
        reset_units(values, chosen, seed, model, training, keep_outgoing=self.score == "gradient")
        report = Report(
            {
                "dormant_fraction": sum(len(found) for _, found in dormant_units) / len(means),
                "units": float(sum(len(found) for _, found in chosen)),
            },
            layers={"dormant_fraction": {layer.name: len(found) / layer.size for layer, found in dormant_units}},
        )
        return Change(values, report)

    def _scores(self, layers: Sequence[UnitLayer], training: Loop) -> Tensor:
        """Return the scores of all units, shape (units of all layers,)."""
        if self.score == "gradient":
            return mean_gradients(layers, training.gradients(incoming_weights(layers), self.num_batches))
        return mean_activities(layers, partial(training.run, self.num_batches), self.score)
