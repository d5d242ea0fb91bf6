"""Where the recipes are, and what tests call them."""

from pathlib import Path

from lightning_fire.recipe.recipe import SEARCH_SPACE, SHIPPED, find_recipe

ROOT = SHIPPED
EVERY = sorted(path for path in ROOT.rglob("*.yaml") if path.name != SEARCH_SPACE)


def methods_of(path: Path) -> list[str]:
    """Return the names of a recipe's methods, `vanilla` first."""
    return ["vanilla", *find_recipe(path).methods]


def arguments_of(path: Path, method: str) -> dict:
    """Return the arguments of a method that is one callback."""
    return find_recipe(path).methods[method]["intervention"]["init_args"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))
