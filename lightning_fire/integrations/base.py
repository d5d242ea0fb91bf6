"""Base class of the callbacks for other libraries: a method, its state and its sentences in a training."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_fire.distributed import rank
from lightning_fire.messages import logger, no_change
from lightning_fire.methods import Attached, EventMethod, Loop, Method, initial_values
from lightning_fire.methods.base.averages import as_averages
from lightning_fire.methods.base.method import schedule_of
from lightning_fire.methods.base.optimizers import as_list
from lightning_fire.methods.base.passes import ignored_passes, keeping_modes, same_buffers
from lightning_fire.methods.base.report import check_name
from lightning_fire.methods.initial_values import unknown_in
from lightning_fire.when import Schedule, schedules_in, watched_by


class LibraryCallback:
    """Applies a method to the model of a training. A subclass adds the hooks and the `Loop` of its library."""

    def __init__(self, method: Method, when: Any, default: Schedule | None, name: str | None, averages: Any):
        super().__init__()
        self._when, self._averages = schedule_of(method, when, default), as_averages(averages)
        check_name(name)
        self._method: Any = method
        self.name = name or method.name
        self._network: Any = None
        self._loop: Any = None  # of the last training
        self._event = self._first_event = 1  # number of the next event, and of the first one of this training
        self._initial: Mapping[str, Tensor] | None = None
        self._parts: list[tuple[Sequence[Any], Attached]] = []  # a method that acts at each step, by its optimizers
        self._states: Sequence[Mapping[str, Any]] = ()  # of `_parts` while there are none
        self._handles: list[Any] = []  # hooks to remove in `_close`
        self._said: list[str] = []  # about weights that are left out

    def _set_model(self, model: nn.Module) -> None:
        """Check a model, prepare its structure before its optimizer is made, and copy values that the method needs."""
        if self._network not in (None, model):
            if self._loop is None:  # the other one was never trained
                self._initial = None
            else:
                say(f"{self.name} takes another model for the same one, later. For a new one make a new callback.")
        self._method.check(model, Loop())
        if isinstance(self._method, EventMethod):
            self._method.prepare(model)
        self._network = model
        if self._initial is None and self._method.needs_initial_values:
            self._initial = initial_values(model)

    def _begin(self, loop: Loop, note: str = "") -> None:
        """Start to act in a training, and say so in one sentence, with a note at its end."""
        self._close()
        self._loop, self._first_event = loop, self._event
        if self._method.needs_initial_values and (unknown := unknown_in(self._initial or {}, self._network)):
            raise ValueError(
                f"the initial values of {', '.join(unknown[:5])} are not known: use the callback from the first"
                " training of this model on, or fresh_seed=0"
            )
        self._said = list(self._method.check(self._network, loop))
        if isinstance(self._method, EventMethod):
            what, times = self._method.selected(self._network, loop), f"when {self._when} is due"
        else:
            self._attach(loop)
            what, times = " and ".join(filter(None, (part.selected() for _, part in self._parts))), "at each step"
        if not self._only_measures:
            acts = f"{self.name} acts on {what}, {times}" if what else f"{self.name} acts {times}"
            say("; ".join(filter(None, [acts, *self._said, note])) + ".")

    @property
    def _only_measures(self) -> bool:
        return getattr(self._method, "only_measures", False)

    def _offered(self, ranks: int) -> dict[str, Any]:
        """Return the arguments of the `Loop` of a training that do not depend on the library."""
        known = {"initial": self._initial, "averages": self._averages, "event": self._event}
        return {**known, "ranks": ranks, "share_work": ranks > 1, "title": type(self._method).__name__}

    def _attach(self, loop: Loop) -> None:
        """Attach the method once per optimizer, as these step at different times; one that only measures, once."""
        problems = []
        optimizers = as_list(loop.optimizers)
        for group in [optimizers] if self._only_measures else [[each] for each in optimizers]:
            try:
                self._parts.append((group, self._method.attach(self._network, replace(loop, optimizers=group))))
            except ValueError as error:  # another optimizer may train the selected weights
                problems.append(error)
        if not self._parts:
            raise problems[0]
        for (_, part), state in zip(self._parts, self._states, strict=False):
            if state:
                part.load_state_dict(state)

    def _act(self, time: str, *then: Callable[[], object], done: Sequence[str] = ()) -> dict[str, float]:
        """Make an event and return the metrics to log.

        Args:
            time: Time of the event in words.
            then: Functions that run after the new values are written.
            done: Further sentences about the event.
        """
        number = self._event
        report = self._method.event(self._network, self._loop).followed_by(*then, self._count).make()
        new = [sentence for sentence in report.left_out if sentence not in self._said]
        self._said += new
        values = {f"{self.name}/event": float(number), **report.keyed(self.name, layers=False)}
        if values.get(f"{self.name}/sfe") == 0:
            logger.warning("%s at %s: %s", self.name, time, no_change(type(self._method).__name__, self._method))
        else:
            say(f"{self.name} acted at {time} ({'; '.join([str(report), *new, *done])})")
        return values

    def _count(self) -> None:
        self._event += 1
        self._loop.event = self._event

    @property
    def _had_no_event(self) -> bool:
        """Whether a method with events has not acted in this training."""
        return isinstance(self._method, EventMethod) and self._event == self._first_event

    def _metrics(self) -> dict[str, float]:
        """Metrics of a method that acts at each step: sums over optimizers; for `threshold` the mean."""
        found = [part.metrics() for _, part in self._parts]
        return {
            f"{self.name}{'' if key.startswith('.') else '/'}{key}": sum(each[key] for each in found)
            / (len(found) if key == "threshold" else 1)
            for key in (found[0] if found else ())
        }

    def _close(self) -> None:
        """Stop acting on the model, and keep the state."""
        self._states = self._method_states()
        for handle in self._handles:
            handle.remove()
        for _, part in self._parts:
            part.close()
        self._handles, self._parts = [], []

    def _state(self) -> dict[str, Any]:
        """State of plain values and CPU tensors."""
        return {"event": self._event, "method": self._method_states(), "initial": self._initial}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a `_state`, before `_begin`."""
        self._event, self._states, self._initial = state["event"], state["method"], state["initial"]

    def _method_states(self) -> Sequence[Mapping[str, Any]]:
        return [part.state_dict() for _, part in self._parts] or self._states

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy, without the model and its training."""
        training: dict[str, Any] = {"_network": None, "_loop": None, "_averages": [], "_parts": [], "_handles": []}
        return {**vars(self), **training, "_states": self._method_states()}


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
