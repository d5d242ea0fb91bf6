"""Base classes of all methods: those that act at events, and those that act at each step."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from lightning_fire.distributed import is_sharded, rank, show_warning
from lightning_fire.functional.checks import one_of
from lightning_fire.methods.base.all_or_nothing import distinct, restore, same_optimizers_after_error
from lightning_fire.methods.base.averages import averages_by_model, followers, unknown_copies
from lightning_fire.methods.base.change import Change, measured
from lightning_fire.methods.base.copies import copies_in
from lightning_fire.methods.base.ignored_passes import ignored_passes
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, follow_policy
from lightning_fire.methods.base.optimizers import accumulates, has_stepped
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.selecting import trained_by
from lightning_fire.methods.base.several import MemberTraining, Models, as_one, class_of, together
from lightning_fire.methods.base.training import Loop, Training
from lightning_fire.methods.base.verify import Verification
from lightning_fire.methods.base.wrong_library import OfOneLibrary, WrongLibrary
from lightning_fire.when import AtNewData, Never, Schedule, one_schedule
from lightning_fire.where import Weights
from lightning_fire.where.argument import check_model, checked
from lightning_fire.where.layers import plain
from lightning_fire.where.selection import some
from lightning_fire.where.trained import leaves_out


class Method(OfOneLibrary):
    """Base class of all methods. A method holds settings and no model.

    Attributes:
        name: First part of the keys of its metrics, and its name in recipes.
        where: The selection that it acts on; None: `default_where`.
        default_where: What `where=None` stands for; None: everything.
        kind: A selection whose class `where` must have, if not that of `default_where`.
        acts_on_shards: Whether it can act where the weights are sharded (DTensor).
        needs_initial_values: Whether it uses `Training.initial`.
        needs_batches: Whether it uses `Training.forward` or `Training.gradients`.
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

    def check(self, model: nn.Module) -> Sequence[str]:
        """Check before training that it can act on a model; return sentences on weights that no optimizer trains.

        Warns about weights that the selection cannot take, such as those of an unknown layout.

        Raises:
            ValueError: If nothing is selected.
        """
        if self.selection is None:
            return ()
        selection = self.selection.select(model)
        if (left_out := getattr(selection, "left_out", ())) and rank() == 0:
            show_warning(f"{type(self).__name__} leaves out {some(left_out, '; ')}.")
        return leaves_out(getattr(selection, "untrained", ()))

    def table(self, model: nn.Module) -> str:
        """Return a table of what it acts on, with reasons for the rest; empty without a selection."""
        selection = self.selection
        return "" if selection is None else f"{type(self).__name__}(where={selection})\n{selection.select(model)}"

    def _require_whole(self, model: nn.Module) -> None:
        """Raise a ValueError if the weights of a model are sharded and this method needs whole ones."""
        check_model(model)
        if not self.acts_on_shards and any(map(is_sharded, model.parameters())):
            raise ValueError(
                f"{type(self).__name__} needs whole weights, and those of {class_of(model)} are sharded (DTensor):"
                " use data parallelism without shards, or FIRE, or FullReset or ShrinkAndPerturb with initial values"
            )

    @property
    def identity(self) -> str:
        """Key of this method among others of its class in a checkpoint; equal in all processes."""
        return "" if self.selection is None else repr(self.selection)


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
        >>> import torch
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

    def check(self, model: nn.Module) -> Sequence[str]:
        """Also name parts that may be averages of the model which do not restart."""
        return [*super().check(model), *(unknown_copies(model) if self.remakes_network else ())]

    def selected(self, model: nn.Module, training: Training) -> str:
        """Describe briefly what it acts on, such as the number of units, when training starts."""
        return ""

    def prepare(self, model: nn.Module) -> None:
        """Hook: change the structure of a model before its optimizers are made and a checkpoint is loaded."""

    def plan(self, model: nn.Module, training: Training) -> Change:
        """Compute every new value without changing the model. Selections take only what the optimizers train."""
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
            TypeError: If `model` is not a module, or `training` no `Training`.
            ValueError: If nothing is selected, the optimizers train nothing of it, or a weight has a NaN or Inf. The
                model is unchanged then.
        """
        if isinstance(training, dict):  # shown with the local and global variables of a loop
            raise WrongLibrary(self, "__call__")
        training, whole = _checked(training), as_one(model)
        self._require_whole(whole)
        with _only_looking(whole):
            change = planned(self, whole, training)
            if self.remakes_network and change.values:  # adapters say it before training, in `check`
                with _training_of(self, whole, training):
                    change = replace(change, left_out=[*change.left_out, *unknown_copies(whole)])
        return change.followed_by(partial(setattr, training, "event", training.event + 1)).apply()


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


def rewritten(method: Method, model: nn.Module) -> set[Tensor]:
    """Return the parameters that a method writes as whole layers or by name, as far as known without a batch.

    It cannot write them once another tool, such as pruning, computes the weights from other parameters.
    """
    if isinstance(method, EventMethod) and isinstance(method.selection, Weights):
        return {view.parameter for view in method.selection.select(model)}
    by_name = isinstance(method, EventMethod) and method.needs_initial_values
    return set(model.parameters()) if method.where is None and (by_name or method.needs_batches) else set()


def planned(method: EventMethod, model: nn.Module, training: Training) -> Change:
    """Compute the change of an event, with a report and the reset of optimizer state."""
    start = time.perf_counter()
    one_of(OptimizerPolicy, optimizer_state=method.optimizer_state)
    with _training_of(method, model, training):
        if isinstance(model, Models):
            change = together(list(_plans(method, model, training)))
        else:
            change = _plan(method, model, training)
        seconds = time.perf_counter() - start
        replaced = change.values if method.remakes_network and method.changes_output else {}
        averages, count_again = followers(model, replaced, training.averages)
    report = change.report or Report()
    if change.weights:
        report = replace(report, values={**report.values, "seconds": seconds})
    touched = set(change.values if change.touched is None else change.touched)
    copies = copies_in(training.optimizers, model.parameters()) if change.values else {}
    copied = {copy: new for tensor, new in change.values.items() for copy in copies.get(tensor, ())}
    touched |= {copy for tensor in touched for copy in copies.get(tensor, ())}
    drop = partial(follow_policy, method.optimizer_state, training.optimizers, touched)
    change = replace(verified(change, model, training.optimizers), report=report)
    change = replace(change, values={**change.values, **copied, **averages})
    rewritten = {"keep": (), "touched": touched, "all": None}[method.optimizer_state]
    guard = partial(same_optimizers_after_error, training.optimizers, rewritten)
    return change.followed_by(drop, count_again, guard=guard)


def _plan(method: EventMethod, model: nn.Module, training: Any) -> Change:
    change = method.plan(model, training)
    if not isinstance(change, Change):
        raise TypeError(f"`plan` of {type(method).__name__} must return a Change, got {type(change).__name__}")
    return measured(change, model, training.measure)


def _plans(method: EventMethod, models: Models, training: Training) -> Iterator[Change]:
    shared_out = averages_by_model(models, training.averages)
    for number, (model, averages) in enumerate(zip(models, shared_out, strict=True)):
        try:
            yield _plan(method, model, MemberTraining(training, number, models, averages))
        except ValueError as error:
            raise ValueError(f"model {number}: {error}") from error


@torch.no_grad()
def verified(change: Change, model: nn.Module, optimizers: Sequence[Optimizer]) -> Change:
    """Return a change whose weights are verified after the next optimizer steps."""
    names: dict[Tensor, str] = {parameter: plain(name) for name, parameter in model.named_parameters()}
    values = dict(change.values)
    for part in change.parts:
        if part.tensor in names:
            part.into(values.setdefault(part.tensor, part.tensor.detach().clone()))
    return replace(change, check=Verification(values, names, optimizers).begin)


def _training_of(method: EventMethod, model: nn.Module, training: Training) -> AbstractContextManager[Any]:
    """Context manager: selections take only what the optimizers train, if the method changes weights."""
    return trained_by(model, training.optimizers, training.paused) if method.changes_weights else nullcontext()


class StepMethod(Method):
    """Base class of methods that act at each optimizer step. Your own method needs only `name` and `begin`."""

    def attach(self, model: nn.Module, training: Training | None = None) -> "Attached":
        """Start to act on a model.

        Args:
            model: Any module.
            training: The training, such as `Loop(optimizers=optimizer, forward=lambda: model(x))`. Default: `Loop()`.

        Raises:
            TypeError: If `model` is not a module, or `training` no `Training`.
            ValueError: If nothing is selected, or the optimizers train nothing of it.
        """
        training = _checked(training)
        self._require_whole(model)
        with _only_looking(model), trained_by(model, training.optimizers, training.paused):
            attached = self.begin(model, training)
        attached.training = training
        return attached

    def begin(self, model: nn.Module, training: Training) -> "Attached":
        """Hook of `attach`. Selections take only what the optimizers train."""
        raise NotImplementedError


class Attached:
    """A `StepMethod` attached to a model: `before_step(optimizer)`, `optimizer.step()`, `after_step()`.

    Both do nothing where accelerate's wrapper of the optimizer takes no step: while it accumulates gradients, and, for
    `after_step`, if the gradients were not finite.

    Attributes:
        watching: Whether methods that watch hidden units count forward passes.
        training: The training that it is attached to.
    """

    watching = True
    training: Training = Loop()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name, only_at_steps in {"before_step": _before_steps, "after_step": _after_steps}.items():
            if name in vars(cls):
                setattr(cls, name, only_at_steps(vars(cls)[name]))

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

    def close(self) -> None:
        """Remove hooks from the model."""


def _before_steps(hook: Callable[..., None]) -> Callable[..., None]:
    """Wrap a `before_step`: it does nothing while gradients are accumulated."""

    @wraps(hook)
    def before_step(self: Attached, optimizer: Optimizer | None = None, *args: Any, **keywords: Any) -> None:
        if not any(map(accumulates, self.training.optimizers if optimizer is None else [optimizer])):
            hook(self, optimizer, *args, **keywords)

    return before_step


def _after_steps(hook: Callable[..., None]) -> Callable[..., None]:
    """Wrap an `after_step`: it does nothing if no optimizer has stepped."""

    @wraps(hook)
    def after_step(self: Attached) -> None:
        if not self.training.optimizers or any(map(has_stepped, self.training.optimizers)):
            hook(self)

    return after_step


def _checked(training: Any) -> Any:
    """Return a training, `Loop()` for None."""
    if training is not None and not hasattr(training, "optimizers"):
        given = type(training).__name__
        raise TypeError(f"`training` must be a Loop, such as Loop(optimizers=optimizer), got {given}")
    return Loop() if training is None else training


@contextmanager
def _only_looking(model: nn.Module) -> Iterator[None]:
    """Context manager: passes of a model leave its buffers and the statistics of attached methods unchanged."""
    with torch.inference_mode(False), same_buffers(model), ignored_passes(model):
        yield


@contextmanager
def same_buffers(model: nn.Module) -> Iterator[None]:
    """Context manager: restore buffers that a forward pass changes, such as the statistics of BatchNorm."""
    check_model(model)
    buffers = [distinct(buffer) for buffer in model.buffers() if not is_lazy(buffer)]
    former = [(buffer, ..., buffer.clone()) for buffer in buffers]
    try:
        yield
    finally:
        restore(former)
