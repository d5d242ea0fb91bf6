"""Restart of learning-rate schedules at new data."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch.optim import Optimizer

from lightning_fire._private import is_a
from lightning_fire.callbacks.log import Log
from lightning_fire.callbacks.plasticity_callback import PlasticityCallback
from lightning_fire.methods import Change, EventMethod
from lightning_fire.methods.base.optimizers import with_inner
from lightning_fire.methods.base.report import Report
from lightning_fire.when import Schedule

_COUNTS = ("num_steps", "step", "k")  # step counts in parameter groups, such as that of UPGD for its noise


class _Restart(EventMethod):
    name: ClassVar[str] = "restart_schedulers"
    acts_on_shards = True
    changes_weights: ClassVar[bool] = False
    changes_output: ClassVar[bool] = False


class RestartSchedulers(PlasticityCallback):
    """Restarts the learning-rate schedules when new data arrives, by calling `configure_optimizers` again.

    Schedulers and the settings of parameter groups (learning rate, momentum, weight decay) are then those of a new
    training, also for `OneCycleLR`, `ReduceLROnPlateau` and schedules of other libraries. Parameters that were trained
    before keep their optimizer state (moments and step counts, also those stored by group); new ones, such as those of
    a larger head, are added. Groups added to an optimizer later, as by `BackboneFinetuning`, do not change.

    `configure_optimizers` runs with the new data loaded and sets the length of a schedule in optimizer steps:
    `self.trainer.estimated_stepping_batches` is `max_epochs` times an epoch of the new data.
    `self.trainer.num_training_batches` is one such epoch, but only at an event: at the first call, before training, no
    data is loaded and it is `inf`.

    `Classifier` and `LanguageModel` restart their learning rates by themselves and do not need this callback.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        log: What to log; only its `name` is used. Default: `Log()`.

    Raises:
        MisconfigurationException: If `configure_optimizers` returns None.
    """

    acts_first = True  # other methods then see the parameters that it adds to the optimizer

    def __init__(self, when: Schedule | Sequence[Schedule] | None = None, log: Log | None = None):
        super().__init__(_Restart(), when, log=log)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        _check_configured(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self.num_events:  # resumed: checkpoints lack the functions of LambdaLR, which may depend on a length
            states = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
            settings = [_settings(optimizer) for optimizer in trainer.optimizers]
            _configure_again(trainer, trainer.optimizers)
            for config, state in zip(trainer.lr_scheduler_configs, states, strict=True):
                config.scheduler.load_state_dict(state)
            for optimizer, groups in zip(trainer.optimizers, settings, strict=True):
                for group, values in zip(optimizer.param_groups, groups, strict=True):
                    group.update(values)

    def event(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        return Change(report=Report(), then=[partial(_configure_again, trainer, list(trainer.optimizers))])


def _configure_again(trainer: Trainer, before: Sequence[Optimizer]) -> None:
    """Replace optimizers and schedulers by new ones, with the optimizer state of the optimizers `before`."""
    strategy = trainer.strategy
    former = strategy.optimizers, strategy.lr_scheduler_configs
    try:
        strategy.setup_optimizers(trainer)
        _check_configured(trainer)
    except Exception:
        strategy.optimizers, strategy.lr_scheduler_configs = former
        raise
    for new, old in zip(trainer.optimizers, before, strict=False):
        for group in old.param_groups[len(new.param_groups) :]:  # added later, as by BackboneFinetuning
            later = set(group["params"])
            for own in new.param_groups:
                own["params"] = [parameter for parameter in own["params"] if parameter not in later]
            new.add_param_group(group)
    for new in with_inner(trainer.optimizers):
        trained = {parameter for group in new.param_groups for parameter in group["params"]}
        for old in with_inner(before):
            if type(old) is type(new):
                new.state.update({parameter: state for parameter, state in old.state.items() if parameter in trained})
                for group, earlier in zip(new.param_groups, old.param_groups, strict=False):
                    group.update({name: earlier[name] for name in _COUNTS if name in group and name in earlier})


def _check_configured(trainer: Trainer) -> None:
    """Raise an error if the optimizers are what Lightning puts for None."""
    if any(is_a(optimizer, "_MockOptimizer") for optimizer in trainer.optimizers):
        raise MisconfigurationException(
            "RestartSchedulers takes new optimizers and schedules from `configure_optimizers`, which returned None:"
            " return them there, or restart the schedules where the optimizers are made, without RestartSchedulers."
        )


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
