"""Command lines of the documentation, parsed as their programs would, and not run."""

import argparse
import contextlib
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from pages import ROOT

from lightning_fire.cli import main
from lightning_fire.experiments import compare, sweep
from lightning_fire.experiments.branching import with_first_phases
from lightning_fire.experiments.runs import plan, reference_of
from lightning_fire.experiments.sweep import as_config, read_space
from lightning_fire.recipe.check import check_recipe
from lightning_fire.recipe.cli import RecipeCLI, _without_recipe
from lightning_fire.recipe.init import init
from lightning_fire.recipe.parser import RecipeParser
from lightning_fire.recipe.recipe import SHIPPED, VANILLA, as_yaml, find_recipe

PLACEHOLDERS = {"RECIPE": "quick_start", "runs/…/best.yaml": "quick_start"}  # any recipe
PROGRAMS = ("lightning-fire", "python", "pip", "make", "tensorboard", "cd")


def commands_of(code: str) -> list[list[str]]:
    """Return the commands of a block as their words, after bash has expanded them. Nothing is run.

    Raises:
        ValueError: If a line calls another program, or is no bash.
    """
    stubs = "\n".join(f"{name}() {{ printf '%s\\037' {name} \"$@\"; printf '\\036'; }}" for name in PROGRAMS)
    bash = ["/bin/bash", "--noprofile", "--norc", "-eu"]
    done = subprocess.run(bash, input=f"PATH=/nowhere\n{stubs}\n{code}", capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"not a block of known commands: {done.stderr}")
    return [command.split("\037")[:-1] for command in done.stdout.split("\036")[:-1]]


class _Parsed(Exception):
    """A script has parsed its arguments."""


class Unbuilt(RecipeCLI):
    """Reads and checks a recipe, and builds none of its objects."""

    def instantiate_classes(self) -> None:
        pass


def check(words: Sequence[str], monkeypatch: Any) -> None:
    """Raise an error, or exit, unless a program takes these arguments; `init` and `cd` are carried out.

    Args:
        words: A command, of `commands_of`.
        monkeypatch: pytest's; the current folder must be one to write into.
    """
    program, *rest = (PLACEHOLDERS.get(word, word) for word in words)
    if program == "cd":
        monkeypatch.chdir(rest[0])
        monkeypatch.syspath_prepend(Path.cwd())
    elif program == "pip":
        _check_pip(rest)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in rest)
    elif program == "python":
        _check_script(rest, monkeypatch)
    elif program == "lightning-fire":
        if rest[0] in _CHECKS:
            _CHECKS[rest[0]](rest[1:])
        else:
            parse_only(lambda: main(rest), monkeypatch)


def _check_pip(words: Sequence[str]) -> None:
    assert words[0] == "install"
    extras = set(metadata.metadata("lightning-fire").get_all("Provides-Extra"))
    for word in words[1:]:
        name, _, named = word.partition("[")
        if name == "lightning-fire":
            assert set(named.rstrip("]").split(",")) - {""} <= extras, word


def _check_script(words: Sequence[str], monkeypatch: Any) -> None:
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    path = ROOT / (name.replace(".", "/") if module else name)
    path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    if "sys.argv" in path.read_text():
        assert not any(word.startswith("-") for word in arguments), f"{path} has no options"
        return
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", [str(path), *arguments])
        patch.syspath_prepend(str(ROOT))
        patch.syspath_prepend(str(path.parent))
        parse_only(lambda: runpy.run_path(str(path), run_name="__main__"), patch)


def parse_only(program: Callable[[], Any], monkeypatch: Any) -> None:
    """Run a program to the end of its argument parsing, which exits if an argument is wrong."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None) -> None:
        parse(self, args, namespace)
        raise _Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        try:
            program()
        except _Parsed:
            return
    raise AssertionError("it has run without parsing its arguments")


@cache
def _recipe_parser() -> RecipeParser:
    return Unbuilt(find_recipe("quick_start").words("vanilla"), run=False).parser


def parse_recipe(*layers: Mapping[str, Any], words: Sequence[str] = ()) -> Namespace:
    """Parse configuration strictly, of which later layers override, then words of the command line; return it."""
    parser = _recipe_parser()
    parser.empty.clear()
    config = parser.parse_args([*(word for layer in layers for word in ("-c", as_yaml(layer))), *words])
    check_recipe(config.as_dict(), parser.empty)
    return config


def check_yaml(code: str) -> None:
    """Raise an error, or exit, unless a YAML block is part of a recipe, or a space of hyper-parameters to try.

    Keys of a recipe come on top of the quick start, `…` stands for what is there. One with a function is trained.
    """
    content = {key: value for key, value in yaml.safe_load(code).items() if value != "…"}
    quick_start = yaml.safe_load((SHIPPED / "quick_start.yaml").read_text())
    path = Path("block.yaml")
    if content.keys() <= quick_start["methods"].keys():
        path.write_text(code)
        for method in content:
            for name, values in read_space(path, method).items():
                value = values[0] if isinstance(values, list) else values["low"]
                layers = find_recipe("quick_start").layers(method)
                parse_recipe(*layers, as_config({name: value}))
        return
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    recipe = find_recipe(path)
    if "train" in content:
        for method in (VANILLA, *recipe.methods):
            main(["fit", str(path), "--method", method])
        return
    below = {key: value for key, value in quick_start.items() if key != "methods" and not _replaces(content.get(key))}
    for method in (VANILLA, *recipe.methods):
        config = parse_recipe(below, *recipe.layers(method))
        with contextlib.suppress(RuntimeError):  # a schedule asks for the Trainer, after the optimizer is made
            _recipe_parser().instantiate(Namespace(model=config.model)).model.configure_optimizers()


def _replaces(value: Any) -> bool:
    """Return whether a value names a class itself, so that arguments below it are those of another."""
    return isinstance(value, dict) and "class_path" in value


def _check_recipe(words: Sequence[str]) -> None:
    """`fit` and its like: a checkpoint to continue from is not there yet."""
    kept = list(words)
    for option in ("--ckpt_path", "--json"):
        if option in kept:
            at = kept.index(option)
            del kept[at : at + (1 if option == "--json" else 2)]
    parse_recipe(words=_without_recipe(kept))


def _check_comparison(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    options = parser.parse_args(words)
    methods = getattr(options, "methods", None) or [getattr(options, "method", VANILLA)]
    recipe, output, _, extra = compare.common(options)
    reference_of(getattr(options, "reference", None), methods)
    compare.nested(options.engine_set, "--engine-set")
    runs = plan(recipe, methods, [0], output)
    *_, run = with_first_phases(runs, recipe, options.starts) if getattr(options, "starts", None) else runs
    if extra:  # without it, test_recipes.py parses every method of every recipe
        parse_recipe(*run.configs, extra)


_CHECKS: dict[str, Callable[[list[str]], Any]] = {
    "init": init,
    **dict.fromkeys(("fit", "validate", "test", "select"), _check_recipe),
    **{
        name: partial(_check_comparison, command.parser())
        for name, command in {"compare": compare, "sweep": sweep}.items()
    },
}
