"""The suite of the board: tasks, methods, and the rule for comparing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lightning_fire.experiments.direction import mode_of
from lightning_fire.experiments.sweep import checked_space
from lightning_fire.recipe.recipe import SEARCH_SPACE, SHIPPED, VANILLA, Recipe, find_recipe
from lightning_fire.recipe.strict_yaml import read_yaml

FOLDER = SHIPPED / "board"
SUITE = FOLDER / "suite.yaml"
_METHODS = "methods.yaml"


@dataclass(frozen=True)
class Task:
    """A task of the board.

    Attributes:
        name: Its name, equal to that of its recipe.
        recipe: Its recipe, with the methods that differ on this task.
        about: Description of the change of data, for the table.
        number: Name and unit of the compared number, for the table.
        measure: Its column in `results.csv`.
        mode: `"max"` if larger is better, `"min"` if smaller is.
        metric: Logged key that is compared. Default: that of `lightning-fire compare`.
        scale: Factor for the table, 100 for percent.
        digits: Digits after the decimal point in the table.
        curve: Logged key of the curves over the training.
        left_out: Methods that cannot be used on this task, with reasons.
        space: Search spaces that differ on this task, by method.
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
        tasks: Tasks by name.
        methods: Configuration that each method adds to a recipe, by name.
        space: The values of each hyper-parameter that is tuned, by method.
        trials: Number of tried settings per method.
        tuning_seeds: Seeds for trying each setting.
        seeds: Seeds of the reported runs, distinct from the tuning seeds.
    """

    path: Path
    tasks: Mapping[str, Task]
    methods: Mapping[str, Mapping[str, Any]]
    space: Mapping[str, Mapping[str, Any]]
    trials: int
    tuning_seeds: Sequence[int]
    seeds: Sequence[int]

    def recipe_of(self, task: Task) -> Recipe:
        """Return the recipe of a task with all methods that can be used on it."""
        methods = {name: layer for name, layer in self.methods.items() if name not in task.left_out}
        return replace(task.recipe, methods={**methods, **task.recipe.methods})

    @property
    def names(self) -> list[str]:
        """Names of all methods: vanilla, those of all tasks, and those of single tasks."""
        of_tasks = (name for task in self.tasks.values() for name in task.recipe.methods)
        return list(dict.fromkeys([VANILLA, *self.methods, *of_tasks]))

    def reason_against(self, task: Task, method: str) -> str:
        """Return why a method cannot be used on a task; empty: it can."""
        having = [name for name, one in self.tasks.items() if method in one.recipe.methods]
        if method not in self.methods and having and task.name not in having:
            return f"it is one of {', '.join(having)}"
        return task.left_out.get(method, "")

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
        direction = {"mode": mode_of(given.get("metric") or "", given.get("mode"), f"{name} mode: {{}}")}
        tasks[name] = Task(name, find_recipe(folder / f"{name}.yaml"), **(given | direction))
    methods = find_recipe(folder / _METHODS).methods
    return Suite(path, tasks, methods, read_yaml(folder / SEARCH_SPACE), content["trials"], tuning, seeds)
