"""All accesses to private or undeclared attributes of Lightning.

Tested with lightning 2.6.6: new releases are checked against this file. It imports only torch.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_fire._private import is_a

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.utilities import CombinedLoader

_VALIDATED = "_last_val_time"  # of a Trainer: missing before its first validation and in older releases
_AVERAGING = "StochasticWeightAveraging"
OWN_LINKS = ("_trainer", "_fabric")  # attributes by which a LightningModule and its metrics refer to the Trainer


def undeclared(thing: object) -> Any:
    """Return an object of Lightning, such as a Trainer, whose class does not declare all of its attributes."""
    return thing


def data_source(trainer: "Trainer") -> Any:
    """Return the `train_dataloaders` given to `fit`, or the DataModule or LightningModule that makes them.

    The public `Trainer.train_dataloader` is the loader of this epoch, another object after each reload.
    """
    return trainer.fit_loop._data_source.instance


def combined_loader(trainer: "Trainer") -> Any:
    """Return the training loaders combined by Lightning; None before they are loaded."""
    return trainer.fit_loop._combined_loader


def combined_like(combined: "CombinedLoader", loaders: list[Any]) -> "CombinedLoader":
    """Combine other loaders in the same structure and mode, without limits."""
    copied = copy.copy(combined)
    copied.flattened, copied.limits, copied._iterator = loaders, None, None
    return copied


def transferred(trainer: "Trainer", batch: Any) -> Any:
    """Return a batch of a loader as in training: in the dtype of the precision, on the device, after all hooks."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = undeclared(trainer.lightning_module)._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def batches_that_stepped(trainer: "Trainer") -> int:
    """Return the number of batches that made an optimizer step, which Lightning uses as the step of logs.

    Unlike `global_step`, this does not count each optimizer of manual optimization.
    """
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def first_step_after(checkpoint: Mapping[str, Any]) -> int:
    """Return the first step at which a training resumed from the content of a checkpoint logs, in batches."""
    loops = checkpoint["loops"]["fit_loop"]
    batches = loops["epoch_loop.batch_progress"]["total"]
    lag: int = batches["processed"] - batches["completed"]  # 1 if it was saved after a batch or in validation
    return int(loops["epoch_loop.state_dict"]["_batches_that_stepped"]) + lag


def continue_steps_of_logs(trainer: "Trainer", step: int) -> None:
    """Make the next fit log from this step on."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def batches_with_steps(trainer: "Trainer") -> int:
    """Return the number of batches that made a step, also after a resume, where Lightning's count may lag by one."""
    batches = batches_that_stepped(trainer)
    return trainer.global_step if trainer.global_step == batches + 1 else batches


def epochs_of_training(trainer: "Trainer") -> int | None:
    """Return `max_epochs` without the extra epoch of StochasticWeightAveraging, which trains no weight."""
    kept = (getattr(each, "_max_epochs", None) for each in undeclared(trainer).callbacks if is_a(each, _AVERAGING))
    return next((epochs for epochs in kept if epochs and epochs + 1 == trainer.max_epochs), trainer.max_epochs)


def ends_search(trainer: "Trainer") -> bool:
    """Return whether LearningRateFinder or BatchSizeFinder wrote the checkpoint being loaded, before its search.

    It brings the Trainer back to where it was, and is not that of an interrupted training. `trainer.ckpt_path` is its
    path from then on.
    """
    return Path(trainer.ckpt_path or "").name.lstrip(".").startswith(("lr_find_", "scale_batch_size_"))


def load_states_of_loaders(trainer: "Trainer") -> None:
    """Restore the positions of a resumed Trainer's loaders if they were read before the checkpoint.

    `trainer.estimated_stepping_batches` in `configure_optimizers` does so. Lightning loads the states of loaders only
    when it makes them, and would start the epoch again.
    """
    loop = trainer.fit_loop
    if loop.restarting and loop._combined_loader_states_to_load and loop._data_fetcher is not None:
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)


def begin_next_epoch(trainer: "Trainer") -> None:
    """Start the first epoch of a resumed Trainer at its first batch, if no batch of it has been trained on.

    From a checkpoint written right after the last batch of an epoch, Lightning compares the batches done with the
    length of the *next* epoch. If that is longer, they are counted as batches of it, which ends it early. The next
    epoch is also not counted as started: after a second interruption within it, it starts again, and some batches are
    trained twice. From a checkpoint written because of a failure at the start of an epoch, the batches of the previous
    epoch are counted for this one as well.
    """
    loop, batch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    progress, epochs = batch_loop.batch_progress, undeclared(loop.epoch_progress.total)
    if loop.restarted_mid_epoch and batch_loop.restarted_on_train_batch_end and progress.is_last_batch:
        progress.increment_completed()  # as Lightning does after saving
        batch_loop._batches_that_stepped += 1
        batch_loop.restarting = False
        batch_loop.reset_restart_stage()
        loop.reset_restart_stage()
    if loop.restarted_on_epoch_end:  # with `max_steps`: one more batch would be trained on in the finished epoch
        loop.epoch_progress.increment_completed()
        loop._restarting = batch_loop.restarting = False
        loop.reset_restart_stage()
    if loop.restarting and epochs.started == epochs.ready - 1:  # a callback failed at the start of an epoch
        progress.reset_on_run()
        progress.is_last_batch = False


def complete_last_batch(checkpoint: dict[str, Any]) -> None:
    """Mark the last batch of a checkpoint as completed, and validation as started, if it was the last of an epoch.

    Lightning then runs validation and the end of that epoch after a resume.
    """
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    batches, validation = (loops.get(f"epoch_loop.{part}batch_progress") for part in ("", "val_loop."))
    if not batches or not batches["is_last_batch"]:
        return
    if batches["total"]["completed"] == batches["total"]["processed"] - 1:
        for progress in (batches["total"], batches["current"]):
            progress["completed"] += 1
        for progress, begun in ((validation["total"], 1), (validation["current"], 0)):
            progress.update(ready=begun, started=begun, processed=0, completed=0)


