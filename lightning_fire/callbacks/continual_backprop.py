"""Continual backprop as a callback (Dohare et al., Nature 2024)."""

from typing import Any

from lightning.pytorch import LightningModule

from lightning_fire import methods
from lightning_fire.callbacks.base.units import UnitCallback
from lightning_fire.methods.base.unit_reset import Output, check_output
from lightning_fire.methods.continual_backprop import check
from lightning_fire.where import HiddenUnits


class ContinualBackprop(UnitCallback):
    """Re-initializes, after each optimizer step, a small fraction of the least useful hidden units.

    See `methods.ContinualBackprop`. Logs `continual_backprop/units`, the units replaced so far, at the end of each
    epoch in which it acts.

    Args:
        replacement_rate: ρ, fraction of the mature units replaced at each step, in [0, 1] (paper: tuned, 1e-4 or 1e-5;
            its tables call it τ).
        maturity: m, steps before a new unit may be replaced, at least 0 (paper: tuned, 100 or 1000).
        decay: η of the exponential moving averages, in [0, 1).
        start_chunk: Number of changes of the data before which it does nothing (paper, warm start: 1).
        compensate: Add the mean output of a replaced unit, after normalisation and nonlinearity, to the bias of the
            layers after it, where they have one.
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        seed: Seed of the new weights, the same on every rank.
        score: The output in the utility: `"activation"`, after normalisation and nonlinearity; `"pre_activation"`,
            before both, as in the code of the paper's authors.

    Raises:
        ValueError: If an argument is out of range, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if the module optimizes manually and has no `loss_on`.
    """

    name = "continual_backprop"

    def __init__(
        self,
        replacement_rate: float = 1e-4,
        maturity: int = 100,
        decay: float = 0.99,
        start_chunk: int = 0,
        compensate: bool = True,
        where: HiddenUnits | None = None,
        seed: int = 0,
        score: Output = "activation",
    ):
        super().__init__(where, start_chunk, seed)
        check(replacement_rate, maturity, decay)
        check_output(score)
        self.replacement_rate, self.maturity = replacement_rate, maturity
        self.decay, self.compensate, self.score = decay, compensate, score

    def make(self, pl_module: LightningModule, run: Any) -> methods.ContinualBackprop:
        how = self.replacement_rate, self.maturity, self.decay, self.compensate
        return methods.ContinualBackprop(pl_module, run, *how, self.where, self.seed, self.score)
