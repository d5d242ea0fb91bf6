"""`lightning-fire recipes`, `lightning-fire recipe NAME`: lists the shipped recipes, and prints one."""

import argparse
import re
from collections.abc import Sequence

from lightning_fire.cli import run
from lightning_fire.recipe.recipe import SHIPPED, find_recipe, shipped_recipes


def main(args: Sequence[str] | None = None) -> dict[str, str]:
    """Run the command: print the short name of each recipe and the first line of its comment; return them by name."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire recipes",
        allow_abbrev=False,
        description="List the recipes that come with the package, one a line: short name, and what it is. Commands that"
        " take a recipe take such a name, or the path of a YAML file.",
    )
    parser.parse_args(args)
    recipes = {name: _first_line(name) for name in shipped_recipes()}
    width = max(map(len, recipes))
    for name, line in recipes.items():
        print(f"{name:{width}}  {line}")
    return recipes


def show(args: Sequence[str] | None = None) -> str:
    """Run `lightning-fire recipe NAME`: print the file of a recipe, to read or to copy it; return its text."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire recipe",
        allow_abbrev=False,
        description="Print the file of a recipe that comes with the package, as for a copy:"
        " lightning-fire recipe quick_start > mine.yaml",
    )
    parser.add_argument("recipe", metavar="NAME", help="short name of a recipe, see lightning-fire recipes")

    def read(options: argparse.Namespace) -> str:
        return find_recipe(options.recipe).path.read_text(encoding="utf-8")

    text = run(parser, args, read)
    print(text, end="")
    return text


def _first_line(name: str) -> str:
    """Return the first line of a recipe's comment, up to the end of a sentence, or else its last punctuation mark."""
    line = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
    sentence, end, _ = f"{line} ".partition(". ")
    return sentence if end else re.sub(r"[,;:](?= |$)[^,;:]*$", "", line)
