"""Atomic writes: an output is complete or does not exist."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def require_folder_of(output: Path) -> None:
    """Require that the folder of an output exists."""
    if not output.parent.is_dir():
        raise FileNotFoundError(f"the folder of {output} does not exist")


@contextmanager
def atomic_file(output: Path) -> Iterator[Path]:
    """Context manager: write a temporary file in the folder of `output` and rename it to `output` at the end.

    Readers of `output` see the old file or the complete new one. A link is replaced, not its target. The temporary file
    is empty at first, and does not exist afterwards, also after an error.
    """
    if output.is_dir():
        raise IsADirectoryError(f"{output} is a folder: name a file")
    part = _part(output)
    try:
        part.touch(exist_ok=False)
        yield part
        flush(part)
        os.replace(part, output)
        flush(output.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(output: Path) -> Iterator[Path]:
    """Context manager: fill a temporary folder beside `output` and rename it to `output` at the end.

    The temporary folder does not exist at first, and not afterwards, also after an error. An existing folder is renamed
    first: between the two renames `output` does not exist. If the process ends at this time, it remains under a name
    that begins with a dot.
    """
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(f"{output} is a file: name a folder")
    part, old = _part(output), _part(output)
    try:
        yield part
        for file in part.rglob("*"):
            flush(file)
        if os.path.lexists(output):
            os.rename(output, old)
        os.rename(part, output)
        flush(output.parent)
        old.unlink() if old.is_symlink() else shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _part(output: Path) -> Path:
    return output.with_name(f".{output.name}.{secrets.token_hex(4)}.part")
