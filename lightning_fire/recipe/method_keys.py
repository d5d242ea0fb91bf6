"""The keys of a recipe that say which method acts: `method`, `when`, `start_chunk`, `log`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ArgumentParser
from lightning.pytorch import Callback

from lightning_fire.callbacks import Log, PlasticityCallback
from lightning_fire.methods import EventMethod, Method
from lightning_fire.when import Schedule

METHOD_KEYS = ("method", "when", "start_chunk", "log")


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
    """Return the callbacks of a recipe's methods, with its schedule and options; those of callbacks are their own."""
    given = list(method) if isinstance(method, list | tuple) else [] if method is None else [method]
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
