"""ReDo as a callback: recycling dormant neurons (Sokar et al., ICML 2023)."""

import math
from collections.abc import Sequence
from functools import partial

from lightning.pytorch import LightningModule, Trainer

from lightning_fire import methods
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.event_log import Log
from lightning_fire.callbacks.base.from_chunk import check_start_chunk
from lightning_fire.callbacks.base.units import tell_units, units_shown_later
from lightning_fire.callbacks.probing.batches import forward_on_new_data, gradients_on_new_data
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.unit_scores import Score, check_score, incoming_weights, mean_gradients
from lightning_fire.when import Clock, EveryNEpochs, Horizon, Schedule
from lightning_fire.where import HiddenUnits
from lightning_fire.where.argument import checked


class ReDo(EventCallback):
    """Re-initializes the dormant hidden units, see `methods.ReDo`.

    At each event it runs the module on batches of the training data, without side effects, and for
    `score="gradient"` computes the gradient of the loss on each. Logs
    `redo/dormant_fraction`, of all units; `redo/units`, the number of units re-initialized; `redo/event`; and per layer
    `redo.layers/dormant_fraction/<layer>`.

    Args:
        when: Schedule, or several of which any may be due. Default: `EveryNEpochs(1)`, between two epochs, as the
            authors of the FIRE paper do; ReDo's own code: `EveryNSteps(1000)`.
        threshold: τ, at least 0 (ReDo: 0.025; the paper: tuned, 0.01 to 0.5).
        start_chunk: Do nothing before a batch has been trained after this number of changes of the data, at least 0
            (paper, warm start: 1, so that it first acts when the first epoch on the new data has ended).
        num_batches: Number of batches to compute the scores on, at most an epoch of them.
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        seed: Seed of the new weights, the same on every rank.
        score: Score by which a unit is dormant: `"activation"`, its output after normalisation and nonlinearity;
            `"pre_activation"`, the positive part of its output before normalisation, as in the code of the paper's
            authors; `"gradient"`, the gradient of the loss with respect to its incoming weights (ReGraMa), whose resets
            keep outgoing weights.
        log: What to log. Default: `Log()`.

    Raises:
        ValueError: If an argument is out of range, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if the module optimizes manually and has no `loss_on`.
    """

    name = "redo"
    remakes_network = False

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        threshold: float = 0.025,
        start_chunk: int = 0,
        num_batches: int = 1,
        where: HiddenUnits | None = None,
        seed: int = 0,
        score: Score = "activation",
        log: Log | None = None,
    ):
        super().__init__(EveryNEpochs(1) if when is None else when, log)
        if threshold < 0:
            raise ValueError(f"`threshold` must be at least 0, got {threshold}")
        check_start_chunk(start_chunk)
        if num_batches < 1:
            raise ValueError(f"`num_batches` must be at least 1, got {num_batches}")
        check_score(score)
        self.threshold, self.start_chunk, self.num_batches = threshold, start_chunk, num_batches
        self.where = checked(where, HiddenUnits())
        self.seed, self.score = seed, score

    def show_selection(self, pl_module: LightningModule) -> str:
        return units_shown_later(self)

    def idle_epochs(self, horizon: Horizon) -> float:
        return math.inf if self.start_chunk >= 1 else 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        run = partial(forward_on_new_data, trainer, pl_module, 1)
        with self.selecting(trainer, pl_module):
            self._method = methods.ReDo(pl_module, run, self.threshold, self.where, self.seed, self.score)
        tell_units(self, self._method.layers)

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        trained = clock.chunk - (clock.new_data and clock.chunk > 0)  # chunk of the last batch
        if trained < self.start_chunk:
            self.progress.last_event = clock.step  # nor at the first batch on new data, before which no step is made
            return
        super().at(trainer, pl_module, clock)

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        if self.score == "gradient":
            layers = self._method.layers
            weights = incoming_weights(layers)
            batches = gradients_on_new_data(trainer, pl_module, weights, self.num_batches)
            measured = mean_gradients(layers, batches)
        else:
            measured = self._method.measure(partial(forward_on_new_data, trainer, pl_module, self.num_batches))
        return self._method.plan(measured, trainer.optimizers, self.num_events)
