"""`lightning-fire recipes`: lists the recipes that come with the package."""

import argparse
import re
from collections.abc import Sequence

from lightning_fire.recipe.recipe import SHIPPED, shipped_recipes


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


def _first_line(name: str) -> str:
    """Return the first line of a recipe's comment, up to the end of a sentence, or else its last punctuation mark."""
    line = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
    sentence, end, _ = f"{line} ".partition(". ")
    return sentence if end else re.sub(r"[,;:](?= |$)[^,;:]*$", "", line)
