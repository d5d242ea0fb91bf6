"""The `lightning-fire` program: table of commands and their modules. Imports only the module of the command."""

import argparse
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lightning_fire
from lightning_fire.printable import printable

Result = TypeVar("Result")

# command: module and function, and summary
COMMANDS = {
    "init": ("recipe.init:init", "write files to start from, for your own images, table or text"),
    "recipes": ("recipe.shipped:recipes", "list the recipes that come with the package"),
    "recipe": ("recipe.shipped:recipe", "print the file of a recipe that comes with the package"),
    "fit": ("recipe.cli:run", "train a recipe with one of its methods"),
    "validate": ("recipe.cli:run", "evaluate a model of a recipe on the validation data"),
    "test": ("recipe.cli:run", "evaluate a model of a recipe on the test data"),
    "select": (
        "recipe.cli:select",
        "show the weights that a recipe's method would act on, and reasons for others",
    ),
    "compare": (
        "experiments.compare:main",
        "run a recipe with several methods and seeds; print a table, draw a figure",
    ),
    "sweep": ("experiments.sweep:main", "tune the hyper-parameters of a method"),
    "board": ("board.command:main", "tune and compare methods on the tasks of the board, by one rule"),
    "aggregate": (
        "experiments.aggregate:main",
        "summarize comparisons on several tasks: interquartile means, stratified bootstrap intervals",
    ),
    "diagnose": (
        "checkpoints.diagnose:main",
        "show metrics of the weights of a checkpoint, and how far FIRE would move them",
    ),
    "reinit": (
        "checkpoints.reinit:main",
        "write a copy of a checkpoint with weights re-initialized by FIRE, or moved towards initial values",
    ),
    "prepare-text": ("prepare_text:main", "tokenize texts into the files that language models train on"),
}
_WITH_NAME = {"fit", "validate", "test"}
DESCRIPTION = f"""Keep networks able to learn when their data grows or changes.

{chr(10).join(f"  {name:12s} {summary}" for name, (_, summary) in COMMANDS.items())}

A recipe is a YAML file, or the name of a shipped one: lightning-fire fit quick_start --method fire
List of recipes: lightning-fire recipes
Without a recipe, give configuration files; later ones override earlier ones: fit -c mine.yaml -c more.yaml"""
_HELP = (
    f"usage: lightning-fire [-h] [--version] COMMAND ...\n\n{DESCRIPTION}\n\nlightning-fire COMMAND --help shows more."
)


def main(args: Sequence[str] | None = None) -> Any:
    """Run the command line.

    Args:
        args: The words after `lightning-fire`. Default: those of the process.

    Returns:
        The `LightningCLI` (with `.trainer`, `.model`, `.datamodule`) of `fit`, `validate` and `test`, or the result of
        the function that a recipe trains by; otherwise the result of the command.
    """
    function, words = _command(list(sys.argv[1:] if args is None else args))
    return function(words)


def _command(words: list[str]) -> tuple[Callable[[list[str]], Any], list[str]]:
    """Return the function of a command, and its arguments."""
    if words[:1] in (["-h"], ["--help"], ["--version"]):
        print(lightning_fire.__version__ if words[0] == "--version" else _HELP)
        raise SystemExit(0)
    if not words or words[0] not in COMMANDS:
        given = f"no command {words[0]!r}" if words else "a command is needed"
        print(
            f"lightning-fire: error: {given}; there are {', '.join(COMMANDS)} (lightning-fire --help)", file=sys.stderr
        )
        raise SystemExit(2)
    module, _, function = COMMANDS[words[0]][0].partition(":")
    kept = words if words[0] in _WITH_NAME else words[1:]
    return getattr(importlib.import_module(f"lightning_fire.{module}"), function), kept


def run(
    parser: argparse.ArgumentParser, args: Sequence[str] | None, command: Callable[[argparse.Namespace], Result]
) -> Result:
    """Run a command; errors that a user can cause are printed in one line."""
    options = parser.parse_args(args)
    try:
        return command(options)
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        raise SystemExit(f"{parser.prog}: error: {printable(str(error))}") from None


def is_ours(file: str) -> bool:
    """Return whether a file of source code belongs to this package."""
    return Path(file).is_relative_to(Path(__file__).parent)


def ask_cuda_itself() -> None:
    """Make PyTorch look for a GPU with CUDA instead of NVML, which it does at each optimizer step, if none exists.

    Lightning selects NVML, so that a process with a GPU may fork afterwards. Without a GPU, the search for the missing
    NVML library takes 0.15 ms each time, a tenth of an update of a small network.
    """
    import torch

    if not torch.cuda.is_available():
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def console() -> None:
    """Entry point of the `lightning-fire` program: errors raised by this package are printed without a traceback.

    Characters that stdout cannot encode are replaced. If the reader of stdout has exited, as `head` does after its
    lines, the program ends silently, with the exit code that a shell gives to a program ended by SIGPIPE.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # not a replacement by a caller
        sys.stdout.reconfigure(errors="replace")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as by `python -m`: a recipe may name a class of a file in this folder
    try:
        function, words = _command(sys.argv[1:])
        ask_cuda_itself()
        function(words)
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # the exit code that a shell gives to a program ended by Ctrl-C
    except (Exception, SystemExit) as error:
        if BrokenPipeError in (type(error), type(error.__context__)) and _reader_has_gone("\n"):
            raise SystemExit(141) from None
        told = isinstance(error, ValueError | TypeError | OSError | RuntimeError)
        told |= type(error).__name__ == "MisconfigurationException"  # of Lightning, which may not be imported
        if not told or not is_ours(traceback.extract_tb(error.__traceback__)[-1].filename):
            raise
        raise SystemExit(f"lightning-fire: error: {error}") from None
    finally:
        _reader_has_gone()  # or the interpreter prints an error


def _reader_has_gone(probe: str = "") -> bool:
    """Return whether the reader of stdout has exited; if so, discard unread output.

    The `probe` is printed for the check: an unbuffered stdout has nothing left to flush that could fail.
    """
    if sys.stdout is None:  # closed before the program started
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
