"""FIRE and other methods in the Trainer of Hugging Face; needs transformers and accelerate."""

from collections.abc import Callable, Sequence
from typing import Any

from accelerate.state import AcceleratorState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lightning_fire.integrations.event import name_of, require_known_times
from lightning_fire.messages import logger
from lightning_fire.methods import Report, fire_
from lightning_fire.when import Clock, Horizon, Schedule, one_schedule, problem_of

__all__ = ["ReinitCallback"]

_NEAR_0 = 0.01  # of the initial learning rate


class ReinitCallback(TrainerCallback):
    """Applies a method to the model that a Hugging Face `Trainer` trains, when a schedule is due.

    An event is before the first batch of a step, after any checkpoint of the previous step: a run that continues with
    `resume_from_checkpoint` neither loses nor repeats one. Data is new if a later `train()` gets the same callback
    object; with a new process for new data, use `AtNewData(skip_first=False)`, which acts at the start of training but
    not in a resumed run. `trainer.state.log_history` holds metrics of events, under the Lightning callback's keys.

    Args:
        method: Function `method(model, optimizers=…)` that returns a `Report`: `fire_`, also with arguments, as
            `partial(fire_, steps=5)`, or any other of `lightning_fire.methods`.
        when: Schedule, or several of which any may be due; a step is an optimizer step. Default: `AtNewData()`.
        log: Function that also gets the metrics of an event, as a dict: `trainer.log` writes them to the loggers, such
            as TensorBoard.

    Raises:
        ValueError: If the schedule waits for a metric, or when training starts, if it can never be due, or if weights
            are flattened or partitioned (FSDP1, DeepSpeed).

    Example:
        >>> from lightning_fire import AtFraction
        >>> callback = ReinitCallback(when=AtFraction(0.5))  # Trainer(model, args, callbacks=[callback])
    """

    def __init__(
        self,
        method: Callable[..., Report] = fire_,
        when: Schedule | Sequence[Schedule] | None = None,
        log: Callable[[dict[str, float]], object] | None = None,
    ):
        self._method, self._when, self._log = method, one_schedule(when), log
        require_known_times(self._when)
        self._trainings = 0  # started with this object

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise an error if the method cannot act."""
        if reason := problem_of(self._when, Horizon(state.num_train_epochs, state.max_steps)):
            raise ValueError(f"ReinitCallback(when={self._when}) can never act: {reason}")
        sharded = getattr(AcceleratorState(), "fsdp_plugin", None)
        if args.deepspeed or (sharded is not None and getattr(sharded, "fsdp_version", 1) != 2):
            raise ValueError(
                "ReinitCallback cannot act under DeepSpeed or FSDP1, which keep weights in pieces: use FSDP2"
            )
        self._trainings = max(1, self._trainings + (state.global_step == 0))  # one that is resumed was started before

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Act if due."""
        step, end = state.global_step, state.max_steps
        clock = Clock(
            epoch=int(state.epoch),
            step=step,
            epoch_start=float(state.epoch).is_integer(),
            chunk=max(0, self._trainings - 1),
            new_data=step == 0,
            progress=step / end,
            progress_before=(step - 1) / end,
        )
        if not self._when.due(clock):
            return
        report, name = self._method(kwargs["model"], optimizers=[kwargs["optimizer"]]), name_of(self._method)
        if state.is_world_process_zero:
            logger.info("%s acted at epoch %d, step %d (%s)", name, clock.epoch, step, report)
        values = report.keyed(name, layers=False)
        (self._log or (lambda entry: state.log_history.append({**entry, "step": step})))(values)
        rate = kwargs["optimizer"].param_groups[0]
        if step and float(rate["lr"]) < _NEAR_0 * float(rate.get("initial_lr", rate["lr"])):
            logger.warning(
                "%s acted at step %d with a learning rate of %.2g: the network cannot learn again what has changed."
                " Each train() has its own schedule, down to 0",
                name,
                step,
                rate["lr"],
            )
