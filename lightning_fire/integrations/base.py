"""Base class of the callbacks for other libraries: a method attached to a model, its state and its log."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.distributed import rank
from lightning_fire.messages import logger, no_change
from lightning_fire.methods import Attached, EventMethod, Method, Training, initial_values
from lightning_fire.methods.base.all_or_nothing import same_tensors_after_error
from lightning_fire.methods.base.averages import as_averages
from lightning_fire.methods.base.ignored_passes import ignored_passes, keeping_modes
from lightning_fire.methods.base.method import planned, same_buffers
from lightning_fire.methods.base.report import check_name
from lightning_fire.methods.base.selecting import trained_by
from lightning_fire.methods.initial_values import unknown_in
from lightning_fire.when import Schedule, schedules_in, watched_by


class Adapter(Training):
    """A method in another library, and its `methods.Training`.

    Subclasses implement `forward`, `gradients` and `is_over`.
    """

    share_work, measure, paused, ranks = False, True, (), 1
    event = 1
    optimizers: Sequence[Optimizer] = ()
    averages: Sequence[Any] = ()

    def __init__(self, method: Method, name: str | None, averages: Any):
        check_name(name)
        self.method: Any = method
        self.averages = as_averages(averages)
        self.title, self.name = type(method).__name__, name or method.name
        self.model: Any = None
        self.acts_now = True  # whether a method that acts at each step is active
        self.is_dry_run = False  # an event is planned only as a check, for which one batch is enough
        self.handles: list[Any] = []  # hooks to remove in `close`
        self._initial: Mapping[str, Tensor] | None = None
        self._parts: list[Attached] = []
        self._states: Sequence[Mapping[str, Any]] = ()  # states of `_parts` while there are none

    def set_model(self, model: nn.Module) -> None:
        """Set a new model: check it, prepare its structure, and copy its values for a method that needs them."""
        if self.model not in (None, model):
            if self.optimizers:
                say(f"{self.name} takes another model for the same one, later. For a new one make a new callback.")
            else:  # the previous model was never trained
                self._initial = None
        self.method.check(model)
        if isinstance(self.method, EventMethod):
            self.method.prepare(model)
        self.model = model
        if self._initial is None and self.method.needs_initial_values:
            self._initial = initial_values(model)

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy, without the model, the optimizers and the hooks."""
        training: dict[str, Any] = {"model": None, "optimizers": (), "averages": (), "handles": [], "_parts": []}
        return {**vars(self), **training, "_states": self._states_of_parts()}

    def forget(self) -> None:
        """Reset the state, for a new model."""
        self.close()
        self.optimizers, self.event, self._states = (), 1, ()

    def begin(self, optimizers: Sequence[Optimizer]) -> None:
        """Start to act on the model. An event is planned as a check, so that errors are raised now.

        A method that acts at every step is attached once per optimizer, as optimizers step at different times.
        """
        self.close()
        self.optimizers = list(optimizers)
        with trained_by(self.model, self.optimizers if getattr(self.method, "changes_weights", True) else ()):
            for sentence in self.method.check(self.model):
                say(f"{self.title} {sentence}.")
        if isinstance(self.method, EventMethod):
            self.is_dry_run = True
            planned(self.method, self.model, self)
            self.is_dry_run = False
            return
        for each in map(inner, self.optimizers):
            if not isinstance(each, Optimizer):
                kind = type(each).__name__
                raise ValueError(f"{self.title} acts at each step of an optimizer of torch, which {kind} is not")
        problems = []
        measures = getattr(self.method, "only_measures", False)
        for group in [self.optimizers] if measures else [[optimizer] for optimizer in self.optimizers]:
            training = object.__new__(type(self))
            vars(training).update(vars(self), optimizers=group)
            try:
                part = self.method.attach(self.model, training)
            except ValueError as error:  # another optimizer may train the selected weights
                problems.append(error)
                continue
            if selected := part.selected():
                say(f"{self.title} acts on {selected}.")
            self._parts.append(part)
            self.handles += [handle for each in group for handle in self._around(each, part)]
        if not self._parts:
            raise problems[0]
        for part, state in zip(self._parts, self._states, strict=False):
            if state:
                part.load_state_dict(state)

    def _around(self, optimizer: Optimizer, part: Attached) -> Sequence[Any]:
        """Call a method around each step of an optimizer; a step skipped by a gradient scaler does not count."""

        def before(stepping: Optimizer) -> None:
            if self.acts_now:  # a fused optimizer unscales in its step
                part.before_step(optimizer, float(getattr(stepping, "grad_scale", None) or 1.0))

        def after(*_: Any) -> None:
            if self.acts_now:
                part.after_step()

        return self.before_steps(optimizer, before), inner(optimizer).register_step_post_hook(after)

    def before_steps(self, optimizer: Optimizer, function: Callable[[Optimizer], object]) -> Any:
        """Call a function before each step of an optimizer; close instead if the training is over. Return the hook.

        Libraries do not tell callbacks of an exception, and may keep the optimizer for a later training.
        """

        def before(stepping: Optimizer, *_: Any) -> None:
            if not self.is_over():
                function(stepping)
                return
            running = handle.hooks_dict_ref()  # cannot lose hooks now, except at its last one
            is_last = next(reversed(running)) == handle.id
            self.close(keep=[each for each in self.handles if each.hooks_dict_ref() is running and not is_last])

        handle = inner(optimizer).register_step_pre_hook(before)
        return handle

    def is_over(self) -> bool:
        """Return whether the training in which `begin` was called has ended, perhaps by an exception."""
        raise NotImplementedError

    def watch(self, acts_now: bool) -> None:
        """Activate or pause a method that acts at each step."""
        self.acts_now = acts_now
        for part in self._parts:
            part.watching = acts_now

    def close(self, keep: Sequence[Any] = ()) -> None:
        """Stop acting on the model, and keep the state. `keep`: hooks to remove in a later call."""
        self._states = self._states_of_parts()
        for handle in self.handles:
            if handle not in keep:
                handle.remove()
        for part in self._parts:
            part.close()
        self.handles, self._parts = list(keep), []

    def act(
        self, time: str, note: Callable[[], object], copies: Sequence[tuple[nn.Module, nn.Module]] = ()
    ) -> dict[str, float]:
        """Run an event, record it by `note`, and return the metrics to log; `time` describes the time in words.

        `copies`: pairs of a network and a copy that gets its new values as part of the change.
        """
        number = self.event

        def finish() -> None:
            for source, target in copies:
                target.load_state_dict(source.state_dict())
            self.event = number + 1
            note()

        change = replace(planned(self.method, self.model, self), left_out=())  # already reported by `begin`
        copied = [tensor for _, target in copies for tensor in (*target.parameters(), *target.buffers())]
        report = change.followed_by(finish, guard=partial(same_tensors_after_error, copied)).apply()
        values = {f"{self.name}/event": float(number), **report.keyed(self.name, layers=False)}
        if values.get(f"{self.name}/sfe") == 0:
            logger.warning("%s at %s: %s", self.name, time, no_change(self.title, self.method))
        else:
            say(f"{self.name} acted at {time} ({report})")
        return values

    def metrics(self) -> dict[str, float]:
        """Metrics of a method that acts at each step: sums over optimizers; for `threshold` the mean."""
        found = [part.metrics() for part in self._parts if self.acts_now]
        return {
            f"{self.name}{'' if key.startswith('.') else '/'}{key}": sum(each[key] for each in found)
            / (len(found) if key == "threshold" else 1)
            for key in (found[0] if found else ())
        }

    def initial(self) -> Mapping[str, Tensor]:
        """Return the values of the model when it was new."""
        if unknown := unknown_in(self._initial or {}, self.model):
            raise ValueError(
                f"the initial values of {', '.join(unknown[:5])} are not known: use the callback from the first"
                " training of this model on, or fresh_seed=0"
            )
        return self._initial or {}

    def state_dict(self) -> dict[str, Any]:
        """State of plain values and CPU tensors."""
        return {"event": self.event, "method": self._states_of_parts(), "initial": self._initial}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, before `begin`."""
        self.event, self._states, self._initial = state["event"], state["method"], state["initial"]

    def _states_of_parts(self) -> Sequence[Mapping[str, Any]]:
        return [part.state_dict() for part in self._parts] or self._states


def inner(optimizer: Any) -> Any:
    """Return the optimizer inside the wrapper of accelerate."""
    return getattr(optimizer, "optimizer", optimizer)


def say(message: str) -> None:
    """Log a message on rank 0, in programs that do not import Lightning."""
    if rank() == 0:
        logger.info(message)


def require_known_times(
    schedule: Schedule,
    unknown: tuple[type[Schedule], ...] = (),
    known: str = "only the steps of training are known; give `EveryNSteps(n)`, or call `fire_` where the data changes",
) -> None:
    """Raise a ValueError if a schedule, or one of several, waits for a metric or is of a kind not supported here."""
    for each in schedules_in(schedule):
        if watched_by(each) or isinstance(each, unknown):
            raise ValueError(f"{each} cannot be used here: {known}")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Context manager: run a model with gradients, then restore its buffers, its modes and the global random states."""
    states = random.getstate(), np.random.get_state()
    gpus = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    try:
        with (
            same_buffers(model),
            keeping_modes(model),
            torch.enable_grad(),
            torch.random.fork_rng(gpus),
            ignored_passes(model),
        ):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
