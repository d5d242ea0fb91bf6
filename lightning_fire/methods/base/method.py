"""Base classes of all methods: those that act at events, and those that act at each step."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.distributed import is_sharded, rank, show_warning
from lightning_fire.functional.checks import one_of
from lightning_fire.methods.base.averages import averages_of_each, restart_of_averages
from lightning_fire.methods.base.change import Change, with_report
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.optimizers import OptimizerPolicy, drop_state
from lightning_fire.methods.base.passes import ignored_passes, same_buffers
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.reverted import look_at
from lightning_fire.when import AtNewData, Never, Schedule, one_schedule
from lightning_fire.where.argument import check_model, checked
from lightning_fire.where.layers import plain
from lightning_fire.where.trained import leaves_out

_SEED_STEP = 1_000_000  # between the seeds of two models, which would otherwise get the same draws


class Method:
    """Base class of all methods. A method holds settings and no model.

    Attributes:
        name: First part of the keys of its metrics, and its name in recipes.
        where: The selection that it acts on; None: `default_where`.
        default_where: What `where=None` stands for; None: everything.
        kind: A selection whose class `where` must have, if not that of `default_where`.
        acts_on_shards: Whether it can act where the weights are sharded (DTensor).
        needs_initial_values: Whether it uses `Loop.initial_values`.
        needs_batches: Whether it uses `Loop.run` or `Loop.gradients`.
    """

    name: ClassVar[str] = "method"
    where: Any = None
    default_where: ClassVar[Any] = None
    kind: ClassVar[Any] = None
    acts_on_shards: Any = False
    needs_initial_values: Any = False
    needs_batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the settings that all methods share; dataclasses call it after `__init__`."""
        for name, value in vars(self).items():
            kind, given = type(self).__name__, type(value).__name__
            if isinstance(value, Schedule):
                raise TypeError(
                    f"`{name}` of {kind} is a schedule: a method is made without one, PlasticityCallback({kind}(…),"
                    f" {given}(…)) has both"
                )
            if isinstance(value, nn.Module | Optimizer) and name != "where":
                raise TypeError(
                    f"`{name}` of {kind} is a {given}: a method is made without a model, and applied to it by"
                    f" {kind}(…)(model, Loop(optimizers=…)) or {kind}(…).attach(model, Loop(optimizers=…))"
                )
        _ = self.selection  # raises a TypeError for another kind of selection

    @property
    def selection(self) -> Any:
        """The selection that it acts on; None: everything. Raises a TypeError for another kind of selection."""
        where, kind = self.default_where if self.where is None else self.where, self.kind or self.default_where
        return where if where is None or kind is None else checked(where, kind)

    def check(self, model: nn.Module, training: Loop) -> Sequence[str]:
        """Check before training that it can act on a model; return sentences on weights that it leaves out.

        Raises:
            ValueError: If nothing is selected.
        """
        if self.selection is None:
            return ()
        return left_out_of(self.selection.select(model, training.trained(model)))

    def table(self, model: nn.Module) -> str:
        """Return a table of what it acts on, with reasons for the rest; empty without a selection."""
        selection = self.selection
        return "" if selection is None else f"{type(self).__name__}(where={selection})\n{selection.select(model)}"

    @property
    def identity(self) -> str:
        """Key of this method among others of its class in a checkpoint; equal in all processes."""
        return "" if self.selection is None else repr(self.selection)

    def _require_whole(self, model: nn.Module) -> None:
        """Raise a ValueError if the weights of a model are sharded and this method needs whole ones."""
        check_model(model)
        if not self.acts_on_shards and any(map(is_sharded, model.parameters())):
            raise ValueError(
                f"{type(self).__name__} needs whole weights, and those of {type(model).__name__} are sharded (DTensor):"
                " use data parallelism without shards, or FIRE, or FullReset or ShrinkAndPerturb with initial values"
            )


