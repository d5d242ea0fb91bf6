"""What to say when a file of a data set is missing or damaged."""

from pathlib import Path


def require_file(path: Path, datamodule: str) -> None:
    """Check that a file of a data set is there.

    Args:
        path: Where it must be.
        datamodule: Name of the class that needs it.

    Raises:
        FileNotFoundError: If it is not, with the two ways to get it.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{datamodule} does not find {path.name}, which it looked for at {path.absolute()}. Either set"
            f" download=True, or put {path.name} at that path."
        )


def damaged(path: Path, reason: object) -> RuntimeError:
    """Return the error for a file that is truncated or otherwise not what it should be.

    Args:
        path: The file.
        reason: What is wrong with it.
    """
    return RuntimeError(f"{path.absolute()} is truncated or damaged: {reason}. Delete it and get it anew.")
