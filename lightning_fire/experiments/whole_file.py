"""Files of results that are there in full, or as they were before."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_fire.checkpoints.atomic import atomic_file


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a file to be written in the place of one of the results.

    Yields:
        See `atomic_file`.
    """
    try:
        with atomic_file(path) as part:
            yield part
    except OSError as error:
        reason = error if error.errno is None else error.strerror
        raise SystemExit(f"{path} cannot be written: {reason}. The same command writes it, without training.") from None
