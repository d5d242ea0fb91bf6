"""Pages of the documentation, and their code blocks as a reader finds them."""

import builtins
import importlib.util
import re
from collections.abc import Iterator
from dis import get_instructions
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_YOURS = re.compile(r"\byour\s+((?:`\w+`(?:,? and |, )?)+)")


def script(path: str) -> ModuleType:
    """Import a script of the repository that is in no package, such as `examples/twelve_months.py`."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Block(NamedTuple):
    """A code block.

    Attributes:
        language: `python`, `yaml`, `bash`, `text` or empty.
        code: Its lines.
        yours: Names that the page above it leaves to the reader: "your `model` and `optimizer`".
    """

    language: str
    code: str
    yours: set[str]


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in these languages, or all."""
    text = page.read_text()
    found = [Block(m[1], m[2], names_of_the_reader(text[: m.start()])) for m in _BLOCK.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def names_of_the_reader(text: str) -> set[str]:
    """Return the names that a text calls the reader's: "your `model`, `optimizer` and `data`"."""
    return {name for names in _YOURS.findall(" ".join(text.split())) for name in re.findall(r"`(\w+)`", names)}


def pages_with(*languages: str) -> list[Path]:
    """Return the pages that have a block in one of these languages."""
    return [page for page in PAGES if blocks_of(page, *languages)]


def undefined_names(code: str) -> set[str]:
    """Return the names that code uses, also within functions that it does not call, and does not define or import."""
    every = list(_codes(compile(code, "page", "exec")))
    defined = {name for each in every for name in (*each.co_varnames, *each.co_cellvars, *_stored(each))}
    used = {name for each in every for name in _loaded(each)}
    return used - defined - set(dir(builtins)) - {"__name__", "__qualname__", "__module__", "__annotations__"}


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _stored(code: CodeType) -> Iterator[str]:
    return (str(step.argval) for step in get_instructions(code) if step.opname in ("STORE_NAME", "STORE_GLOBAL"))


def _loaded(code: CodeType) -> Iterator[str]:
    loads = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS")
    return (str(step.argval) for step in get_instructions(code) if step.opname in loads)
