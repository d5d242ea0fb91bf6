"""Continue, change the weights first, or train from scratch? For a training script of your own, in any library."""

import copy
import csv
import gc
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from lightning_fire.atomic import atomic_file
from lightning_fire.checkpoints.earlier_training import EarlierTraining, digest_of, read_earlier_training
from lightning_fire.experiments.decision import Decision, decision_of
from lightning_fire.experiments.direction import mode_of
from lightning_fire.experiments.runs import lock_folder
from lightning_fire.experiments.source_of import source_of
from lightning_fire.experiments.tables import aligned, difference_cell, with_spread
from lightning_fire.methods import FIRE, Change, EventMethod, Loop, initial_values
from lightning_fire.methods.base.averages import restart_of_averages
from lightning_fire.methods.base.optimizers import as_list
from lightning_fire.methods.base.passes import same_buffers
from lightning_fire.recipe.recipe import SCRATCH, VANILLA, check_name

Model = TypeVar("Model", bound=nn.Module)
_RESULTS = "results.csv"
_COLUMNS = ("method", "seed", "value", "seconds", "settings")
_started: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()  # of all runs of this process, by `id`


class Start:
    """Start of one run: from the weights of the checkpoint, changed by its method, or from scratch.

    Attributes:
        name: Name of the method.
        seed: Seed of the run.
        scratch: Whether the model keeps its new weights.
        acted: Description of the change by its method.
    """

    def __init__(self, name: str, seed: int, method: Any, earlier: EarlierTraining):
        self.name, self.seed, self.scratch = name, seed, name == SCRATCH
        self._method, self._earlier, self._loaded, self._asked = method, earlier, False, False
        self._own: set[int] = set()  # `id` of the parameters of this run
        self.acted = ""

    @property
    def method(self) -> Any:
        """The method if it is not an `EventMethod`: give it to a callback. None for `vanilla` and `scratch`."""
        self._asked = True
        return self._method

    def __call__(self, model: Model, optimizers: Any = (), **loop: Any) -> Model:
        """Load the old weights into a new model and apply the method.

        Args:
            model: A new model. Its values are the initial values that some methods reset to.
            optimizers: Its optimizers, if they exist: they get their state from the checkpoint if it fits, and the
                method drops the state of the weights that it changes. Without them the optimizers start empty.
            loop: More arguments of `Loop`, such as `forward` and `losses` for methods that use data. `averages` restart
                from the loaded weights.

        Returns:
            The same model.

        Raises:
            ValueError: If the model is not new (trained by an earlier run, or with the weights of the checkpoint), the
                checkpoint does not fit, or the method cannot act.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"`model` must be one torch.nn.Module, got {type(model).__name__}: several fit a ModuleList"
            )
        training = Loop(optimizers, initial=initial_values(model), **loop)
        self._require_new(model)
        if not self._loaded:  # a second call may be for other optimizers
            self._earlier.require_new(model)
        self._earlier.load_weights(model, only_check=self.scratch)
        self._loaded = True
        if not self.scratch:
            stored = {*model.parameters(), *model.buffers()}
            loaded = {tensor: tensor for tensor in stored}
            copies, count_again = restart_of_averages([model], loaded, training.averages, training.optimizers)
            with same_buffers(model):  # the counts of averages that it holds are stored, too
                Change({copy: new for copy, new in copies.items() if copy not in stored}, then=[count_again]).make()
            reason = self._earlier.load_optimizer_states(as_list(training.optimizers)) if training.optimizers else ""
            if reason and self.name == VANILLA:  # the same with every method
                print(f"Each choice begins with a new optimizer: {reason}.")
            if isinstance(self._method, EventMethod):
                self._change(model, training)
        return model

    def _require_new(self, model: nn.Module) -> None:
        """Raise a ValueError if a trained parameter has come in an earlier run; frozen ones may be shared."""
        trained = {id(parameter): parameter for parameter in model.parameters() if parameter.requires_grad}
        if any(_started.get(key) is parameter for key, parameter in trained.items() if key not in self._own):
            raise ValueError(
                f"{type(model).__name__} shares parameters with the model of an earlier run: make a new model in"
                " `train`, for each call"
            )
        self._own |= trained.keys()
        _started.update(trained)

    def _change(self, model: nn.Module, training: Loop) -> None:
        try:
            with torch.random.fork_rng():  # random draws after this are equal for all methods
                ending = self._method(model, training).ending
                self.acted = f"; {ending}" if ending else ""
        except ValueError as error:
            given = ", whose arguments are those of start(model, …)" if "Loop(" in str(error) else ""
            raise ValueError(f"{self.name} cannot act: {error}{given}") from error

    def require_used(self) -> None:
        """Raise a ValueError if `train` has not used it: all methods would then be equal."""
        if not self._loaded:
            raise ValueError("`train` has not called start(model), which loads the old weights and applies the method")
        if self._method is not None and not isinstance(self._method, EventMethod) and not self._asked:
            kind = type(self._method).__name__
            raise ValueError(f"`train` has not used start.method: give {kind} to a callback such as PlasticityCallback")


@dataclass(frozen=True)
class DecisionRuns:
    """Results of `decide`.

    Attributes:
        values: The metric of each run, by method and seed.
        seconds: The time of each run, by method and seed.
        decision: The decision: its `choice`, and its `text`, one paragraph.
    """

    values: Mapping[str, Mapping[int, float]]
    seconds: Mapping[str, Mapping[int, float]]
    decision: Decision

    def table(self) -> str:
        """Return a table: mean ± standard deviation (n - 1) over the seeds, paired differences to `vanilla`, time."""
        rows = [["method", "seeds", "mean", f"minus {VANILLA} (95 %, this pair alone)", "seconds"]]
        for method, of in self.values.items():
            minus, seconds = difference_cell(of, self.values[VANILLA]), list(self.seconds[method].values())
            rows.append([method, str(len(of)), with_spread(list(of.values())), minus, f"{np.mean(seconds):.1f}"])
        return aligned(rows)

    @property
    def doubt(self) -> str:
        """Warning if continuing has the same value with every seed; otherwise empty."""
        of = self.values[VANILLA].values()
        if len(of) < 2 or len(set(of)) > 1:
            return ""
        return (
            f"{VANILLA} has the same value with every seed. This is expected of a metric at its best or worst value."
            " Otherwise `train` ignores the seed: shuffle the data, and pass the seed to libraries with their own"
            " generators. Until then all seeds are the same run, and the intervals are too narrow."
        )

    @property
    def names(self) -> str:
        """Note if `leading` is not `choice`; otherwise empty."""
        choice, leading = self.decision.choice, self.decision.leading
        if choice == leading:
            return ""
        return f"decision.choice stays {choice!r} until a gain is shown; decision.leading is {leading!r}."

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.table(), self.doubt, self.decision.text, self.names]))


def decide(
    train: Callable[[int, Start], Any],
    checkpoint: str | Path,
    methods: Sequence[EventMethod] | Mapping[str, Any] = (FIRE(),),
    seeds: int | Sequence[int] = 5,
    mode: Literal["max", "min"] | None = None,
    metric: str = "metric",
    worth: float | None = None,
    output: str | Path = "runs/decide",
) -> DecisionRuns:
    """Decide whether to continue from the weights of an earlier training, change them first, or train from scratch.

    `vanilla` continues from the checkpoint, `scratch` trains a new model, and each method changes the old weights once,
    before training starts. All use the same seeds, one run after another in this process. Python's, NumPy's and torch's
    generators are seeded before each run. Finished runs are kept in `output` and reused if checkpoint, method and the
    source of `train` (see `source_of`) are the same; for other data, give another folder.

    Args:
        train: Function of a seed and a `Start` that makes a new model, calls `start(model)`, trains the model on new
            data, and returns the metric on data that the checkpoint was not trained on.
        checkpoint: File or folder with the old weights: of Lightning, a `state_dict`, safetensors, or Hugging Face.
        methods: Methods beside `vanilla` and `scratch`. Two of one name need a setting that distinguishes them, such as
            `fire` and `fire scale=procrustes`, or a dict with names of your own. A value of that dict that is not an
            `EventMethod` is for `train` to apply: `start.method`.
        seeds: Number of seeds, from 0, or a list of seeds.
        mode: `"max"` if larger is better, `"min"` if smaller is. Default: `"max"`, but it must be given for a metric
            whose name is that of a loss or an error, such as `MAE`.
        metric: Name of the metric in the text.
        worth: Smallest difference of the metric that matters. Default: that of `decision_of`.
        output: Folder for the results, `results.csv`.

    Returns:
        The results of all runs and the decision, which are also printed.

    Raises:
        ValueError: If an argument is out of range, the checkpoint cannot be read or does not fit the model, or `train`
            does not use its `Start` or returns no number.

    Example:
        >>> import tempfile
        >>> from lightning_fire import FIRE
        >>> folder = Path(tempfile.mkdtemp())
        >>> torch.save(nn.Linear(2, 2).state_dict(), folder / "old.pt")
        >>> def train(seed, start):
        ...     model = start(nn.Linear(2, 2))
        ...     return model.weight.square().sum()
        >>> fire = [FIRE(steps="exact")]
        >>> found = decide(train, folder / "old.pt", fire, seeds=2, output=folder)  # doctest: +ELLIPSIS
        vanilla seed 0: ...
        >>> round(found.values["fire"][0], 3)  # of an orthogonal matrix
        2.0
    """
    direction, every = mode_of(metric, mode, 'mode="{}"'), _seeds(seeds)
    if worth is not None and not 0 < worth < float("inf"):
        raise ValueError(f"`worth` must be a positive number, got {worth!r}")
    named, output = _named(methods), Path(output)
    earlier, common = read_earlier_training(checkpoint), f"{digest_of(checkpoint)}\n{source_of(train)}"
    settings = {
        name: hashlib.sha256(f"{common}\n{source_of(method)}".encode()).hexdigest() for name, method in named.items()
    }
    asked = [(name, seed, settings[name]) for seed in every for name in named]
    with lock_folder(output), _same_random_states_after():
        rows = _read(output / _RESULTS)
        done, others = [run for run in asked if run in rows], sum(run[2] not in settings.values() for run in rows)
        if done:
            print(f"{len(done)} of {len(asked)} runs had finished: remove {output} if the data has changed")
        elif others:
            print(
                f"{output} also keeps {others} runs of another checkpoint, method or `train`, or of code that it uses"
            )
        for run in asked:
            if run not in rows:
                name, seed, _ = run
                start = Start(name, seed, copy.deepcopy(named[name]), earlier)
                began = time.perf_counter()
                value = _trained(train, start)
                rows[run] = dict(zip(_COLUMNS, (name, seed, value, time.perf_counter() - began, run[2]), strict=True))
                _write(output / _RESULTS, rows.values())
                print(f"{name} seed {seed}: {value:.4g} ({rows[run]['seconds']:.1f} s){start.acted}")
    values, seconds = (
        {name: {seed: float(rows[name, seed, settings[name]][column]) for seed in every} for name in named}
        for column in ("value", "seconds")
    )
    found = DecisionRuns(values, seconds, decision_of(values, metric, direction, worth=worth))
    print(f"\n{found}")
    return found


def _seeds(seeds: Any) -> list[int]:
    """Return the distinct seeds, given by their number or as a list."""
    several = range(seeds) if isinstance(seeds, Integral) else seeds
    if not isinstance(several, Iterable) or not all(isinstance(seed, Integral) and int(seed) >= 0 for seed in several):
        raise ValueError(f"`seeds` must be a number of seeds, or whole numbers of at least 0, got {seeds!r}")
    every = list(dict.fromkeys(map(int, several)))
    if not every:
        raise ValueError(f"`seeds` must hold at least one seed, got {seeds!r}")
    return every


def _named(methods: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the methods by name, `vanilla` and `scratch` first."""
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    elif isinstance(methods, str) or not isinstance(methods, Sequence):
        raise ValueError(f"`methods` must be a list of methods such as [FIRE()], or a dict, got {methods!r}")
    elif wrong := [method for method in methods if not isinstance(method, EventMethod)]:
        raise ValueError(f"`methods` must hold methods such as FIRE(), or be a dict with names, got {wrong[0]!r}")
    else:
        pairs = [(_name(method, methods), method) for method in methods]
    names = [VANILLA, SCRATCH, *(name for name, _ in pairs)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two methods are named {twice[0]}: give a dict, {{'name': method, …}}")
    for name in names:
        check_name(name)
    return {VANILLA: None, SCRATCH: None, **dict(pairs)}


def _name(method: EventMethod, methods: Sequence[EventMethod]) -> str:
    """Return the name of a method with the settings that distinguish it from others: `fire scale=procrustes`."""
    alike, parts = [other for other in methods if other.name == method.name], [method.name]
    settings: Any = fields(method) if is_dataclass(method) else ()
    for setting in settings:
        values = [getattr(other, setting.name, None) for other in alike]
        own = getattr(method, setting.name)
        if own != setting.default and isinstance(own, str | int | float) and any(value != own for value in values):
            parts.append(f"{setting.name}={own}")
    return " ".join(parts)


def _trained(train: Callable[[int, Start], Any], start: Start) -> float:
    """Train once, with separately seeded generators, and return the metric."""
    random.seed(start.seed)
    np.random.seed(start.seed)
    torch.manual_seed(start.seed)
    value = train(start.seed, start)
    start.require_used()
    gc.collect()  # a Trainer and its model refer to each other
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers
        raise ValueError(f"`train` must return the metric, a number, got {value!r}") from None


@contextmanager
def _same_random_states_after() -> Iterator[None]:
    """Context manager: restore the states of the generators of Python, NumPy and torch."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _read(path: Path) -> dict[tuple[str, int, str], dict[str, Any]]:
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if any(set(row) != set(_COLUMNS) for row in rows):
        raise ValueError(f"{path} is not of an earlier call: choose another `output`")
    return {(row["method"], int(row["seed"]), row["settings"]): row for row in rows}


def _write(path: Path, rows: Any) -> None:
    with atomic_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
