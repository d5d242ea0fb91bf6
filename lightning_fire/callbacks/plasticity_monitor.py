"""Metrics of plasticity during training, for any method."""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.callbacks.base import ClockCallback
from lightning_fire.callbacks.log import Log, log_now, log_of, loss_scale
from lightning_fire.callbacks.probing.batches import (
    BatchInHand,
    copied,
    evaluating,
    on_all_ranks,
    training_loss,
    why_not_run,
)
from lightning_fire.callbacks.probing.curvature import measured_lambda_max
from lightning_fire.callbacks.probing.one_step import measured_one_step
from lightning_fire.distributed import gathered, reshard
from lightning_fire.functional.checks import at_least
from lightning_fire.messages import inform
from lightning_fire.methods.base.plasticity import (
    gram_of_last_features,
    report_of_features,
    report_of_units,
    report_of_weights,
)
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.unit_scores import mean_activities
from lightning_fire.when import Clock
from lightning_fire.where import HiddenUnits, UnitLayer, Weights
from lightning_fire.where.argument import checked


class PlasticityMonitor(ClockCallback):
    """Logs metrics of plasticity at the end of epochs, and their cost.

    Weights, at the end of every `every_n_epochs`-th epoch: `plasticity/dfi_normalized` and `plasticity.raw/dfi`, means
    over the weights; `plasticity/weight_norm`, the Frobenius norm of all of them; `plasticity/gradient_norm`, the norm
    of the gradient of the epoch's last step, before clipping, including changes by earlier callbacks.

    Network, on the last batches of an epoch, in evaluation mode and without side effects, at the end of the first epoch
    after each `data_every_n_steps` steps: `plasticity/dormant_fraction` of its hidden units; `plasticity/srank`,
    `plasticity/stable_rank` and `plasticity/entropy_rank` of the inputs of its last layer; `plasticity/readiness` and
    `plasticity/critical_sharpness` of its loss on the first 16 samples; with `Log(curvature=True)`,
    `plasticity/lambda_max` and `plasticity/lambda_max_residual`, the largest eigenvalue of the Hessian of its loss on
    the first 8 samples.

    Cost: `plasticity/seconds`, the time of this measurement, and `plasticity/overhead`, the total measuring time
    divided by the remaining time of the fit. Per layer, under `plasticity.layers/`: both DfI and the dormant fraction.
    At the start of each epoch: `plasticity/chunk`, the number of changes of the data. Before the first step on new
    data, after the events of all callbacks: `plasticity/dfi_normalized_at_new_data` and
    `plasticity.raw/dfi_at_new_data`.

    Compare values with earlier ones of the same training: with thresholds from other trainings even the best metric,
    srank, is wrong for a quarter of the events. Within a training srank and the dormant fraction are weakly correlated
    with the gain of an event; readiness, critical sharpness and λ_max on the last data are not (docs, "When should FIRE
    act?").

    Args:
        where: The weights to evaluate. Default: `Weights()`.
        every_n_epochs: Evaluate the weights at the end of every n-th epoch.
        data_every_n_steps: Steps between measurements on data; None: never.
        num_batches: Number of batches for a measurement on data, at most one epoch; 1 for data of unknown length. A
            copy of them is kept until the epoch ends.
        units: The hidden units to evaluate. Default: `HiddenUnits()`, all that can be resolved.
        dormancy_threshold: τ: a unit is dormant if its mean |activation| is at most τ times the mean of its layer.
        log: What to log; `curvature=True` adds λ_max, at most 5 products with the Hessian. Default: `Log()`.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.
    """

    acts_on_shards = True
    name = "plasticity"

    def __init__(
        self,
        where: Weights | None = None,
        every_n_epochs: int = 1,
        data_every_n_steps: int | None = 100,
        num_batches: int = 1,
        units: HiddenUnits | None = None,
        dormancy_threshold: float = 0.025,
        log: Log | None = None,
    ):
        super().__init__()
        self.logs = log_of(log)  # Lightning sets `log` of each callback
        self.name = self.logs.name or type(self).name
        at_least(1, every_n_epochs=every_n_epochs, num_batches=num_batches)
        if data_every_n_steps is not None:
            at_least(1, data_every_n_steps=data_every_n_steps)
        at_least(0, whole=False, dormancy_threshold=dormancy_threshold)
        self._chosen = where is not None
        self.where = checked(where, Weights())
        self.units = checked(units, HiddenUnits())
        self.every_n_epochs, self.data_every_n_steps, self.num_batches = every_n_epochs, data_every_n_steps, num_batches
        self.dormancy_threshold = dormancy_threshold
        self._layers: Sequence[UnitLayer] = ()
        self._looks = False
        self._last_look = 0  # steps done then
        self._last_batches: deque[BatchInHand] = deque(maxlen=int(num_batches))  # of this epoch
        self._seen: dict[str, float] = {}  # values of these, until they are logged
        self._gradients: dict[Optimizer, float] = {}  # norms, by optimizer
        self._began = self._seconds = self._seconds_of_look = 0.0
        self._new_data = False  # from the start of an epoch on new data to its first batch

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._chosen:
            self.where.select(pl_module)  # raises before training if nothing matches

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._began, self._seconds, self._gradients = time.perf_counter(), 0.0, {}
        self._last_look = min(self._last_look, self.clock.step)  # another Trainer counts steps from 0
        reason = why_not_run(trainer, pl_module)
        self._looks = self.data_every_n_steps is not None and not reason
        if reason and self.data_every_n_steps is not None:
            inform(f"PlasticityMonitor logs weights only: {reason}.")

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._looks:
            return
        failure: Exception | None = None
        try:
            with evaluating(pl_module):
                self._layers = self.units.select(pl_module, self.given.forward)
        except Exception as error:  # a monitor must not end a training
            failure = error
        if on_all_ranks(trainer, failure is None):
            return
        self._layers = ()
        if isinstance(failure, ValueError) and (self.units.include or self.units.exclude):
            raise failure
        inform(f"{self.name}/dormant_fraction is not logged: {failure}.")

    def held(self) -> Sequence[Tensor]:
        return [parameter for layer in self._layers for parameter in layer.parameters()]

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        if clock.epoch_start:
            log_now(trainer, {f"{self.name}/chunk": float(clock.chunk)})
            self._new_data = clock.new_data and clock.chunk > 0
            self._last_batches.clear()
        left = trainer.num_training_batches - trainer.fit_loop.batch_idx
        if self._looks and (left <= self.num_batches or trainer.is_last_batch):
            self._last_batches.append(replace(self.given, batch=copied(self.given.batch)))

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self._new_data:  # the callbacks have acted
            self._new_data, start = False, time.perf_counter()
            report = self._weights(pl_module)
            if report.raw:
                values = {f"{self.name}/dfi_normalized_at_new_data": report["dfi_normalized"]}
                log_now(trainer, values | {f"{self.name}.raw/dfi_at_new_data": report.raw["dfi"]})
            self._seconds += time.perf_counter() - start
        if not trainer.is_last_batch or (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        gradients = [p.grad.float() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            norms = torch.stack([gathered(gradient.norm()) for gradient in gradients])
            norm = norms.norm() / loss_scale(trainer, optimizer)
            self._gradients[optimizer] = float(norm)  # of the last step, if there are several

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *args)
        every = self.data_every_n_steps
        if not self._looks or every is None or not trainer.is_last_batch:
            return
        start = time.perf_counter()
        if self.clock.step - self._last_look >= every and self._last_batches:
            self._last_look = self.clock.step
            self._seen = self._look(trainer, pl_module)
        self._last_batches.clear()
        self._seconds_of_look = time.perf_counter() - start

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        start = time.perf_counter() - self._seconds_of_look
        values, self._seen, self._seconds_of_look = dict(self._seen), {}, 0.0
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            values |= self._weights(pl_module).keyed(self.name)
            if self._gradients:
                values[f"{self.name}/gradient_norm"] = math.hypot(*self._gradients.values())
        self._gradients = {}
        if not values:
            return
        now = time.perf_counter()
        self._seconds += now - start
        values[f"{self.name}/seconds"] = now - start
        values[f"{self.name}/overhead"] = self._seconds / (now - self._began - self._seconds)
        if not self.logs.layers:
            values = {key: value for key, value in values.items() if ".layers/" not in key}
        log_now(trainer, values, at_epoch_end=True)

    @torch.no_grad()
    def _weights(self, pl_module: LightningModule) -> Report:
        reshard(pl_module)
        return report_of_weights(pl_module, self.where.select(pl_module) if self._chosen else None)

    def _look(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Measure the network on the last batches of the epoch; return the metrics."""
        means, gram, failure, batches = None, None, None, list(self._last_batches)
        try:
            with evaluating(pl_module):
                if self._layers:
                    means = mean_activities(self._layers, lambda: deque(map(BatchInHand.forward, batches), maxlen=0))
                runs = [partial(each.forward, forward=training_loss) for each in batches]
                gram = gram_of_last_features(pl_module, runs)
        except Exception as error:  # a monitor must not end a training
            failure = error
        if not on_all_ranks(trainer, failure is None):
            self._looks = False
            inform(f"PlasticityMonitor from now on logs weights only: {failure or 'another rank failed'}.")
            return {}
        values = {}
        if means is not None:
            means = trainer.strategy.reduce(means, reduce_op="mean")
            values = report_of_units(self._layers, means, self.dormancy_threshold).keyed(self.name)
        values |= report_of_features(trainer.strategy.reduce(gram, reduce_op="sum")).keyed(self.name)
        values |= measured_one_step(batches[0], self.name)
        if self.logs.curvature:
            values |= measured_lambda_max(batches[0], f"{self.name}/lambda_max")
        return values

    def _let_go(self) -> None:
        super()._let_go()
        self._layers = ()
        self._last_batches.clear()

    def describe(self) -> str:
        return f"{self.where!r}, name={self.name!r}"

    def __getstate__(self) -> dict[str, Any]:
        """Exclude layers of the module and batches from copies and pickles."""
        nothing: dict[str, Any] = {
            "_layers": (),
            "_gradients": {},
            "_last_batches": deque(maxlen=int(self.num_batches)),
        }
        return {**super().__getstate__(), **nothing}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "last_look": self._last_look, "seen": dict(self._seen)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._last_look, self._seen = state_dict["last_look"], dict(state_dict["seen"])
