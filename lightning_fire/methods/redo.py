"""ReDo: recycling dormant neurons (Sokar et al., ICML 2023)."""

from typing import Any

from torch import Tensor, nn

from lightning_fire.distributed import mean_over_ranks
from lightning_fire.functional import dormant
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import Optimizers, listed
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.unit_reset import Forward, plan_unit_resets, select_units, trained_units
from lightning_fire.methods.base.unit_scores import (
    Score,
    check_score,
    gradients_of,
    incoming_weights,
    mean_activities,
    mean_gradients,
    mean_pre_activations,
)
from lightning_fire.methods.initial_values import seed_of_draw
from lightning_fire.where import HiddenUnits


class ReDo:
    """Re-initializes the dormant hidden units of a model.

    A unit is dormant if its score is at most τ times the mean score of its layer. Incoming weights of a dormant unit
    are drawn by the layer's `reset_parameters`. Its bias, its outgoing weights and the matching entries of the
    optimizer's moments become 0. In normalisation layers its scale and running variance become 1, its shift and running
    mean 0. With `score="gradient"` its outgoing weights stay: without them it would have no gradient.

    Args:
        model: Any module.
        forward: Runs it once, on any batch, to find its units.
        threshold: τ, at least 0 (ReDo: 0.025; the FIRE paper: tuned, 0.01 to 0.5; ReGraMa's code: 0).
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        seed: Seed of the new draws, the same on every rank.
        score: `"activation"`: mean |h| of the unit's output h after normalisation and nonlinearity (ReDo).
            `"pre_activation"`: mean max(0, z) of its output z before normalisation (the code of the FIRE paper's
            authors). `"gradient"`: mean |∂loss/∂w| over its incoming weights w (ReGraMa, Liu et al., 2025).

    Attributes:
        layers: The layers of units.

    Raises:
        ValueError: If `threshold` is below 0, `score` is not known, or `where` finds no units.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> _ = nn.init.constant_(model[0].bias, -100.0)
        >>> x = model[0].weight.new_ones(16, 2)
        >>> redo = ReDo(model, lambda: model(x))
        >>> redo.step(lambda: model(x))["units"]
        8.0
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Forward,
        threshold: float = 0.025,
        where: HiddenUnits | None = None,
        seed: int = 0,
        score: Score = "activation",
    ):
        if threshold < 0:
            raise ValueError(f"`threshold` must be at least 0, got {threshold}")
        check_score(score)
        self.threshold, self.seed, self.score, self.num_steps = threshold, seed, score, 0
        self.layers = select_units(model, forward, where)

    def step(self, forward: Forward, optimizers: Optimizers = ()) -> Report:
        """Re-initialize the units that are dormant in one or several forward passes.

        Args:
            forward: Runs the model, on batches of training data; with `score="gradient"` it returns the loss, a scalar
                with a graph. `.grad` of the parameters stays as it is.
            optimizers: The optimizers that train the model, one or several. Layers that none of them trains are left
                alone. Default: every layer may be changed.

        Returns:
            `dormant_fraction`, in all layers and by layer, and `units`, the number of units that are new.
        """
        report = self.plan(self.measure(forward), optimizers, self.num_steps + 1).apply()
        self.num_steps += 1
        return report

    def measure(self, forward: Forward) -> Tensor:
        """Return the terms of the scores of all units, shape (units of all layers,); see `step`."""
        if self.score == "gradient":
            return mean_gradients(self.layers, [gradients_of(forward(), incoming_weights(self.layers))])
        return (mean_pre_activations if self.score == "pre_activation" else mean_activities)(self.layers, forward)

    def plan(self, measured: Tensor, optimizers: Optimizers, number: int) -> Change:
        """Compute what `step` does, as the step of this number, counted from 1, and change nothing yet."""
        means = mean_over_ranks(measured)
        activities = means.split([layer.size for layer in self.layers])
        dormant_units = [
            (layer, dormant(activity, self.threshold).nonzero().flatten())
            for layer, activity in zip(self.layers, activities, strict=True)
        ]
        optimizers = listed(optimizers)
        chosen = trained_units(dormant_units, self.layers, optimizers)
        seed = seed_of_draw(self.seed, number)
        report = Report(
            {
                "dormant_fraction": sum(len(found) for _, found in dormant_units) / len(means),
                "units": float(sum(len(found) for _, found in chosen)),
            },
            layers={"dormant_fraction": {layer.name: len(found) / layer.size for layer, found in dormant_units}},
        )
        keep = self.score == "gradient"  # without outgoing weights a unit would have none
        return Change(report, then=plan_unit_resets(chosen, seed, optimizers, keep))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, from which the next draw follows."""
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.num_steps = state["num_steps"]
