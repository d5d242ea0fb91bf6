"""The command line: Lightning's own (`fit`, `validate`, `test`) over YAML recipes, and our commands beside it."""

import os
import sys
import traceback
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import DefaultHelpFormatter
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import lightning_fire.callbacks
import lightning_fire.data
import lightning_fire.modules
import lightning_fire.nets
import lightning_fire.optim  # these five make short class names known to the parser
from lightning_fire.callbacks import ChunkProgressBar
from lightning_fire.checkpoints import diagnose_command, reinit_command
from lightning_fire.compare import ablation, sweep
from lightning_fire.compare import command as compare


class _HelpFormatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the line breaks of the description."""


class RecipeCLI(LightningCLI):
    """`LightningCLI` that knows data in chunks, and has a key of its own for the method: `intervention`."""

    def __init__(self, args: Sequence[str] | None = None, run: bool = True):
        own = "\n".join(f"  {name:10s} {summary}" for name, (_, summary) in COMMANDS.items())
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
            parser_kwargs={
                "formatter_class": _HelpFormatter,
                "allow_abbrev": False,  # a misspelt key is an error
                "prog": "lightning-fire",
                "description": "Keep networks able to learn when their data grows or changes.\n\n"
                f"Further commands (lightning-fire COMMAND --help):\n{own}\n\n"
                "Recipes are YAML files, later ones override: lightning-fire fit -c base.yaml -c fire.yaml",
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return Lightning's commands that make sense for a recipe."""
        return {name: keys for name, keys in LightningCLI.subcommands().items() if name != "predict"}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; `main(args)` from Python is meant so, whatever words the process itself was started with."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LightningCLI's args parameter is intended")
            super().parse_arguments(parser, args)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the key of the method."""
        parser.add_argument(
            "--intervention",
            type=Callback | list[Callback] | None,
            default=None,
            help="The method: one callback such as FIRECallback, or a list. It is added to trainer.callbacks.",
        )

    def instantiate_classes(self) -> None:
        """Build all objects; turn what they refuse into an error message of the command."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, MisconfigurationException) as error:
            if "JSONARGPARSE_DEBUG" in os.environ:
                raise
            self.parser.error(str(_root_cause(error)))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Give the Trainer the method, and the length that the data has."""
        config = self._get(self.config_init, "trainer")
        total_epochs = getattr(self.datamodule, "total_epochs", None)
        if total_epochs is not None and config["max_epochs"] is None and config["max_steps"] == -1:
            kwargs["max_epochs"] = total_epochs
        if getattr(self.datamodule, "num_chunks", 1) > 1 and config["reload_dataloaders_every_n_epochs"] == 0:
            kwargs["reload_dataloaders_every_n_epochs"] = 1
        method = self._get(self.config_init, "intervention") or []
        callbacks = _as_list(config["callbacks"] or [])
        kwargs["callbacks"] = [*callbacks, *_as_list(method)]
        if config["enable_progress_bar"] is not False and not any(isinstance(c, ProgressBar) for c in callbacks):
            kwargs["callbacks"].append(ChunkProgressBar())
        return super().instantiate_trainer(**kwargs)


_SELECT_HELP = """usage: lightning-fire select -c BASE.yaml [-c OVERLAY.yaml ...] [--KEY VALUE ...]

Show which weights, parameters or units the methods of a recipe would act on, and why not on the others. Takes the same
files and keys as lightning-fire fit, and trains nothing.

  lightning-fire select -c recipes/quick_start/base.yaml -c recipes/quick_start/fire.yaml"""


def select(args: Sequence[str]) -> str:
    """Run `lightning-fire select`: print which weights the methods of a recipe would act on, and why not on others.

    Args:
        args: As for `fit`: `-c base.yaml -c fire.yaml`.

    Returns:
        What was printed.

    Raises:
        SystemExit: If the recipe has no method that selects weights.
    """
    if not args or {"-h", "--help"} & set(args):
        print(_SELECT_HELP)
        raise SystemExit(0 if args else 2)
    cli = RecipeCLI(args, run=False)
    methods = [method for method in cli.trainer.callbacks if isinstance(method, lightning_fire.callbacks.TimedCallback)]
    tables = [table for method in methods if (table := method.show_selection(cli.model))]
    if not tables:
        cli.parser.error("the recipe has no method that selects weights: add one, such as -c fire.yaml")
    print("\n\n".join(tables))
    return "\n\n".join(tables)


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], Any], str]] = {
    "compare": (compare.main, compare.SUMMARY),
    "sweep": (sweep.main, sweep.SUMMARY),
    "ablation": (ablation.main, ablation.SUMMARY),
    "diagnose": (diagnose_command.main, diagnose_command.SUMMARY),
    "reinit": (reinit_command.main, reinit_command.SUMMARY),
    "select": (select, "show which weights a recipe's method would act on, and why not on the others"),
}


def main(args: Sequence[str] | None = None) -> Any:
    """Run the command line.

    Args:
        args: The words after `lightning-fire`. Default: those of the process.

    Returns:
        The `LightningCLI` (with `.trainer`, `.model`, `.datamodule`) after `fit`, `validate` and `test`; what the other
        commands return.
    """
    words = list(sys.argv[1:] if args is None else args)
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]][0](words[1:])
    known = [*RecipeCLI.subcommands(), *COMMANDS]
    if not words or not (words[0] in known or words[0].startswith("-")):
        given = f"no command {words[0]!r}" if words else "a command is needed"
        raise SystemExit(f"lightning-fire: error: {given}; there are {', '.join(known)} (lightning-fire --help)")
    return RecipeCLI(args)


def _as_list(one_or_several: Any) -> list[Any]:
    return list(one_or_several) if isinstance(one_or_several, list | tuple) else [one_or_several]


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def console() -> None:
    """Entry point of the `lightning-fire` program: what this package refuses ends in one line, not in a traceback."""
    try:
        main()
    except (MisconfigurationException, ValueError, TypeError, OSError, RuntimeError) as error:
        origin = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if not origin.is_relative_to(Path(__file__).parent):
            raise
        raise SystemExit(f"lightning-fire: error: {error}") from None
