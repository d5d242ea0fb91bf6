"""Any method in the Trainer of Hugging Face; needs transformers and accelerate."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import currentframe
from itertools import islice
from traceback import walk_stack
from typing import Any

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from lightning_fire.functional.checks import at_least
from lightning_fire.integrations.base import (
    Adapter,
    inner,
    require_known_times,
    say,
    undisturbed,
)
from lightning_fire.integrations.measure_plasticity import MeasurePlasticity
from lightning_fire.messages import logger
from lightning_fire.methods import Method
from lightning_fire.methods.base.method import schedule_of
from lightning_fire.methods.base.training import gradients_of
from lightning_fire.methods.base.wrong_library import CallbackOfOneLibrary
from lightning_fire.when import AtEpochs, AtNewData, Clock, EveryNEpochs, Horizon, Schedule, problem_of, schedules_in

__all__ = ["MeasurePlasticity", "PlasticityCallback"]

_NEAR_0 = 0.01  # of the initial learning rate
Losses = Callable[[nn.Module], Iterable[Tensor]]


class PlasticityCallback(CallbackOfOneLibrary, TrainerCallback):
    """Applies a method to the model that a Hugging Face `Trainer` trains: at events, or at every optimizer step.

    An event happens before the first batch of a step, after any checkpoint of the previous step: a run that continues
    with `resume_from_checkpoint` neither loses nor repeats one. Data is new in a later `train()` with the same callback
    object, and in a `train()` that resumes from the last checkpoint of a finished training; not in a restart after out
    of memory or an interruption, which counts steps and epochs from 0 again: events at later steps come again. Each
    trial of a hyper-parameter search starts with a new network. State is saved in `optimizer.pt`.

    An event resets the Trainer's best metric and best checkpoint: otherwise it would load weights from before the
    event, and `EarlyStoppingCallback` would compare with them.

    `trainer.state.log_history` contains the metrics of events under the keys of the Lightning callback; metrics of a
    method that acts at every step are logged with each loss. Gradients are clipped before such a method sees them.
    Batches for methods are drawn from the training data set in a separate order; the batches of training do not change.

    Args:
        method: The method, such as `FIRE(steps=5)`.
        when: Schedule, or several of which any may be due; a step is an optimizer step. Default: that of the method.
        start_chunk: Number of changes of the data before which it does nothing, at least 0.
        name: Prefix of the logged keys instead of the method's own.
        log: Function that gets the metrics as a dict, instead of `log_history`. `lambda values: trainer.log(values)`,
            with the `trainer` made later, writes them there and to loggers such as TensorBoard.
        losses: For a method that needs data: function from the model to losses of batches, `lambda model: (loss for
            …)`. Default: the loss returned by the model, on batches of a data set with a length.
        averages: One or several averages of the weights, which restart from new weights, such as `EMAModel` of
            diffusers; see `methods.Loop`. Those inside the model are found automatically.

    Raises:
        TypeError: If `method` is not a method, `when` not a schedule, or `averages` are not averages.
        ValueError: If an argument is out of range, or the schedule waits for a metric or is given for a method that
            acts at every step; when the Trainer is made, if nothing is selected; when training starts, if the schedule
            can never be due, the method needs something that is missing, or weights are flattened or partitioned
            (FSDP1, DeepSpeed).

    Example:
        >>> from lightning_fire import AtFraction
        >>> from lightning_fire.methods import FIRE
        >>> callback = PlasticityCallback(FIRE(steps=5), AtFraction(0.5))  # Trainer(model, args, callbacks=[callback])
    """

    def __init__(
        self,
        method: Method,
        when: Schedule | Sequence[Schedule] | None = None,
        start_chunk: int = 0,
        name: str | None = None,
        log: Callable[[dict[str, float]], object] | None = None,
        losses: Losses | None = None,
        averages: Any = (),
    ):
        at_least(0, start_chunk=start_chunk)
        for argument, function in (("log", log), ("losses", losses)):
            if not (function is None or callable(function)):
                raise TypeError(f"`{argument}` must be a function, got {function!r}")
        self._when, self._start_chunk, self._log = schedule_of(method, when), start_chunk, log
        require_known_times(self._when)
        self._training = _TrainerData(method, name, averages, losses)
        self._chunk, self._new_data, self._ended = 0, True, False  # True until a step starts on it
        self._last_event = -1, -1  # chunk and step

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the model, before its optimizer is created and a checkpoint is loaded."""
        self._training.set_model(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the state and start to act; raise an error if the method cannot."""
        training, loader = self._training, kwargs["train_dataloader"]
        if state.is_hyper_param_search and training.model is not kwargs["model"]:  # a trial trains a new network
            training.forget()
            self._chunk, self._new_data, self._ended = 0, True, False
        self._check(args, state, loader)
        if training.model is not kwargs["model"]:  # added to the Trainer later, or the model is wrapped or re-created
            if training.model is None and state.global_step:
                raise ValueError(
                    f"{training.title} in a training that is resumed: give the callback to the Trainer when it is made"
                )
            training.set_model(kwargs["model"])
        self._continue(args, state, kwargs["optimizer"])
        training.set_data(args, state, loader)
        training.begin([kwargs["optimizer"]])
        self._keep(state, kwargs["optimizer"])

    def _check(self, args: TrainingArguments, state: TrainerState, loader: Any) -> None:
        title = self._training.title
        if vars(state).setdefault("plasticity", {}).setdefault(self._training.name, self) is not self:
            raise ValueError(f"two callbacks log as {self._training.name!r}: give one another name, name=…")
        if reason := problem_of(self._when, Horizon(state.num_train_epochs, state.max_steps)):
            raise ValueError(f"{title} at {self._when} can never act: {reason}")
        if not has_length(loader):
            require_known_times(self._when, (AtEpochs, EveryNEpochs), "epochs of data without a length are not known")
        plugin = getattr(AcceleratorState(), "fsdp_plugin", None)
        if args.deepspeed or (plugin is not None and getattr(plugin, "fsdp_version", 1) != 2):
            raise ValueError(f"{title} cannot act under DeepSpeed or FSDP1, which keep weights in pieces: use FSDP2")
        self._sharded = plugin is not None
        if self._sharded and not self._training.method.acts_on_shards:
            raise ValueError(f"{title} needs whole weights, which FSDP2 shards")

    def _continue(self, args: TrainingArguments, state: TrainerState, optimizer: Any) -> None:
        """Restore the state from a checkpoint; determine whether the data is new."""
        name, step = self._training.name, state.global_step
        kept = optimizer.param_groups[0].pop(self._key, None)
        awaited = [each for each in schedules_in(self._when) if isinstance(each, AtNewData)]
        if step and kept and kept["step"] == step:
            self._training.load_state_dict(kept["training"])
            self._chunk, self._new_data, self._ended = kept["chunk"], False, kept["ended"]
            if awaited and not self._ended:
                say(
                    f"{name}: the checkpoint of step {step} is of a training that had not ended, whose data continues."
                    " To begin with new data, load its weights into the model, and train without"
                    " resume_from_checkpoint."
                )
        elif step:
            self._new_data = not self._sharded  # the state dict of a sharded optimizer drops foreign entries
            say(
                f"{name}: the checkpoint of step {step} has no state of it, as it was written without it, or by"
                f" save_only_model or FSDP2: its events are counted from 1{', and its data is new' * self._new_data}."
            )
        elif awaited and not self._new_data and not self._ended and not args.auto_find_batch_size:
            say(f"{name}: the training before was interrupted: the data of this one counts as the same.")
        if self._ended:
            self._chunk, self._new_data, self._ended = self._chunk + 1, True, False
        if self._last_event[1] > step:
            self._last_event = -1, -1
        first = self._new_data and not self._chunk
        if first and awaited == schedules_in(self._when) and all(each.skip_first for each in awaited):
            say(
                f"{name}: this data is the first. Data is new in a later train() with this callback, or in one that"
                " resumes from the last checkpoint of this training. If the model was trained before on other data,"
                " give when=AtNewData(skip_first=False). Nothing was changed."
            )

    def _keep(self, state: TrainerState, optimizer: Any) -> None:
        """Add the state of the method to that of the optimizer, which checkpoints of this training contain."""

        def add(_: Optimizer, saved: dict[str, Any]) -> None:
            saved["param_groups"][0][self._key] = {
                "step": state.global_step,
                "ended": state.global_step >= state.max_steps,
                "chunk": self._chunk,
                "training": self._training.state_dict(),
            }

        if isinstance(inner(optimizer), Optimizer):
            training = self._training
            training.handles.append(training.before_steps(optimizer, lambda _: None))
            training.handles.append(inner(optimizer).register_state_dict_post_hook(add))
        else:
            kind = type(inner(optimizer)).__name__
            say(f"{self._training.name}: checkpoints have no state of it, as {kind} is not an optimizer of torch.")

    @property
    def _key(self) -> str:
        return f"lightning_fire.{self._training.name}"

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Act if due."""
        step, end, new = state.global_step, state.max_steps, self._new_data
        clock = Clock(
            epoch=int(state.epoch),
            step=step,
            epoch_start=float(state.epoch).is_integer() or new,
            chunk=self._chunk,
            new_data=new,
            progress=step / end,
            progress_before=(step - 1) / end,
        )
        self._training.watch(self._chunk >= self._start_chunk)
        done = (self._chunk, step) == self._last_event
        if clock.trained_chunk < self._start_chunk or done or not self._when.due(clock):
            self._new_data = False
            return

        def note() -> None:
            self._last_event, self._new_data = (self._chunk, step), False

        self._write(self._training.act(f"epoch {clock.epoch}, step {step}", note), state)
        if self._training.method.remakes_network and state.best_metric is not None:
            state.best_metric, state.best_model_checkpoint = None, None
            say(f"also reset: the Trainer's best {args.metric_for_best_model}")
        rate = kwargs["optimizer"].param_groups[0]
        if step and float(rate["lr"]) < _NEAR_0 * float(rate.get("initial_lr", rate["lr"])):
            logger.warning(
                "%s acted at step %d with a learning rate of %.2g: the network cannot learn again what has changed."
                " Each train() has its own schedule, down to 0",
                self._training.name,
                step,
                rate["lr"],
            )

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Log the metrics of a method that acts at every step, with a loss."""
        if "loss" in (logs or {}) and (values := self._training.metrics()):
            self._write(values, state)

    def _write(self, values: dict[str, float], state: TrainerState) -> None:
        (self._log or (lambda entry: state.log_history.append({**entry, "step": state.global_step})))(values)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop acting; data is new in a later training."""
        self._training.close()
        self._ended = True


class _TrainerData(Adapter):
    """The `methods.Training` of a Hugging Face `Trainer`."""

    def __init__(self, method: Method, name: str | None, averages: Any, losses: Losses | None):
        super().__init__(method, name, averages)
        self._losses = losses

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_loader": None, "_state": None}

    def set_data(self, args: TrainingArguments, state: TrainerState, loader: Any) -> None:
        """Set the data and the ranks of a training."""
        self._rank, self._batch_size, self._loader = args.process_index, state.train_batch_size, loader
        self.ranks, self.share_work = args.world_size, args.world_size > 1
        self._state = _running_state()

    def is_over(self) -> bool:
        """Return whether the training has ended: each has a state of its own, and an ended one does not run."""
        return _running_state() is not self._state

    def forward(self, batches: int = 1) -> None:
        """Run the model on some batches of its data."""
        with undisturbed(self.model):
            for _ in self._run(batches):
                pass

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradient of the loss on each of some batches."""
        with undisturbed(self.model):
            for loss in self._run(batches):
                yield gradients_of(self._given(loss), of)

    def loss_function(self) -> Callable[[], Tensor]:
        """Return a function that computes the loss on one batch, the same at each call."""
        if self._losses is not None:
            losses = self._losses
            return lambda: self._given(next(iter(losses(self.model))))
        (batch,) = self._batches(1)
        return lambda: self._given(self._loss_on(batch))

    def _given(self, loss: Tensor | None) -> Tensor:
        if loss is None:
            raise ValueError(f"{type(self.model).__name__} returns no loss of a batch: give {self._with('…')}")
        return loss

    def _with(self, loss: str) -> str:
        """Return example code of the callback with losses."""
        return f"PlasticityCallback({self.title}(…), losses=lambda model: ({loss} for batch in …))"

    def _run(self, batches: int) -> Iterator[Tensor | None]:
        """Yield the loss on batches of training data, in an order that depends only on the event."""
        self.model.train(not getattr(self.method, "only_measures", False))
        number = 1 if self.is_dry_run else batches
        if self._losses is not None:
            yield from islice(self._losses(self.model), number)
            return
        yield from map(self._loss_on, self._batches(number))

    def _loss_on(self, batch: Any) -> Tensor | None:
        try:
            output = self.model(**send_to_device(batch, next(self.model.parameters()).device))
        except TypeError as error:
            raise ValueError(
                f"{type(self.model).__name__} cannot be called with a batch of this Trainer ({error}): give"
                f" {self._with('trainer.compute_loss(model, batch)')}"
            ) from error
        return output.get("loss") if isinstance(output, dict) else output[0]

    def _batches(self, number: int) -> Iterator[Any]:
        data = getattr(self._loader, "dataset", None)
        if data is None or isinstance(data, IterableDataset):
            raise ValueError(
                f"{self.title} needs batches, and a stream of data may be readable only once, by training: give the"
                f" losses of other batches, {self._with('model(**batch).loss')}"
            )
        order = torch.Generator("cpu").manual_seed(1_000 * self.event + self._rank)
        collate, size = self._loader.collate_fn, self._batch_size
        own = min(1, self._loader.num_workers)  # a file opened here would be shared with workers that read the data
        loader = DataLoader(data, size, shuffle=True, generator=order, collate_fn=collate, num_workers=own)
        yield from islice(loader, number)


def _running_state() -> TrainerState | None:
    """Return the state of the innermost Trainer on the call stack; None if there is none."""
    callers = (frame.f_locals.get("self") for frame, _ in walk_stack(currentframe()))
    states = (getattr(caller, "__dict__", {}).get("state") for caller in callers)
    return next((state for state in states if isinstance(state, TrainerState)), None)
