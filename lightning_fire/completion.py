"""`lightning-fire completion`: shell completion of commands, options and recipes."""

import argparse
import importlib
from collections.abc import Sequence

from lightning_fire.cli import COMMANDS

RECIPES = {"bash": "_lightning_fire_recipes", "zsh": "_files", "tcsh": "f"}
"""Completions of the argument `recipe` for shtab: in bash short names of shipped recipes, and files."""


def main(args: Sequence[str] | None = None) -> str:
    """Run the command: print a script for a shell."""
    from lightning_fire.recipe.recipe import shipped_recipes

    own = argparse.ArgumentParser(
        prog="lightning-fire completion",
        allow_abbrev=False,
        description="Print a script that lets a shell complete commands, options and recipes:"
        ' eval "$(lightning-fire completion bash)", for each shell in ~/.bashrc; needs pip install shtab.',
    )
    own.add_argument("shell", choices=["bash", "zsh", "tcsh"])
    shell = own.parse_args(args).shell
    try:
        import shtab
    except ImportError:
        own.error("it needs shtab: pip install shtab")
    whole = argparse.ArgumentParser(prog="lightning-fire")
    commands = whole.add_subparsers()
    for name, (place, summary) in COMMANDS.items():
        parser_of = getattr(importlib.import_module(place.partition(":")[0]), "parser", None)
        parents = {"parents": [parser_of()], "add_help": False} if parser_of else {}
        command = commands.add_parser(name, help=summary, **parents)
        if name in ("fit", "validate", "test", "select"):
            command.add_argument("recipe").complete = RECIPES
            command.add_argument("--method")
            command.add_argument("-c").complete = shtab.FILE
    recipes = " ".join(shipped_recipes())
    in_bash = f'_lightning_fire_recipes() {{ compgen -W "{recipes}" -- "$1"; compgen -f -- "$1"; }}'
    script = shtab.complete(whole, shell, preamble={"bash": in_bash})
    print(script)
    return script
