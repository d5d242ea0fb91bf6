"""The command line: Lightning's own (`fit`, `validate`, `test`) over YAML recipes, and our commands beside it."""

import io
import os
import reprlib
import sys
import traceback
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
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
from lightning_fire.compare import ablation, aggregate, sweep
from lightning_fire.compare import command as compare
from lightning_fire.recipe.check import check_recipe
from lightning_fire.recipe.parser import RecipeParser
from lightning_fire.recipe.recipe import VANILLA, find_recipe
from lightning_fire.text import prepare_command


class _HelpFormatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the line breaks of the description."""


class RecipeCLI(LightningCLI):
    """`LightningCLI` that knows data in chunks, and has a key of its own for the method: `intervention`."""

    def __init__(self, args: Sequence[str] | None = None, run: bool = True):
        own = "\n".join(f"  {name:12s} {summary}" for name, (_, summary) in COMMANDS.items())
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
                "description": "Keep networks able to learn when their data grows or changes.\n\n"
                f"Further commands (lightning-fire COMMAND --help):\n{own}\n\n"
                "A recipe is a YAML file, or the name of a shipped one: lightning-fire fit quick_start --method fire\n"
                "Without a recipe, plain configuration, of which later files override: fit -c mine.yaml -c more.yaml",
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
        command = self.config.get("subcommand")
        recipes = self._parser(command)
        try:
            check_recipe((self.config[command] if command else self.config).as_dict(), recipes.empty)
        except (ValueError, OSError) as error:
            recipes.error(str(error))

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
        except Exception as error:  # what a constructor gets that its author did not think of can raise anything
            if "JSONARGPARSE_DEBUG" in os.environ:
                raise
            self._parser(self.subcommand).error(_refusal(_root_cause(error)))

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


_SELECT_HELP = """usage: lightning-fire select RECIPE --method NAME [-c MORE.yaml ...] [--KEY VALUE ...]

Show which weights, parameters or units the methods of a recipe would act on, and why not on the others. Takes the same
files and keys as lightning-fire fit, and trains nothing.

  lightning-fire select quick_start --method fire"""


def select(args: Sequence[str]) -> str:
    """Run `lightning-fire select`: print which weights the methods of a recipe would act on, and why not on others.

    Args:
        args: As for `fit`: `quick_start --method fire`.

    Returns:
        What was printed.

    Raises:
        SystemExit: If the recipe has no method that selects weights.
    """
    if not args or {"-h", "--help"} & set(args):
        print(_SELECT_HELP)
        raise SystemExit(0 if args else 2)
    cli = RecipeCLI(_without_recipe(args), run=False)
    methods = [
        method for method in cli.trainer.callbacks if isinstance(method, lightning_fire.callbacks.MethodCallback)
    ]
    tables = [table for method in methods if (table := method.show_selection(cli.model))]
    if not tables:
        cli.parser.error("the recipe has no method that selects weights: add one, such as --method fire")
    print("\n\n".join(tables))
    return "\n\n".join(tables)


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], Any], str]] = {
    "compare": (compare.main, compare.SUMMARY),
    "sweep": (sweep.main, sweep.SUMMARY),
    "ablation": (ablation.main, ablation.SUMMARY),
    "aggregate": (aggregate.main, aggregate.SUMMARY),
    "diagnose": (diagnose_command.main, diagnose_command.SUMMARY),
    "reinit": (reinit_command.main, reinit_command.SUMMARY),
    "prepare-text": (prepare_command.main, prepare_command.SUMMARY),
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
    return RecipeCLI([*words[:1], *_without_recipe(words[1:])])


def _without_recipe(words: Sequence[str]) -> list[str]:
    """Replace a recipe, which comes first, and `--method NAME` by the configuration that they mean."""
    if not words or words[0].startswith("-"):
        return list(words)
    usage = "lightning-fire fit RECIPE [--method NAME] [-c MORE.yaml ...] [--KEY VALUE ...]"
    parser = ArgumentParser("lightning-fire", usage, add_help=False, allow_abbrev=False)
    parser.add_argument("--method", default=VANILLA)
    options, others = parser.parse_known_args(words[1:])
    try:
        layers = find_recipe(words[0]).layers(options.method)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return [*(word for layer in layers for word in ("-c", layer)), *others]


def _as_list(one_or_several: Any) -> list[Any]:
    return list(one_or_several) if isinstance(one_or_several, list | tuple) else [one_or_several]


def _refusal(error: BaseException) -> str:
    """Say what is wrong; of an error from elsewhere also what was being built, and from what."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    refused = isinstance(error, ValueError | TypeError) and frames and _is_ours(frames[-1].f_code.co_filename)
    if refused or isinstance(error, MisconfigurationException):
        return str(error)
    message = next(iter(str(error).splitlines()), "")
    problem = f"{type(error).__name__}: {message} (JSONARGPARSE_DEBUG=true shows where)"
    for places in (frame.f_locals for frame in reversed(frames)):
        if isinstance(kind := places.get("class_type"), type):  # of jsonargparse, which calls constructors
            given = ", ".join(f"{name}={_brief(value)}" for name, value in places.get("kwargs", {}).items())
            return f"{kind.__qualname__}({given}) cannot be built: {problem}"
    return problem


def _brief(value: Any) -> str:
    plain = isinstance(value, str | int | float | list | tuple | dict | None)
    return reprlib.repr(value) if plain else type(value).__name__


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parent)


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def ask_cuda_itself() -> None:
    """Where there is no GPU, let PyTorch, which looks for one at each step of an optimizer, ask CUDA and not NVML.

    Lightning has it ask NVML, so that a process with a GPU may fork afterwards. Without one, the search for a library
    that is not there takes 0.15 ms each time, a tenth of an update of a small network.
    """
    if not torch.cuda.is_available():
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def console() -> None:
    """Entry point of the `lightning-fire` program: what this package refuses ends in one line, not in a traceback.

    Characters that stdout cannot encode are replaced. If what reads stdout has gone, as `head` does after its lines,
    the program ends silently, with the exit code that a shell gives to a program ended by SIGPIPE.
    """
    ask_cuda_itself()
    if isinstance(sys.stdout, io.TextIOWrapper):  # not what a caller has put there
        sys.stdout.reconfigure(errors="replace")
    try:
        main()
    except (MisconfigurationException, ValueError, TypeError, OSError, RuntimeError, SystemExit) as error:
        if BrokenPipeError in (type(error), type(error.__context__)) and _reader_has_gone("\n"):
            raise SystemExit(141) from None
        if isinstance(error, SystemExit) or not _is_ours(traceback.extract_tb(error.__traceback__)[-1].filename):
            raise
        raise SystemExit(f"lightning-fire: error: {error}") from None
    finally:
        _reader_has_gone()  # or the interpreter complains of it


def _reader_has_gone(probe: str = "") -> bool:
    """Return whether nothing reads stdout any more; if so, discard what has not been read.

    Args:
        probe: What to print in order to find out: a stdout without a buffer has nothing left that could fail.
    """
    if sys.stdout is None:  # closed when the program began
        return False
    try:
        sys.stdout.write(probe)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise SystemExit(f"lightning-fire: error: stdout: {error}") from None
        return True
    return False