class EventMethod(Method):
    """Base class of methods that change a model at an event. Your own method needs only `name` and `plan`.

    Attributes:
        when: Default schedule.
        optimizer_state: Whose optimizer state an event drops: `keep`, `touched` or `all`; often an argument.
        changes_weights: Whether it changes weights; given optimizers must then train some of them.
        changes_output: Whether an event changes the output of the network: target networks follow.
        remakes_network: Whether the result counts as a new network: averages of weights and best scores of other
            callbacks restart.
        measures_curvature: Whether λ_max is logged by default.

    Example:
        >>> class Halve(EventMethod):
        ...     name = "halve"
        ...     def plan(self, model, training):
        ...         return Change({parameter: parameter / 2 for parameter in model.parameters()})
        >>> model = nn.Linear(2, 2)
        >>> Halve()(model, Loop())["sfe_normalized"]
        0.25
    """

    when: ClassVar[Schedule] = AtNewData()
    optimizer_state: OptimizerPolicy = "touched"
    changes_weights: ClassVar[bool] = True
    changes_output: ClassVar[bool] = True
    remakes_network: ClassVar[bool] = True
    measures_curvature: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(OptimizerPolicy, optimizer_state=self.optimizer_state)

    def selected(self, model: nn.Module, training: Loop) -> str:
        """Describe briefly what it acts on, such as the number of units, when training starts."""
        return ""

    def prepare(self, model: nn.Module) -> None:
        """Hook: change the structure of a model before its optimizers are made and a checkpoint is loaded."""

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Compute every new value without changing the model. Take only weights in `training.trained(model)`."""
        raise NotImplementedError

    def __call__(self, model: nn.Module | Sequence[nn.Module], training: Loop | None = None) -> Report:
        """Change a model in place.

        Args:
            model: Any module. In a list, such as `[actor, critic]`, each is changed as a separate network, all or none;
                names in the report and of initial values start with the index of the model, `0.`.
            training: The loop that trains it. Default: `Loop()`.

        Returns:
            For a change of weights: deviation from isometry before and after, squared Frobenius error, and seconds, of
            all weights and by weight.

        Raises:
            TypeError: If `model` is not a module, or `training` no `Loop`.
            ValueError: If nothing is selected, the optimizers train nothing of it, or a weight has a NaN or Inf. The
                model is unchanged then.
        """
        training = _loop(training)
        report = self.event(model, training).followed_by(partial(_count, training)).make()
        for sentence in report.left_out if rank() == 0 else ():
            show_warning(f"the change {sentence}")
        return report

    def event(self, model: nn.Module | Sequence[nn.Module], training: Loop) -> Change:
        """Return `plan` of one or several models, with all that follows a change: averages and optimizer state."""
        start, models = time.perf_counter(), as_models(model)
        with only_measuring(nn.ModuleList(models)):
            if len(models) == 1:
                change = self._planned(models[0], training)
            else:
                of_each = averages_of_each(models, training.averages)
                first, *others = [
                    self._planned_of(each, number, replace(training, averages=of_each[number]))
                    for number, each in enumerate(models)
                ]
                change = sum(others, first)
        report = change.report or Report()
        if change.weights:
            report = replace(report, values={**report.values, "seconds": time.perf_counter() - start})
        replaced = change.values if self.remakes_network and self.changes_output else {}
        averages, count_again = restart_of_averages(models, replaced, training.averages, training.optimizers)
        names: dict[Tensor, str] = {
            parameter: plain(name) for each in models for name, parameter in each.named_parameters()
        }
        touched, look = set(change.values if change.reset is None else change.reset), look_at(names, change.values)
        values = {**change.values, **averages}
        change = replace(change, values=values, report=report).followed_by(count_again, look)
        if self.optimizer_state != "keep":
            chosen = None if self.optimizer_state == "all" else touched
            change = change.followed_by(partial(drop_state, training.optimizers, chosen))
        return change

    def _planned(self, model: nn.Module, training: Loop) -> Change:
        self._require_whole(model)
        change = self.plan(model, training)
        if not isinstance(change, Change):
            raise TypeError(f"`plan` of {type(self).__name__} must return a Change, got {type(change).__name__}")
        return with_report(change, model, training.measure)

    def _planned_of(self, model: nn.Module, number: int, training: Loop) -> Change:
        """Plan the change of one of several models, whose names start with its index."""
        try:
            change = self._planned(model, _of_model(training, number))
        except ValueError as error:
            raise ValueError(f"model {number}: {error}") from error
        views = [replace(view, name=f"{number}.{view.name}") for view in change.weights]
        return replace(change, report=(change.report or Report()).prefixed(f"{number}."), weights=views)


class StepMethod(Method):
    """Base class of methods that act at each optimizer step. Your own method needs only `name` and `begin`."""

    def attach(self, model: nn.Module, training: Loop | None = None) -> "Attached":
        """Start to act on a model.

        Args:
            model: Any module.
            training: The training, such as `Loop(optimizers=optimizer, forward=lambda: model(x))`. Default: `Loop()`.

        Raises:
            TypeError: If `model` is not a module, or `training` no `Loop`.
            ValueError: If nothing is selected, or the optimizers train nothing of it.
        """
        training = _loop(training)
        self._require_whole(model)
        with only_measuring(model):
            return self.begin(model, training)

    def begin(self, model: nn.Module, training: Loop) -> "Attached":
        """Hook of `attach`. Take only weights in `training.trained(model)`."""
        raise NotImplementedError


class Attached:
    """A `StepMethod` attached to a model: `before_step(optimizer)`, `optimizer.step()`, `after_step()`.

    Attributes:
        watching: Whether methods that watch hidden units count forward passes.
    """

    watching = True

    def before_step(self, optimizer: Optimizer | None = None, gradient_scale: float = 1.0) -> None:
        """Hook: called before each optimizer step, after gradient accumulation and before gradient clipping.

        Args:
            optimizer: The optimizer that is about to step. Default: all of them.
            gradient_scale: Factor still contained in the gradients, as with a `GradScaler` before `unscale_`.
        """

    def after_step(self) -> None:
        """Hook: called after each optimizer step, on all ranks."""

    def metrics(self) -> Mapping[str, float]:
        """Return current values to log, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """State to save in checkpoints: plain values, and tensors on the CPU."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; not called in a new training, nor with an empty one."""

    def selected(self) -> str:
        """Describe briefly what it acts on, such as the number of units."""
        return ""

    def held(self) -> Sequence[Tensor]:
        """Return the parameters that it acts on; callbacks attach the method again when one has left the model."""
        return ()

    def close(self) -> None:
        """Remove hooks from the model."""