def end_finished_epoch(trainer: "Trainer") -> None:
    """End a resumed epoch whose batches are all completed; Lightning would train on one more batch.

    This occurs without validation: Lightning fetches a batch before it checks whether the epoch is done.
    """
    loop, fetcher = trainer.fit_loop.epoch_loop, undeclared(trainer.fit_loop._data_fetcher)
    done = undeclared(loop.batch_progress.total)
    if not (trainer.fit_loop.restarted_mid_epoch and trainer.is_last_batch and done.completed == done.processed):
        return
    if not fetcher.done and not loop._should_check_val_fx(fetcher):
        fetcher.done, fetcher.batches = True, []
        loop._batches_that_stepped += 1


def logged_after_last_batch(trainer: "Trainer") -> dict[str, Any]:
    """Return the metrics logged so far, also those of the epoch's batches; empty before its last batch is done."""
    loop = trainer.fit_loop.epoch_loop
    progress = undeclared(loop.batch_progress)
    if not progress.is_last_batch or progress.current.processed != progress.current.ready:
        return {}
    return {**trainer.callback_metrics, **loop._results.metrics(on_step=False)["callback"]}


def is_logging_step(trainer: "Trainer") -> bool:
    """Return whether loggers write at this step, see `Trainer(log_every_n_steps=)`."""
    return trainer._logger_connector.should_update_logs


def attached_trainer(module: nn.Module) -> Any:
    """Return the Trainer of a module; None without one, where the public property raises."""
    return getattr(module, "_trainer", None)


def random_states() -> dict[str, Any]:
    """Return the states of the global random generators: torch, CUDA, NumPy, Python."""
    from lightning.fabric.utilities.seed import _collect_rng_states

    return _collect_rng_states()


def set_random_states(states: dict[str, Any]) -> None:
    """Set the states of the global random generators to those returned by `random_states`."""
    from lightning.fabric.utilities.seed import _set_rng_states

    _set_rng_states(states)


def draw_seeds_of_loaders(trainer: "Trainer") -> None:
    """Repeat the random draws that DataLoaders make at the start of an epoch, for a resumed training.

    In an uninterrupted training each draws one seed per epoch, and one more at each epoch that re-creates the loaders.
    """
    again = bool(undeclared(trainer).reload_dataloaders_every_n_epochs) and not trainer.fit_loop._should_reload_train_dl
    loaders = [loader for loader in combined_loader(trainer).flattened if isinstance(loader, DataLoader)]
    for loader in loaders * (1 + again):
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def validation_loop_metrics(trainer: "Trainer", num_batches: int) -> dict[str, float]:
    """Run the Trainer's validation within training, on the first batches of each loader; return its metrics.

    Counters and states of the Trainer are restored. Callbacks that save, stop or show training do not run.
    """
    loop, connector = trainer.fit_loop.epoch_loop.val_loop, trainer._logger_connector
    callbacks: list[Any] = undeclared(trainer).callbacks
    metrics, first = connector._callback_metrics, connector._first_loop_iter
    shown, logged, hook = connector._progress_bar_metrics, connector._logged_metrics, connector._current_fx
    progress, has_run, last_time = loop.batch_progress.state_dict(), loop._has_run, getattr(trainer, _VALIDATED, None)
    trainer.validating = True
    try:
        loop.setup_data()
        limits, seen, restarting = loop._max_batches, loop._seen_batches_per_dataloader.copy(), loop._restarting
        try:
            loop._max_batches, loop._restarting = [min(num_batches, limit) for limit in limits], False
            others = (each for each in callbacks if not is_a(each, "Checkpoint", "EarlyStopping", "ProgressBar"))
            undeclared(trainer).callbacks, connector._callback_metrics = list(others), {}
            connector._progress_bar_metrics, connector._logged_metrics = {}, {}
            loop.run()
            return {key: float(value) for key, value in connector._callback_metrics.items() if value.numel() == 1}
        finally:
            loop._max_batches, loop._seen_batches_per_dataloader, loop._restarting = limits, seen, restarting
            loop.batch_progress.load_state_dict(progress)
            loop._has_run = has_run
            setattr(trainer, _VALIDATED, last_time)
            loop._results.reset()
    finally:
        trainer.training = True
        undeclared(trainer).callbacks, connector._callback_metrics = callbacks, metrics
        connector._first_loop_iter = first
        connector._progress_bar_metrics, connector._logged_metrics, connector._current_fx = shown, logged, hook


def loss_scaler(trainer: "Trainer") -> Any:
    """Return the gradient scaler of float16 mixed precision; None in every other precision."""
    return getattr(trainer.precision_plugin, "scaler", None)


def optimizers_of(trainer: "Trainer", module: nn.Module) -> list[Any]:
    """Return the optimizers of a Trainer; in manual optimization also those in attributes of the module.

    Attributes may be lists or dicts of optimizers. Lightning's placeholder for a module without optimizers is left out.
    """
    known = [optimizer for optimizer in trainer.optimizers if not is_a(optimizer, "_MockOptimizer")]
    values = [] if undeclared(module).automatic_optimization else list(vars(module).values())
    lists = (value.values() if isinstance(value, dict) else value for value in values if isinstance(value, dict | list))
    held = [each for value in (values, *lists) for each in value if isinstance(each, torch.optim.Optimizer)]
    return list({id(optimizer.state): optimizer for optimizer in [*known, *held]}.values())
