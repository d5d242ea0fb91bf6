"""Plasticity measured by training a copy of the module on a held-out task for some steps."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, RandomSampler

from lightning_fire._lightning import transferred, undeclared
from lightning_fire.callbacks.base import ClockCallback
from lightning_fire.callbacks.log import log_now
from lightning_fire.callbacks.probing.batches import why_not_run
from lightning_fire.callbacks.probing.learning import learning_curve
from lightning_fire.contracts import HasProbeDataloader, implements
from lightning_fire.functional.checks import at_least
from lightning_fire.when import Clock


class PlasticityProbe(ClockCallback):
    """Logs how well a copy of the module learns a fixed held-out task in some steps.

    After Hernandez-Garcia et al. (arXiv 2606.24752), who let copies of a language model learn Vietnamese. `probe/loss`
    is the mean of the losses of all steps, each on a batch before the update with it (the area under the learning
    curve). `probe/last_loss` is the mean over the last fifth of the steps. Both are logged before the first batch, for
    the new network, and at the end of every `every_n_epochs`-th epoch. With `at_new_data`, `probe/loss_at_new_data` and
    `probe/last_loss_at_new_data` are logged before the first step on new data, after the events of all callbacks.

    The copy starts with a new optimizer. The training itself is bit-identical to one without the probe.

    Args:
        task: Batches of the held-out task, as the module gets them in training, in a fixed order. Each probe uses the
            first `steps` of them, on every rank. Default: the `probe_dataloader()` of the DataModule.
        steps: Number of steps of a probe.
        optimizer: Function from the parameters to the optimizer of the copy. Default: Adam with learning rate 1e-3.
        every_n_epochs: Probe at the end of every n-th epoch.
        at_new_data: Whether to probe also at new data, after events.

    Raises:
        ValueError: If an argument is out of range; when training starts, if the task is missing, shuffled, or has
            fewer batches than `steps`.
        MisconfigurationException: When training starts, if the module optimizes manually and has no `loss_on`.
    """

    name = "probe"

    def __init__(
        self,
        task: DataLoader[Any] | None = None,
        steps: int = 50,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
        every_n_epochs: int = 1,
        at_new_data: bool = False,
    ):
        super().__init__()
        at_least(1, steps=steps, every_n_epochs=every_n_epochs)
        self.task, self.steps, self.every_n_epochs, self.at_new_data = task, steps, every_n_epochs, at_new_data
        self.optimizer = optimizer or partial(Adam, lr=1e-3)
        self._task: Any = None  # during a fit
        self._new_data = False  # from the start of an epoch on new data to its first step

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if reason := why_not_run(trainer, pl_module):
            raise MisconfigurationException(f"PlasticityProbe cannot train a copy: {reason}.")
        data = undeclared(trainer).datamodule
        if self.task is None and not implements(data, HasProbeDataloader):
            raise ValueError(
                "PlasticityProbe needs a held-out task: its `task`, or a DataModule with probe_dataloader()"
            )
        self._task = data.probe_dataloader() if self.task is None else self.task
        if isinstance(self._task.sampler, RandomSampler):
            raise ValueError("the held-out task must be the same each time: use a DataLoader with shuffle=False")

    def at(self, trainer: Trainer, pl_module: LightningModule, clock: Clock) -> None:
        self._new_data |= self.at_new_data and clock.new_data and clock.chunk > 0
        if clock.new_data and clock.chunk == 0:
            log_now(trainer, self._probe(trainer, pl_module))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self._new_data:  # the callbacks have acted
            self._new_data = False
            log_now(trainer, {f"{key}_at_new_data": loss for key, loss in self._probe(trainer, pl_module).items()})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            log_now(trainer, self._probe(trainer, pl_module), at_epoch_end=True)

    def _probe(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        with closing(self._batches(trainer)) as batches:
            losses = learning_curve(pl_module, batches, self.optimizer)
        if len(losses) < self.steps:
            raise ValueError(f"the held-out task has {len(losses)} batches, fewer than `steps`={self.steps}")
        last = losses[-max(1, self.steps // 5) :]
        return {f"{self.name}/loss": sum(losses) / len(losses), f"{self.name}/last_loss": sum(last) / len(last)}

    def _batches(self, trainer: Trainer) -> Generator[Any, None, None]:
        for batch in islice(self._task, self.steps):
            yield transferred(trainer, batch)

    def _let_go(self) -> None:
        super()._let_go()
        self._task = None

    def describe(self) -> str:
        return f"name={self.name!r}"