def schedule_of(method: Any, when: Schedule | Sequence[Schedule] | None, default: Schedule | None = None) -> Schedule:
    """Schedule of a method in a callback: the given one, `default`, or its own; never due for a method without events.

    Raises:
        TypeError: If `method` is not a method, or `when` not a schedule.
        ValueError: If a schedule is given for a method that acts at every step.
    """
    if not isinstance(method, Method):
        got = f"the class {method.__name__}" if isinstance(method, type) else type(method).__name__
        raise TypeError(f"`method` must be a method such as FIRE(), got {got}")
    if isinstance(method, EventMethod):
        return one_schedule(when if when is not None else default or method.when)
    if when is not None:
        raise ValueError(f"`when` is for methods with events: {type(method).__name__} acts at every step")
    return Never()


def as_models(model: Any) -> list[nn.Module]:
    """Return one model, or several without duplicates, as a list; raise a TypeError for anything else."""
    several = isinstance(model, list | tuple) and model and all(isinstance(each, nn.Module) for each in model)
    models = list(dict.fromkeys(model)) if several else [model]
    for each in models:
        check_model(each)
    return models


def left_out_of(selection: Any) -> list[str]:
    """Return sentences on the weights that a selection leaves out although its settings include them."""
    return leaves_out(getattr(selection, "untrained", ()), getattr(selection, "left_out", ()))


@contextmanager
def only_measuring(model: nn.Module) -> Iterator[None]:
    """Context manager: passes of a model leave its buffers and the statistics of attached methods unchanged."""
    with torch.inference_mode(False), same_buffers(model), ignored_passes(model):
        yield


def _loop(training: Any) -> Loop:
    if training is not None and not isinstance(training, Loop):
        given = type(training).__name__
        raise TypeError(f"`training` must be a Loop, such as Loop(optimizers=optimizer), got {given}")
    return Loop() if training is None else training


def _of_model(training: Loop, number: int) -> Loop:
    """Return the training of one of several models, whose names start with its index."""
    start, initial = f"{number}.", training.initial
    if training.losses is not None and not callable(training.losses):
        raise ValueError("with several models `losses` must be a function: lambda: (loss(x, y) for x, y in loader)")
    if initial is not None:
        initial = {name.removeprefix(start): value for name, value in initial.items() if name.startswith(start)}
    return replace(training, initial=initial, event=training.event + _SEED_STEP * number)


def _count(training: Loop) -> None:
    training.event += 1
