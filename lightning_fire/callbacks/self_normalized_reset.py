"""SNR, self-normalized resets, as a callback (Farias and Jozefiak, ICLR 2025)."""

from typing import Any

from lightning.pytorch import LightningModule

from lightning_fire import methods
from lightning_fire.callbacks.base.units import UnitCallback
from lightning_fire.methods.base.unit_reset import Output, check_output
from lightning_fire.methods.self_normalized_reset import check
from lightning_fire.where import HiddenUnits


class SelfNormalizedReset(UnitCallback):
    """Re-initializes hidden units whose inactivity is improbably long given their own past inter-firing intervals.

    See `methods.SelfNormalizedReset`. Logs, at the end of each epoch in which it acts, `snr/units`, the units reset so
    far, and `snr/threshold`, the largest allowed inter-firing interval in samples, mean over the units.

    Args:
        rejection: τ, in (0, 1) (paper: tuned, 0.01 to 0.08; the SNR paper calls it η).
        refresh_every: Optimizer steps between updates of each unit's threshold from the intervals since the last update
            (FIRE's authors: 16; SNR's: a task). Memory grows with it: 8 bytes per unit and step.
        max_silence: Largest threshold, in samples; half of it is the first one (FIRE's authors: 20000).
        expansion: Factor by which a threshold grows if more than the fraction τ of the intervals is longer.
        start_chunk: Number of changes of the data before which it does nothing (paper, warm start: 1).
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        seed: Seed of the new weights, the same on every rank.
        score: The output by which a unit fires, above 0: `"activation"`, after normalisation and nonlinearity;
            `"pre_activation"`, before both, as in the code of the paper's authors.

    Raises:
        ValueError: If an argument is out of range, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if the module optimizes manually and has no `loss_on`.
    """

    name = "snr"

    def __init__(
        self,
        rejection: float = 0.02,
        refresh_every: int = 16,
        max_silence: int = 20000,
        expansion: float = 2.0,
        start_chunk: int = 0,
        where: HiddenUnits | None = None,
        seed: int = 0,
        score: Output = "activation",
    ):
        super().__init__(where, start_chunk, seed)
        check(rejection, refresh_every, max_silence, expansion)
        check_output(score)
        self.rejection, self.refresh_every = rejection, refresh_every
        self.max_silence, self.expansion, self.score = max_silence, expansion, score

    def make(self, pl_module: LightningModule, run: Any) -> methods.SelfNormalizedReset:
        how = self.rejection, self.refresh_every, self.max_silence, self.expansion
        return methods.SelfNormalizedReset(pl_module, run, *how, self.where, self.seed, self.score)

    def report(self) -> dict[str, float]:
        return {**super().report(), f"{self.name}/threshold": self._method.mean_threshold}
