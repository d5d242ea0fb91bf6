"""Output that is either there in full or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def require_free(output: Path, force: bool) -> None:
    """Refuse an output that is in the way of something, or has no folder to be in.

    Args:
        output: File or folder to be written.
        force: Whether it may replace what is there.

    Raises:
        OSError: If it may not, or its folder does not exist.
    """
    if not output.parent.is_dir():
        raise FileNotFoundError(f"the folder of {output} does not exist")
    if os.path.lexists(output) and not force:
        raise FileExistsError(f"{output} exists: --force replaces it")


@contextmanager
def atomic_file(output: Path) -> Iterator[Path]:
    """Give a file to be written beside `output`, and put it in the place of `output` at the end.

    Readers of `output` see the old file or the whole new one. A link is replaced, not the file that it leads to.

    Args:
        output: Where the file is to be. What is there is replaced.

    Yields:
        An empty file in the same folder. It is gone afterwards, also after an error.

    Raises:
        OSError: If `output` is a folder, or cannot be written.
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
    """Give a folder to be filled beside `output`, and put it in the place of `output` at the end.

    A folder that is already there steps aside first: for a moment between two renames none has the name `output`.
    Should the machine stop just then, both stand beside it, with names that begin with a dot.

    Args:
        output: Where the folder is to be. A folder that is there is replaced.

    Yields:
        A folder with the same parent, not made yet. It is gone afterwards, also after an error.

    Raises:
        OSError: If `output` is a file, or cannot be written.
    """
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(f"{output} is a file: name a folder")
    part, old = _part(output), _part(output)
    try:
        yield part
        for file in part.rglob("*"):
            flush(file)
        replaced = os.path.lexists(output)
        if replaced:
            os.rename(output, old)
        try:
            os.rename(part, output)
        except BaseException:
            if replaced:
                os.rename(old, output)
            raise
        flush(output.parent)
        if replaced:
            _remove(old)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file or a folder has reached the disk.

    Args:
        path: The file or folder.
    """
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _part(output: Path) -> Path:
    return output.with_name(f".{output.name}.{secrets.token_hex(4)}.part")


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
