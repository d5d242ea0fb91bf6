"""Where the recipes are, and what tests call them."""

from pathlib import Path

from lightning.pytorch import Callback, Trainer

from lightning_fire.recipe.cli import RecipeCLI
from lightning_fire.recipe.recipe import SHIPPED, find_recipe, shipped_recipes

ROOT = SHIPPED
EVERY = [path for name in shipped_recipes() if "train" not in find_recipe(path := ROOT / f"{name}.yaml").base]
"""All recipes of models and data; those of functions have tests of their own."""


class Unbuilt(RecipeCLI):
    """Reads and checks a recipe, and builds none of its objects."""

    def instantiate_classes(self):
        pass


def methods_of(path: Path) -> list[str]:
    """Return the names of a recipe's methods, `vanilla` first."""
    return ["vanilla", *find_recipe(path).methods]


def diagonal(paths: list[Path]) -> list[tuple[Path, str]]:
    """Return pairs of recipe and method, few of them: each recipe is in one, and each method."""
    having: dict[str, list[Path]] = {}
    for path in paths:
        for method in methods_of(path):
            having.setdefault(method, []).append(path)
    pairs = [(with_it[number % len(with_it)], method) for number, (method, with_it) in enumerate(having.items())]
    return pairs + [(path, methods_of(path)[-1]) for path in paths if path not in dict(pairs)]


def acting(trainer: Trainer) -> dict[str, Callback]:
    """Return the callbacks of a Trainer by the name of their method, others by their own."""
    return {getattr(callback, "title", type(callback).__name__): callback for callback in trainer.callbacks}


def arguments_of(path: Path, method: str) -> dict:
    """Return the arguments of a method that is one alone."""
    return find_recipe(path).methods[method]["method"]["init_args"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))
