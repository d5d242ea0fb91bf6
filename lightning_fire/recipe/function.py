"""`lightning-fire fit` of a recipe that trains by a function instead of a model, data and a Trainer."""

import inspect
import pkgutil
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lightning_fire.methods import Method
from lightning_fire.recipe.check import require_known
from lightning_fire.recipe.hints import nearest
from lightning_fire.recipe.parser import RecipeParser

GIVEN = ("seed", "method", "log")  # arguments that the run passes to the function


class FunctionLog:
    """The argument `log` of a function: writes numbers to the TensorBoard files of its run.

    Args:
        folder: Folder of the files. Default: the next `lightning_logs/version_<k>`.
    """

    def __init__(self, folder: str | Path | None = None):
        from torch.utils.tensorboard import SummaryWriter

        self.folder = Path(folder or TensorBoardLogger(".").log_dir)
        self.keys: set[str] = set()
        self._writer = SummaryWriter(str(self.folder))

    def __call__(self, key: str, value: float | Tensor, step: int) -> None:
        """Log a number, such as `log("return", -120.5, 3)`."""
        self.keys.add(key)
        self._writer.add_scalar(key, float(value.item() if isinstance(value, Tensor) else value), int(step))

    def __enter__(self) -> "FunctionLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Flush and close the files."""
        self._writer.close()


def written(words: Sequence[str]) -> dict[str, Any]:
    """Return the keys given by options of `fit`, unchecked; keys below `train` are merged."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", action="append", default=[])
    keys: dict[str, Any] = {}
    for text in parser.parse_known_args(words)[0].config:
        try:
            content = yaml.safe_load(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text)
        except (yaml.YAMLError, ValueError, OSError, RecursionError):  # the parser of the recipe reports it
            continue
        if isinstance(content, Mapping):
            above = content.get("train")
            both = isinstance(above, Mapping) and {**keys.get("train", {}), **above}
            keys |= {**content, "train": both} if both else content
    return keys


def train_by_function(words: Sequence[str], given: Mapping[str, Any]) -> Any:
    """Run the function of a recipe; return its result.

    It is called with `seed`, `method` (a `Method`; None: vanilla), `log` (see `FunctionLog`) and its own arguments.

    Args:
        words: Command and options of `lightning-fire fit`.
        given: The keys that they give, see `written`.

    Raises:
        ValueError: If it returns without logging `train.metric`.
    """
    parser = RecipeParser(prog="lightning-fire fit", description="Train a recipe by its function.")
    parser.add_argument("-c", "--config", action="config")
    parser.add_argument("--seed_everything", type=int, default=0)
    parser.add_argument("--method", type=Method | None, default=None)
    parser.add_argument("--train.function", type=str)
    parser.add_argument("--train.metric", type=str | None, default=None)
    parser.add_argument("--train.mode", type=Literal["max", "min"], default="max")
    parser.add_argument("--train.log", type=FunctionLog | None, default=None)
    try:
        function, own = _function_of(words, given)
        parser.add_function_arguments(function, "train.init_args", skip=set(GIVEN), fail_untyped=False)
        config = parser.parse_args(list(words[1:]))
        require_known(config.as_dict(), parser.empty)
    except ValueError as error:
        parser.error(str(error))
    seed_everything(config.seed_everything, workers=True)
    built = parser.instantiate(config)
    path, metric = config.train.function, config.train.metric
    with built.train.log or FunctionLog() as log:
        parser.save(config, log.folder / "config.yaml", overwrite=True, multifile=False)
        arguments = {name: built.train.init_args[name] for name in own}
        try:
            result = function(seed=config.seed_everything, method=built.method, log=log, **arguments)
        except SystemExit as leaving:
            raise RuntimeError(f"{path} has ended the process by exit({leaving.code})") from None
        if metric and metric not in log.keys:
            there = ", ".join(sorted(log.keys)) or "nothing"
            raise ValueError(f"{path} has returned without logging {metric}, which is compared; it has logged {there}")
    return result


def _function_of(words: Sequence[str], given: Mapping[str, Any]) -> tuple[Callable[..., Any], list[str]]:
    """Return the function of a recipe and the names of its own arguments; raise a ValueError if it cannot be called."""
    train = given["train"]
    if words[0] != "fit":
        raise ValueError(f"the recipe trains by a function, for which there is no {words[0]}, only fit and compare")
    if beside := [name for name in ("model", "data", "trainer", "when", "start_chunk", "log") if name in given]:
        raise ValueError(f"a recipe trains by a function or by Lightning: it has {', '.join(beside)} beside `train`")
    if isinstance(given.get("method"), list):
        raise ValueError("method: a function gets one method, and this is a list")
    if not isinstance(train, Mapping) or not isinstance(path := train.get("function"), str):
        raise ValueError("`train` must name its function, such as function: mine.train, the name in a file mine.py")
    function = imported("train.function", path)
    if not callable(function):
        raise ValueError(f"train.function: {path} is not a function")
    parameters = inspect.signature(function).parameters
    named = [name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
    own = [name for name in named if name not in GIVEN]
    if named == list(parameters) and (lacking := [name for name in GIVEN if name not in named]):
        raise ValueError(f"train.function: {path} must take seed, method and log, and lacks {', '.join(lacking)}")
    arguments = train.get("init_args")
    for name in arguments if isinstance(arguments, Mapping) else ():
        if name not in own:
            raise ValueError(f"train.init_args: {path} has no argument {name}{nearest(str(name), own)}")
    return function, own


def imported(key: str, path: str) -> Any:
    """Import the dotted name under a key of a recipe; a ValueError gives the reason if that is not possible."""
    try:
        return pkgutil.resolve_name(path)
    except ModuleNotFoundError as error:
        raise ValueError(f"{key}: there is no module {error.name}, installed or in the current folder") from None
    except Exception as error:  # the module is the user's, and may raise anything
        raise ValueError(f"{key}: {path} cannot be imported: {type(error).__name__}: {error}") from None
