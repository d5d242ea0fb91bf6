"""The suite of the board: its tasks, its methods, and the rule by which they are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lightning_fire.experiments.sweep import checked_space
from lightning_fire.recipe.recipe import SEARCH_SPACE, SHIPPED, Recipe, find_recipe
from lightning_fire.recipe.strict_yaml import read_yaml

FOLDER = SHIPPED / "board"
SUITE = FOLDER / "suite.yaml"
_METHODS = "methods.yaml"


@dataclass(frozen=True)
class Task:
    """A task of the board.

    Attributes:
        name: Its name, that of its recipe.
        recipe: What is trained, with the methods that are others on this task.
        about: What changes, for the table.
        number: What is compared, with its unit, for the table.
        measure: Column of `results.csv` that has it.
        mode: Whether more of it is better (`"max"`), or less (`"min"`).
        metric: Logged key that is compared. Default: that of `lightning-fire compare`.
        scale: Factor for the table, 100 for percent.
        digits: Digits after the decimal point in the table.
        curve: Logged key of the curves over the training.
        left_out: Methods that this task cannot take, and the reason of each.
        space: Search spaces that are others on this task, by method.
    """

    name: str
    recipe: Recipe
    about: str
    number: str
    measure: str
    curve: str
    mode: str = "max"
    metric: str | None = None
    scale: float = 1.0
    digits: int = 1
    left_out: Mapping[str, str] = field(default_factory=dict)
    space: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """Tasks, methods, and the rule: how methods are tuned, and the seeds that are reported.

    Attributes:
        path: File of the suite.
        tasks: By name.
        methods: What each method adds to a recipe, by name.
        space: The values of each hyper-parameter that is tuned, by method.
        trials: Number of settings of a method that are tried.
        tuning_seeds: Seeds that each setting is tried with.
        seeds: Seeds of the reported runs, none of those.
    """

    path: Path
    tasks: Mapping[str, Task]
    methods: Mapping[str, Mapping[str, Any]]
    space: Mapping[str, Mapping[str, Any]]
    trials: int
    tuning_seeds: Sequence[int]
    seeds: Sequence[int]

    def recipe_of(self, task: Task) -> Recipe:
        """Return the recipe of a task with all methods that it can take."""
        methods = {name: layer for name, layer in self.methods.items() if name not in task.left_out}
        return replace(task.recipe, methods={**methods, **task.recipe.methods})

    def space_of(self, task: Task, method: str) -> Mapping[str, Any]:
        """Return the search space of a method on a task; empty: nothing is tuned."""
        return checked_space(self.path, method, task.space.get(method) or self.space.get(method) or {})


def read_suite(path: Path = SUITE) -> Suite:
    """Read a suite, with the methods, search spaces and recipes in its folder.

    Raises:
        ValueError: If a key is missing or unknown, or seeds are both for tuning and reported.
    """
    content, folder = read_yaml(path), path.parent
    wanted = {"trials", "tuning_seeds", "seeds", "tasks"}
    if not isinstance(content, Mapping) or set(content) != wanted:
        raise ValueError(f"{path} must have the keys {', '.join(sorted(wanted))}")
    seeds, tuning = content["seeds"], content["tuning_seeds"]
    if both := set(seeds) & set(tuning):
        raise ValueError(f"{path}: seeds that methods are tuned on must not be reported, got {sorted(both)}")
    known = {one.name for one in fields(Task)} - {"name", "recipe"}
    tasks = {}
    for name, given in content["tasks"].items():
        if unknown := set(given) - known:
            raise ValueError(f"{path}: a task has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
        tasks[name] = Task(name, find_recipe(folder / f"{name}.yaml"), **given)
    methods = find_recipe(folder / _METHODS).methods
    return Suite(path, tasks, methods, read_yaml(folder / SEARCH_SPACE), content["trials"], tuning, seeds)
