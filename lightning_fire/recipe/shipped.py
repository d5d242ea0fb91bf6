"""`lightning-fire recipes`, `recipe NAME`: list the recipes that come with the package, print one."""

import argparse
import re
from collections.abc import Sequence

from lightning_fire.cli import run
from lightning_fire.recipe.recipe import SHIPPED, find_recipe, shipped_recipes


def recipes(args: Sequence[str] | None = None) -> dict[str, str]:
    """Print the short name of each recipe and the first sentence of its comment; return them by name."""
    argparse.ArgumentParser(
        prog="lightning-fire recipes",
        allow_abbrev=False,
        description="List the recipes that come with the package, one per line: short name and description. Commands"
        " accept such a name or the path of a YAML file.",
    ).parse_args(args)
    found = {}
    for name in shipped_recipes():  # up to the end of a sentence in the first line, otherwise its last punctuation mark
        line = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
        sentence, end, _ = f"{line} ".partition(". ")
        found[name] = sentence if end else re.sub(r"[,;:](?= |$)[^,;:]*$", "", line)
    width = max(map(len, found))
    for name, line in found.items():
        print(f"{name:{width}}  {line}")
    return found


def recipe(args: Sequence[str] | None = None) -> str:
    """Print the file of a recipe, to read or copy; return its text."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire recipe",
        allow_abbrev=False,
        description="Print the file of a recipe that comes with the package, for example to copy it: lightning-fire"
        " recipe quick_start > mine.yaml",
    )
    parser.add_argument("recipe", metavar="NAME", help="short name of a recipe, see lightning-fire recipes")
    text = run(parser, args, lambda options: find_recipe(options.recipe).path.read_text(encoding="utf-8"))
    print(text, end="")
    return text
