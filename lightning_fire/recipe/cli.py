"""`lightning-fire fit`, `validate`, `test`, Lightning's own commands over recipes, and `select`."""

import inspect
import json
import os
import reprlib
import traceback
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import DefaultHelpFormatter
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lightning_fire._lightning import undeclared
from lightning_fire.callbacks import ChunkProgressBar, PlasticityCallback
from lightning_fire.callbacks.base import ClockCallback
from lightning_fire.cli import DESCRIPTION, is_ours
from lightning_fire.contracts import num_chunks_of
from lightning_fire.recipe.check import check_recipe
from lightning_fire.recipe.continued_logs import continue_logs, keep_rows
from lightning_fire.recipe.function import train_by_function, written
from lightning_fire.recipe.parser import METHOD_KEYS, RecipeParser, add_method_keys, callbacks_of
from lightning_fire.recipe.recipe import VANILLA, as_yaml, extended, find_recipe
from lightning_fire.where import Parameters, Weights


class _HelpFormatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Help formatter that keeps the line breaks of the description."""


class RecipeCLI(LightningCLI):
    """`LightningCLI` for data in chunks, with the keys of a method: `method`, `when`, `start_chunk`, `log`."""

    def __init__(self, args: Sequence[str] | None = None, run: bool = True):
        super().__init__(
            LightningModule,
            LightningDataModule,
            args=list(args) if args is not None else None,
            run=run,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            parser_class=RecipeParser,
            parser_kwargs={
                "formatter_class": _HelpFormatter,
                "prog": "lightning-fire" if run else "lightning-fire select",
                "description": DESCRIPTION,
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return those of Lightning's commands that apply to a recipe."""
        return {name: keys for name, keys in LightningCLI.subcommands().items() if name != "predict"}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments; with `main(args)` from Python, those of the process are ignored."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LightningCLI's args parameter is intended")
            super().parse_arguments(parser, args)
        command = self.config.get("subcommand")
        recipes: Any = self._parser(command)
        try:
            check_recipe((self.config[command] if command else self.config).as_dict(), recipes.empty)
        except (ValueError, OSError) as error:
            recipes.error(str(error))

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the keys of the method."""
        add_method_keys(parser)

    def before_instantiate_classes(self) -> None:
        """Let a resumed training continue the logs of its checkpoint."""
        self._first_new_step = None
        if self.subcommand == "fit" and self.config.fit.get("ckpt_path"):
            written = self._parser("fit").dump(self.config.fit, skip_none=False)
            self._first_new_step = continue_logs(self.config.fit, written)

    def instantiate_classes(self) -> None:
        """Build all objects; convert their errors to error messages of the command."""
        try:
            super().instantiate_classes()
        except Exception as error:  # a constructor may raise anything
            if "JSONARGPARSE_DEBUG" in os.environ:
                raise
            self._parser(self.subcommand).error(_reason(error))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Create the Trainer with the method and with the length of the data."""
        config = self._get(self.config_init, "trainer")
        total_epochs = getattr(self.datamodule, "total_epochs", None)
        if total_epochs is not None and config["max_epochs"] is None and config["max_steps"] == -1:
            kwargs["max_epochs"] = total_epochs
        # static: without a Trainer a property may raise
        announces = inspect.getattr_static(self.datamodule, "chunk", None) is not None
        changes = announces and num_chunks_of(self.datamodule) != 1
        if changes and config["reload_dataloaders_every_n_epochs"] == 0:
            kwargs["reload_dataloaders_every_n_epochs"] = 1
        given = (self._get(self.config_init, key) for key in METHOD_KEYS)
        callbacks = config["callbacks"] or []
        callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
        kwargs["callbacks"] = [*callbacks, *callbacks_of(*given)]
        if config["enable_progress_bar"] is not False and not any(isinstance(c, ProgressBar) for c in callbacks):
            kwargs["callbacks"].append(ChunkProgressBar())
        if self._first_new_step is not None:
            keep_rows(config["logger"], self._first_new_step)
        return super().instantiate_trainer(**kwargs)


_SELECT_HELP = """usage: lightning-fire select RECIPE --method NAME [-c MORE.yaml ...] [--KEY VALUE ...] [--json]

Show the weights, parameters or units that the methods of a recipe would act on, with reasons for the others.
Takes the files and keys of lightning-fire fit, and does not train. --json prints a JSON list of the parameters instead.

  lightning-fire select quick_start --method fire"""


def select(args: Sequence[str]) -> str:
    """Run `lightning-fire select`: print which weights the methods of a recipe would act on, with reasons."""
    if not args or {"-h", "--help"} & set(args):
        print(_SELECT_HELP)
        raise SystemExit(0 if args else 2)
    cli = RecipeCLI(_without_recipe([word for word in args if word != "--json"]), run=False)
    methods = [callback for callback in undeclared(cli.trainer).callbacks if isinstance(callback, ClockCallback)]
    if "--json" in args:
        chosen = {m.title: m.method.selection for m in methods if isinstance(m, PlasticityCallback)}
        every = [
            {"method": name, "name": row.name, "shape": row.shape, "matrices": row.views, "reason": row.reason}
            for name, where in chosen.items()
            if isinstance(where, Parameters | Weights)
            for row in where.select(cli.model).rows
        ]
        text = json.dumps(every, indent=1)
    elif not (text := "\n\n".join(filter(None, (method.show_selection(cli.model) for method in methods)))):
        cli.parser.error("the recipe has no method that selects weights: add one, such as --method fire")
    print(text)
    return text


def run(words: Sequence[str]) -> Any:
    """Run `lightning-fire fit`, `validate` or `test`, the first argument."""
    words = [*words[:1], *_without_recipe(words[1:])]
    if "train" in (given := written(words)):
        return train_by_function(words, given)
    return RecipeCLI(words)


def _without_recipe(words: Sequence[str]) -> list[str]:
    """Replace a recipe (first argument) and `--method NAME` by their configuration."""
    if not words or words[0].startswith("-"):
        return list(words)
    usage = "lightning-fire fit RECIPE [--method NAME] [-c MORE.yaml ...] [--KEY VALUE ...]"
    parser = ArgumentParser("lightning-fire", usage, add_help=False, allow_abbrev=False)
    parser.add_argument("--method", default=VANILLA)
    options, others = parser.parse_known_args(words[1:])
    try:
        recipe = find_recipe(words[0])
        for index, word in enumerate(others[1:], start=1):
            if others[index - 1] in ("-c", "--config") and Path(word).is_file():
                recipe, more = extended(recipe, word)
                others[index] = as_yaml(more)
        layers = recipe.words(options.method)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return [*layers, *others]


def _reason(error: BaseException) -> str:
    """Return the message of an error's first cause; for other code also the object being built and its arguments."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    refused = isinstance(error, ValueError | TypeError) and frames and is_ours(frames[-1].f_code.co_filename)
    if refused or isinstance(error, MisconfigurationException):
        return str(error)
    message = next(iter(str(error).splitlines()), "")
    problem = f"{type(error).__name__}: {message} (JSONARGPARSE_DEBUG=true shows where)"
    for variables in (frame.f_locals for frame in reversed(frames)):
        if isinstance(kind := variables.get("class_type"), type):  # of jsonargparse, which calls constructors
            plain = (str, int, float, list, tuple, dict, type(None))
            words = {
                k: reprlib.repr(v) if isinstance(v, plain) else type(v).__name__
                for k, v in variables.get("kwargs", {}).items()
            }
            given = ", ".join(f"{name}={word}" for name, word in words.items())
            return f"{kind.__qualname__}({given}) cannot be built: {problem}"
    return problem
