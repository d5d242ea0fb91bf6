"""ReDo: recycling dormant neurons (Sokar et al., ICML 2023)."""

from collections.abc import Mapping, Sequence

from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.initial_values import seed_of_draw
from lightning_fire.callbacks.base.unit_reset import WithHiddenUnits, reset_units
from lightning_fire.callbacks.probing.activations import mean_activities
from lightning_fire.callbacks.probing.batches import Forward
from lightning_fire.functional import dormant
from lightning_fire.when import Clock, EveryNEpochs, Schedule
from lightning_fire.where import HiddenUnits


class ReDo(WithHiddenUnits, EventCallback):
    """Resets the hidden units that do next to nothing.

    At each event it looks at batches of the training data, and training goes on as if nobody had looked. A unit is
    dormant if its mean |activation|, after norm and nonlinearity, is at most τ times that of its layer. A dormant unit
    begins anew: incoming weights drawn by the layer's `reset_parameters`, bias and entries of normalisation layers at
    their start, outgoing weights 0, and 0 in the matching entries of the optimizer's moments.

    Logs `redo/dormant_fraction`, of all units looked at, `redo/units`, the number reset, `redo/event`, and per layer
    `redo.layers/dormant_fraction/<layer>`.

    Args:
        when: Schedule, or several of which any may be due. Default: `EveryNEpochs(1)`, as the authors of the FIRE paper
            do; ReDo's own code: `EveryNSteps(1000)`.
        threshold: τ, at least 0 (ReDo: 0.025; the paper: tuned, 0.01 to 0.5).
        start_chunk: Do nothing before the data has changed this often (paper, warm start: 1).
        num_batches: Batches to look at, at most an epoch of them.
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        forward: Runs the module on a batch. Default: its `loss_on(batch)` if it has one, otherwise
            `training_step`; what that logs is dropped.
        seed: Seed of the new draws, the same on every rank.
        log_layers: Also log each layer by itself.
        name: Prefix of the logged keys in the place of `redo`.

    Raises:
        ValueError: If an argument is out of range, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if the module optimises manually and has no `loss_on`, and
            `forward` is not given.
    """

    name = "redo"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        threshold: float = 0.025,
        start_chunk: int = 0,
        num_batches: int = 1,
        where: HiddenUnits | None = None,
        forward: Forward | None = None,
        seed: int = 0,
        log_layers: bool = True,
        name: str | None = None,
    ):
        super().__init__(
            EveryNEpochs(1) if when is None else when,
            name,
            where=where,
            start_chunk=start_chunk,
            forward=forward,
            seed=seed,
        )
        if threshold < 0:
            raise ValueError(f"`threshold` must be at least 0, got {threshold}")
        if num_batches < 1:
            raise ValueError(f"`num_batches` must be at least 1, got {num_batches}")
        self.threshold, self.num_batches, self.log_layers = threshold, num_batches, log_layers

    def describe(self) -> str:
        return f"{self.when!r}, {self.where!r}"

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if clock.chunk >= self.start_chunk:
            super().at(trainer, pl_module, clock)

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        means = mean_activities(trainer, pl_module, self.layers, self.num_batches, self.forward)
        means = trainer.strategy.reduce(means, reduce_op="mean")
        activities = means.split([layer.size for layer in self.layers])
        resets = [dormant(activity, self.threshold).nonzero().flatten() for activity in activities]
        chosen = list(zip(self.layers, resets, strict=True))
        seed = seed_of_draw(self.seed, self.num_events)
        self.carry_out(pl_module, lambda: reset_units(chosen, seed, trainer.optimizers))
        number, units = sum(map(len, resets)), sum(layer.size for layer in self.layers)
        values = {f"{self.name}/dormant_fraction": number / units, f"{self.name}/units": float(number)}
        if self.log_layers:
            values |= {
                f"{self.name}.layers/dormant_fraction/{layer.name}": len(dead) / layer.size for layer, dead in chosen
            }
        return values
