"""Errors for missing and damaged files of a data set."""

from pathlib import Path


def require_file(path: Path, datamodule: str) -> None:
    """Raise a `FileNotFoundError` with the two ways to get a file, unless it exists."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{datamodule} does not find {path.name} at {path.absolute()}. Either set"
            f" download=True, or put {path.name} at that path."
        )


def damaged(path: Path, reason: object) -> RuntimeError:
    """Return the error for a truncated or otherwise damaged file."""
    return RuntimeError(f"{path.absolute()} is truncated or damaged: {reason}. Delete it and get it again.")
