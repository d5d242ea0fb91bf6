"""Any method in the Trainer of Hugging Face; needs transformers and accelerate."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from lightning_fire.functional.checks import at_least
from lightning_fire.integrations.base import LibraryCallback, require_known_times, say, undisturbed
from lightning_fire.integrations.measure_plasticity import MeasurePlasticity
from lightning_fire.methods import Attached, EventMethod, Loop, Method
from lightning_fire.methods.base.loop import gradients_of
from lightning_fire.when import AtEpochs, AtNewData, Clock, EveryNEpochs, Horizon, Schedule, problem_of, schedules_in

__all__ = ["MeasurePlasticity", "PlasticityCallback"]

Losses = Callable[[nn.Module], Iterable[Tensor]]


class PlasticityCallback(LibraryCallback, TrainerCallback):
    """Applies a method to the model that a Hugging Face `Trainer` trains: at events, or at every optimizer step.

    An event happens before the first batch of a step, after any checkpoint of the previous step: a run that continues
    with `resume_from_checkpoint` neither loses nor repeats one; state is saved in `optimizer.pt`. Data is new in a
    later `train()` with the same callback object, and in one that resumes from the last checkpoint of a finished
    training. A restart after out of memory or an interruption is not on new data, and counts steps and epochs from 0
    again: events at later steps come again. Each trial of a hyper-parameter search starts with a new network.

    An event resets the Trainer's best metric and best checkpoint, which are those of another network.

    `trainer.state.log_history` contains the metrics of events under the keys of the Lightning callback; metrics of a
    method that acts at every step are logged with each loss. The Trainer has no hook before the clipping of gradients:
    penalties are added after it. Batches for methods are drawn from the data set in an order of their own.

    Args:
        method: The method, such as `FIRE(steps=5)`.
        when: Schedule, or several of which any may be due; a step is an optimizer step. Default: that of the method.
        start_chunk: Number of changes of the data before which it does nothing, at least 0.
        name: Prefix of the logged keys instead of the method's own.
        log: Function that gets the metrics as a dict, instead of `log_history`. `lambda values: trainer.log(values)`,
            with the `trainer` made later, writes them there and to loggers such as TensorBoard.
        losses: For a method that needs data: function from the model to losses of batches, `lambda model: (loss for
            …)`. Default: the loss returned by the model, on batches of a data set with a length.
        averages: One or several averages of the weights, which restart from new weights, see `methods.Loop`. Those
            inside the model are found automatically.

    Raises:
        TypeError: If `method` is not a method, `when` not a schedule, or `averages` are not averages.
        ValueError: If an argument is out of range, or the schedule waits for a metric or is given for a method that
            acts at every step; when the Trainer is made, if nothing is selected; when training starts, if the method
            can never act or lacks something; at an event, if it cannot use the batches.

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
        super().__init__(method, when, None, name, averages)
        at_least(0, start_chunk=start_chunk)
        for argument, function in (("log", log), ("losses", losses)):
            if not (function is None or callable(function)):
                raise TypeError(f"`{argument}` must be a function, got {function!r}")
        require_known_times(self._when)
        self._start_chunk, self._log, self._losses = start_chunk, log, losses
        self._key = f"lightning_fire.{self.name}"  # of its state, in that of the optimizer
        self._restart()

    def _restart(self) -> None:
        """Begin with a new network."""
        self._close()
        self._network, self._initial, self._event, self._states = None, None, 1, ()
        self._chunk, self._new_data, self._ended = 0, True, False  # True until a step starts on it
        self._last_event = -1, -1  # chunk and step

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the model, before its optimizer is created and a checkpoint is loaded."""
        self._set_model(kwargs["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the state and start to act; raise an error if the method cannot."""
        model, optimizer, loader = kwargs["model"], kwargs["optimizer"], kwargs["train_dataloader"]
        if state.is_hyper_param_search and self._network is not model:  # a trial trains a new network
            self._restart()
        plugin = getattr(AcceleratorState(), "fsdp_plugin", None)
        self._check(args, state, loader, plugin)
        if self._network is not model:  # added to the Trainer later, or the model is wrapped or re-created
            if self._network is None and state.global_step:
                raise ValueError(f"{self.name} in a resumed training: give the callback to the Trainer when it is made")
            self._set_model(model)
        note = self._continue(args, state, optimizer, plugin is not None)
        data = {"model": model, "loader": loader, "batch_size": state.train_batch_size, "rank": args.process_index}
        loop = _TrainerLoop(optimizer, **self._offered(args.world_size), **data, mode=not self._only_measures)
        loop.losses = self._losses and partial(self._losses, model)
        if isinstance(self._method, EventMethod) and self._method.needs_batches:
            loop.run()  # raises now, not at the first event, if the model cannot run on a batch
        self._begin(loop, note)
        self._save_with(optimizer, weakref.ref(state))

    def _check(self, args: Any, state: Any, loader: Any, plugin: Any) -> None:
        if vars(state).setdefault("plasticity", {}).setdefault(self.name, self) is not self:
            raise ValueError(f"two callbacks log as {self.name!r}: give one another name, name=…")
        if reason := problem_of(self._when, Horizon(state.num_train_epochs, state.max_steps)):
            raise ValueError(f"{self.name} at {self._when} can never act: {reason}")
        if not has_length(loader):
            require_known_times(self._when, (AtEpochs, EveryNEpochs), "epochs of data without a length are not known")
        if args.deepspeed or (plugin is not None and getattr(plugin, "fsdp_version", 1) != 2):
            raise ValueError(f"{self.name} cannot act under DeepSpeed or FSDP1, which split weights: use FSDP2")
        if plugin is not None and not self._method.acts_on_shards:
            raise ValueError(f"{self.name} needs whole weights, which FSDP2 shards: train without shards, or use FIRE")

    def _continue(self, args: Any, state: Any, optimizer: Any, sharded: bool) -> str:
        """Restore the state from a checkpoint and determine whether the data is new; return a note about it."""
        step, note = state.global_step, ""
        kept = optimizer.param_groups[0].pop(self._key, None)
        awaited = [each for each in schedules_in(self._when) if isinstance(each, AtNewData)]
        if step and kept and kept["step"] == step:
            self._load_state(kept["training"])
            self._chunk, self._new_data, self._ended = kept["chunk"], False, kept["ended"]
            if awaited and not self._ended:
                note = (
                    f"the training of this checkpoint, of step {step}, had not ended, and its data continues: to begin"
                    " with new data, load its weights and train without resume_from_checkpoint"
                )
        elif step:
            self._new_data = not sharded  # the state dict of a sharded optimizer drops foreign entries
            note = (
                f"the checkpoint of step {step} has no state of it, as it was written without it, or by"
                f" save_only_model or FSDP2: its events are counted from 1{', and its data is new' * self._new_data}"
            )
        elif awaited and not self._new_data and not self._ended and not args.auto_find_batch_size:
            note = "the training before was interrupted: the data of this one counts as the same"
        if self._ended:
            self._chunk, self._new_data, self._ended = self._chunk + 1, True, False
        if self._last_event[1] > step:
            self._last_event = -1, -1
        waits = awaited == schedules_in(self._when) and all(each.skip_first for each in awaited)
        if not note and waits and self._new_data and not self._chunk:
            note = (
                "this data is the first, and data is new in a later train() with this callback, or in one that resumes"
                " from the last checkpoint of this training: to act now give when=AtNewData(skip_first=False)"
            )
        return note

    def _save_with(self, optimizer: Any, training: Callable[[], Any]) -> None:
        """Add the state to that of the optimizer, which checkpoints contain, as long as this training exists."""

        def add(_: Optimizer, saved: dict[str, Any]) -> None:
            if (state := training()) is not None:
                ended = state.global_step >= state.max_steps
                own = {"step": state.global_step, "ended": ended, "chunk": self._chunk, "training": self._state()}
                saved["param_groups"][0][self._key] = own

        inner = getattr(optimizer, "optimizer", optimizer)  # in the wrapper of accelerate
        if isinstance(inner, Optimizer):
            self._handles.append(inner.register_state_dict_post_hook(add))
        else:
            kind = type(inner).__name__
            say(f"{self.name}: checkpoints have no state of it, as {kind} is not an optimizer of torch.")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Act if due."""
        step, end, new = state.global_step, state.max_steps, self._new_data
        starts = float(state.epoch).is_integer() or new
        clock = Clock(int(state.epoch), step, starts, self._chunk, new, step / end, (step - 1) / end)
        for _, part in self._parts:
            part.watching = self._chunk >= self._start_chunk
        done = (self._chunk, step) == self._last_event
        if clock.trained_chunk < self._start_chunk or done or not self._when.due(clock):
            self._new_data = False
            return
        forgets = self._method.remakes_network and state.best_metric is not None

        def note() -> None:
            self._last_event, self._new_data = (self._chunk, step), False
            if forgets:
                state.best_metric, state.best_model_checkpoint = None, None

        also = [f"the Trainer forgets its best {args.metric_for_best_model}"] if forgets else []
        self._write(self._act(f"epoch {clock.epoch}, step {step}", note, done=also), state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Act before a step, on gradients that are clipped and unscaled."""
        optimizer = kwargs["optimizer"]
        for part in self._active:
            if (scaler := getattr(optimizer, "scaler", None)) is not None:
                with suppress(RuntimeError):  # clipping has unscaled them
                    scaler.unscale_(optimizer.optimizer)
            part.before_step(optimizer)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Act after a step; one that a gradient scaler skips does not count."""
        if not getattr(kwargs["optimizer"], "step_was_skipped", False):
            for part in self._active:
                part.after_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Log the metrics of a method that acts at every step, with a loss."""
        if "loss" in (logs or {}) and self._active and (values := self._metrics()):
            self._write(values, state)

    @property
    def _active(self) -> list[Attached]:
        return [part for _, part in self._parts if part.watching]

    def _write(self, values: dict[str, float], state: Any) -> None:
        (self._log or (lambda entry: state.log_history.append({**entry, "step": state.global_step})))(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop acting; data is new in a later training."""
        self._close()
        self._ended = True
        if self._had_no_event:
            say(f"{self.name} had no event in this train(): {self._when} was not due.")


@dataclass(eq=False)
class _TrainerLoop(Loop):
    """The `Loop` of a Trainer: batches are those of its data set."""

    model: Any = None
    loader: Any = None
    batch_size: int = 1  # of this process
    rank: int = 0
    mode: bool = True  # of the model: training
    title: str = ""  # name of the method

    def run(self, batches: int = 1) -> None:
        """Run the model on some batches of its data."""
        with undisturbed(self.model):
            for _ in self._losses(batches):
                pass

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradient of the loss on each of some batches."""
        with undisturbed(self.model):
            for loss in self._losses(batches):
                yield gradients_of(self._found(loss), of)

    def loss_function(self) -> Callable[[], Tensor]:
        """Return a function that computes the loss on one batch, the same at each call."""
        if self.losses is not None:
            return super().loss_function()
        batch = next(self._batches())
        return lambda: self._found(self._loss_on(batch))

    def _losses(self, batches: int) -> Iterator[Tensor | None]:
        self.model.train(self.mode)
        given: Any = self.losses
        yield from islice(map(self._loss_on, self._batches()) if given is None else given(), batches)

    def _batches(self) -> Iterator[Any]:
        """Iterate over batches of training data, in an order that depends only on the event."""
        data = getattr(self.loader, "dataset", None)
        if data is None or isinstance(data, IterableDataset):
            raise ValueError(
                f"{self.title} needs batches, and a stream of data may be readable only once, by training: give the"
                f" losses of other batches, {self._with('model(**batch).loss')}"
            )
        order = torch.Generator("cpu").manual_seed(1_000 * self.event + self.rank)
        workers = min(1, self.loader.num_workers)  # a file opened here would be shared with those that read the data
        how: Any = {"collate_fn": self.loader.collate_fn, "num_workers": workers}
        return iter(DataLoader(data, self.batch_size, shuffle=True, generator=order, **how))

    def _loss_on(self, batch: Any) -> Tensor | None:
        try:
            output = self.model(**send_to_device(batch, next(self.model.parameters()).device))
        except TypeError as error:
            raise ValueError(
                f"{type(self.model).__name__} cannot be called with a batch of this Trainer ({error}): give"
                f" {self._with('trainer.compute_loss(model, batch)')}"
            ) from error
        return output.get("loss") if isinstance(output, dict) else output[0]

    def _found(self, loss: Tensor | None) -> Tensor:
        if loss is None:
            raise ValueError(f"{type(self.model).__name__} returns no loss of a batch: give {self._with('…')}")
        return loss

    def _with(self, loss: str) -> str:
        """Return example code of the callback with losses."""
        return f"PlasticityCallback({self.title}(…), losses=lambda model: ({loss} for batch in …))"
