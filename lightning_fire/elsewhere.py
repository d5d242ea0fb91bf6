"""Errors for names that are asked of a module that does not have them."""

import re
from inspect import currentframe
from opcode import opname
from pathlib import Path


def missing_name_error(module: str, name: str) -> Exception:
    """Return the error that the `__getattr__` of a module raises for a name that it lacks.

    Returns:
        An ImportError that lists the modules in whose `__all__` the name is, if `from … import …` asks, which hides the
        message of an AttributeError. They are found in the sources, so that none is imported. Otherwise an
        AttributeError, as `hasattr` and jsonargparse need it.

    Example:
        >>> from lightning_fire import DormantFraction
        Traceback (most recent call last):
        ImportError: lightning_fire has no DormantFraction: import it from lightning_fire.metrics
    """
    frame = currentframe()
    asking = frame and frame.f_back and frame.f_back.f_back  # what runs `__getattr__`
    if asking and opname[asking.f_code.co_code[asking.f_lasti]] == "IMPORT_FROM":
        root, listed = Path(__file__).parent, re.compile(rf'^__all__ = \[[^\]]*"{re.escape(name)}"', re.MULTILINE)
        files = [path for path in sorted(root.rglob("*.py")) if listed.search(path.read_text(encoding="utf-8"))]
        paths = (file.relative_to(root.parent).with_suffix("") for file in files)
        if modules := [".".join(path.parts).removesuffix(".__init__") for path in paths]:
            return ImportError(f"{module} has no {name}: import it from {' or '.join(modules)}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
