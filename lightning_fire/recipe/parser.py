"""Parser of recipes: Lightning's, with strict YAML, short error messages, and the keys of the method."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, get_loader, set_loader
from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningArgumentParser

from lightning_fire.callbacks import Log, PlasticityCallback
from lightning_fire.messages import inform
from lightning_fire.methods import EventMethod, Method
from lightning_fire.printable import printable
from lightning_fire.recipe.hints import hint
from lightning_fire.recipe.recipe import refuse_own_keys
from lightning_fire.recipe.strict_yaml import read_yaml, require_unambiguous
from lightning_fire.when import Schedule

METHOD_KEYS = ("method", "when", "start_chunk", "log")  # which method acts
_MODE = "lightning-fire"


def _load(text: str) -> Any:
    require_unambiguous(text)
    try:
        return get_loader("yaml")(text)
    except ValueError as error:  # of a number
        raise yaml.YAMLError(str(error)) from None


set_loader(_MODE, _load, exceptions=(yaml.YAMLError,))


class RecipeParser(LightningArgumentParser):
    """Rejects files that are not YAML or have duplicate keys; prints the long usage only for `--help`."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"parser_mode": _MODE, "allow_abbrev": False, **options})
        self.empty: list[tuple[str, ...]] = []  # keys whose value is `{}`: jsonargparse drops unknown ones silently

    def parse_path(self, path: Any, *args: Any, **options: Any) -> Any:
        if Path(path).is_file():
            try:
                content = read_yaml(Path(path), load=get_loader("yaml"))
                refuse_own_keys(path, content)
            except (ValueError, OSError) as error:
                self.error(str(error))
            if not isinstance(content, dict):
                self.error(f"{path} must hold keys with values, got {content!r}")
        return super().parse_path(path, *args, **options)

    def parse_string(self, *args: Any, **options: Any) -> Any:
        text = args[0] if args else options["content"] if "content" in options else options["cfg_str"]
        if isinstance(content := _load(text), dict):
            self.empty += _empty(content)
        return super().parse_string(*args, **options)

    def error(self, message: str, *args: Any, **options: Any) -> NoReturn:
        """Print the innermost reason of the error in one line if it is known, otherwise the whole message, and exit."""
        reason = None if "JSONARGPARSE_DEBUG" in os.environ else hint(message)
        words = reason or "\n".join(line for line in message.splitlines() if line.strip())
        super().error(printable(words), *args, **options)

    def print_usage(self, file: Any = None) -> None:
        if self._subcommands_action:
            return super().print_usage(file)
        command = self.prog.replace(" [options]", "")
        self._print_message(f"usage: {command} RECIPE [--method NAME] [-c MORE.yaml ...] [--KEY VALUE ...]\n", file)


def _empty(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the paths of all empty mappings; lists do not count as steps of a path."""
    if isinstance(value, dict):
        if not value:
            yield place
        for key, inner in value.items():
            yield from _empty(inner, (*place, *str(key).removesuffix("+").split(".")))
    elif isinstance(value, list):
        for inner in value:
            yield from _empty(inner, place)


def add_method_keys(parser: ArgumentParser) -> None:
    """Add the keys to a parser."""
    parser.add_argument(
        "--method",
        type=Method | Callback | list[Method | Callback] | None,
        default=None,
        help="The method, such as FIRE, or a callback, or a list of them. It is added to trainer.callbacks.",
    )
    parser.add_argument(
        "--when",
        type=Schedule | list[Schedule] | None,
        default=None,
        help="The schedule of a method with events. Default: that of the method, mostly AtNewData.",
    )
    parser.add_argument(
        "--start_chunk", type=int, default=0, help="Number of changes of the data before which the method does nothing."
    )
    parser.add_argument("--log", type=Log | None, default=None, help="What the method logs.")


def callbacks_of(
    method: Any, when: Schedule | Sequence[Schedule] | None, start_chunk: int, log: Log | None
) -> list[Callback]:
    """Return the callbacks of a recipe's methods, with its schedule and options; callbacks keep their own."""
    given = list(method) if isinstance(method, list | tuple) else [] if method is None else [method]
    if when is not None and given and not any(isinstance(one, EventMethod) for one in given):
        names = ", ".join(type(one).__name__ for one in given)
        inform(f"`when` has no effect: {names} has a schedule of its own, or acts at every step.")
    return [
        PlasticityCallback(one, when if isinstance(one, EventMethod) else None, start_chunk, log)
        if isinstance(one, Method)
        else one
        for one in given
    ]


def callbacks_in(config: Mapping[str, Any]) -> list[Callback]:
    """Build the callbacks of the methods of a configuration."""
    parser = ArgumentParser(exit_on_error=False)
    add_method_keys(parser)
    built = parser.instantiate(parser.parse_object({key: config[key] for key in METHOD_KEYS if key in config}))
    return callbacks_of(*(built[key] for key in METHOD_KEYS))
