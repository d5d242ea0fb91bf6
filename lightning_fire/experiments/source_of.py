"""Source of a function and of everything that it uses, to detect changes."""

import dis
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial, partialmethod
from pathlib import Path
from tokenize import TokenError
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_INSTALLED = Path(sysconfig.get_path("stdlib")), Path(__file__).parents[1]
_WRAPPERS = partial, partialmethod, MethodType, property, cached_property, staticmethod, classmethod, type(cache(len))
_CONTAINERS = dict, list, tuple, set, frozenset
_HIDING: Any = object.__repr__  # shows no attributes
_READ = dict[Path, int]()  # files of the user, and when they were changed
_IN_NEW_PROCESS = """
import json, sys
output, sys.stdout = sys.stdout, sys.stderr  # the user's modules may print
from lightning_fire.experiments import source_of
source = source_of.own_code(sys.argv[1])
json.dump([source, {str(file): time for file, time in source_of._READ.items()}], output)
"""
_INSIDE = "func", "args", "keywords", "fget", "fset", "__func__", "__self__", "__wrapped__"


def source_of(thing: Any) -> str:
    """Return the source of a function and of the functions and classes that it uses, with the values of their globals.

    Installed packages, such as torch, are represented by name only; data (any object with a `shape`) by its shape.

    Args:
        thing: Any callable, such as a function, a partial or a method, or a value.

    Example:
        >>> width = 8
        >>> def build():
        ...     return width + 1
        >>> print(source_of(lambda: build()).splitlines()[-1])
        width = 8
    """
    waiting, seen, told = [("", thing)], dict[tuple[str, int], Any](), list[str]()
    while waiting:
        name, value = waiting.pop(0)
        if (name, id(value)) not in seen:
            seen[name, id(value)] = value  # kept alive, so that no other object gets its id
            told.append(_source(value) if _is_own(value) else f"{name} = {_shown(value)}")
            waiting += _used_by(value)
    return "\n".join([told[0], *sorted(set(told[1:]))])  # versions of Python list names in different orders


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Context manager: import modules of the current folder first, as the program that trains does."""
    sys.path.insert(0, here := os.getcwd())
    try:
        yield
    finally:
        sys.path.remove(here)


def own_code(config: Any) -> str:
    """Return the source of the user's classes and functions that a configuration names, see `source_of`.

    Those that cannot be imported are left out: the training that needs them reports it.
    """
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list | tuple) else ()
    return _own_source(config) if isinstance(config, str) else "".join(map(own_code, inner))


def _own_source(name: str) -> str:
    """Return the source of a user's class or function by its dotted name; empty if it is none."""
    module, _, last = name.rpartition(".")
    if not all(map(str.isidentifier, name.split("."))):
        return ""
    try:
        with importing_from_here():
            file = _file_of(module)
            changed = tuple((one, now) for one, then in _READ.items() if (now := _changed_at(one)) != then)
            return _source_in(name, changed) if file and _defines(file, last) else ""
    except Exception:  # the module is the user's, and may raise anything
        return ""


@cache
def _source_in(name: str, changed: Sequence[tuple[Path, int]]) -> str:
    """Return the source of what a name stands for: once, as a training may change global values.

    A new process finds it if files have changed: this one has imported the earlier ones.
    """
    if changed:
        words = [sys.executable, "-c", _IN_NEW_PROCESS, name]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        source, read = json.loads(subprocess.run(words, stdout=subprocess.PIPE, env=path, check=True).stdout)
        for file, time in read.items():
            _READ.setdefault(Path(file), time)
        return str(source)
    source = source_of(pkgutil.resolve_name(name))
    files = (getattr(module, "__file__", None) for key, module in list(sys.modules.items()) if key != "__main__")
    for file in {Path(file) for file in files if file}:
        if not _is_installed(file):
            _READ.setdefault(file, _changed_at(file))
    return source


def _changed_at(file: Path) -> int:
    """Return the time at which a file was changed; 0 if it does not exist."""
    return file.stat().st_mtime_ns if file.is_file() else 0


def _file_of(module: str) -> Path | None:
    """Return the file of a user's module, without importing it; None if it is installed or does not exist."""
    top, *parts = module.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    for part in parts:
        below = file.parent / part
        file = below / "__init__.py" if below.is_dir() else below.with_suffix(".py")
    return None if _is_installed(file) or not file.is_file() else file


def _defines(file: Path, name: str) -> bool:
    """Return whether the text of a module defines a name: `train.csv` is a file, and must not run `train.py`."""
    ways = (
        rf"\s*(?:class|(?:async )?def)\s+{name}\b",
        rf"{name}\s*[:=]",
        rf"from\s+\S+\s+import\s+(?:\([^)]*|[^\n(]*)\b{name}\b",
    )
    return re.search(f"^(?:{'|'.join(ways)})", file.read_text(encoding="utf-8"), re.MULTILINE) is not None


def _used_by(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the objects that a function, class or object uses, by name."""
    if _is_own(type(value)):
        yield "class", type(value)
    if isinstance(value, _WRAPPERS):
        yield from ((name, getattr(value, name)) for name in _INSIDE if hasattr(value, name))
    elif isinstance(value, type):
        yield from (("base", base) for base in value.__bases__ if _is_own(value))
        for name, one in vars(value).items() if _is_own(value) else ():
            code = one.__func__ if isinstance(one, staticmethod | classmethod) else one
            special = name[0] == name[-1] == "_" and not (_is_own(code) or isinstance(code, _WRAPPERS))
            if not special and name != "__annotate_func__" and not _is_generated(code, value):
                yield name, one
    elif isinstance(value, FunctionType) and _is_own(value):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((name, cell.cell_contents) for name, cell in cells if cell != CellType())
        yield from (("default", one) for one in (value.__defaults__, value.__kwdefaults__))
        scopes = [value.__globals__]
        for name in _names(value.__code__):
            for found in [scope[name] for scope in scopes if name in scope]:
                if not isinstance(found, ModuleType):
                    yield name, found
                elif _is_own(found) and not any(vars(found) is scope for scope in scopes):
                    scopes.append(vars(found))
        yield from _imported_by(value.__code__, value.__globals__.get("__package__") or "", set())
    elif isinstance(value, _CONTAINERS):
        yield from _code_in(value)
    elif _is_own(type(value)):
        attributes = getattr(value, "__dict__", {})
        yield from attributes.items() if type(value).__repr__ is _HIDING else _code_in(attributes)


def _code_in(container: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over callables and objects of the user's classes in nested containers."""
    inner = sorted(container, key=_shown) if isinstance(container, set | frozenset) else container
    values = [*inner, *(inner.values() if isinstance(inner, dict) else ())]
    own = {kind for kind in set(map(type, values)) if _is_own(kind)}  # once for each: there may be many numbers
    for one in values:
        if type(one) not in own and isinstance(one, _CONTAINERS):
            yield from _code_in(one)
        elif type(one) in own or callable(one):
            yield "item", one


def _imported_by(code: CodeType, package: str, seen: set[Path]) -> Iterator[tuple[str, str]]:
    """Iterate over the names and texts of the user's modules that code imports, and of those that they import.

    They are not imported here, which would run them.
    """
    for one in _codes(code):
        steps = [step for step in dis.get_instructions(one) if step.opname != "EXTENDED_ARG"]
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname == "IMPORT_NAME":
                with suppress(ImportError, ValueError, OSError, SyntaxError):  # the code itself reports it
                    name = importlib.util.resolve_name("." * level.argval + step.argval, package)
                    for module in (name, *(f"{name}.{one}" for one in names.argval or ())):
                        if (file := _file_of(module)) and file not in seen:
                            seen.add(file)
                            _READ.setdefault(file, _changed_at(file))
                            yield f"import {module}", (text := file.read_text(encoding="utf-8"))
                            inside = module if file.name == "__init__.py" else module.rpartition(".")[0]
                            yield from _imported_by(compile(text, file, "exec"), inside, seen)


def _is_generated(thing: Any, kind: type) -> bool:
    """Return whether a member was made from the text of its class, as in dataclasses: its code differs by Python."""
    made = isinstance(thing, FunctionType) and thing.__code__.co_filename == "<string>"
    try:
        return made and Path(inspect.getfile(kind)).is_file()
    except OSError:  # a class typed at a prompt
        return False


def _is_own(thing: Any) -> bool:
    """Return whether it is a function, class or module of the user, neither built in nor of an installed package."""
    try:
        file = Path(inspect.getfile(thing)) if isinstance(thing, FunctionType | type | ModuleType) else _INSTALLED[0]
    except (TypeError, OSError) as error:  # OSError: a class typed at a prompt
        return isinstance(error, OSError)
    return not _is_installed(file)


def _is_installed(file: Path) -> bool:
    """Return whether a file belongs to Python, an installed package or this one."""
    packages = {"site-packages", "dist-packages"} & set(file.parts)
    return bool(packages) or any(file.is_relative_to(folder) for folder in _INSTALLED)


def _source(thing: Any) -> str:
    """Return the source of a function or class; if typed at a prompt, its code, otherwise its name."""
    code = getattr(thing, "__code__", None)
    try:
        return inspect.getsource(code or thing)
    except (TypeError, OSError, SyntaxError, TokenError):  # the last two: the file is another one by now
        return f"{thing.__qualname__} {code.co_code.hex() + _shown(code.co_consts) if code else ''}"


def _names(code: CodeType) -> list[str]:
    """Return the names of globals and attributes in code and in functions inside of it, without those as `__file__`."""
    return [name for one in _codes(code) for name in one.co_names if not re.fullmatch("__.*__", name)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Iterate over code and the functions inside of it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _shown(value: Any) -> str:
    """Return the `repr` of a value without memory addresses and the current folder; for data its type and shape."""
    if isinstance(value, type):  # versions of a package move classes between its modules
        return f"{value.__module__.partition('.')[0]}.{value.__qualname__}"
    if isinstance(value, ModuleType):
        return value.__name__
    if hasattr(value, "shape"):
        return f"{type(value).__qualname__} of shape {value.shape}"
    if isinstance(value, dict | list | tuple | set | frozenset):
        parts = [*map(_shown, value.items() if isinstance(value, dict) else value)]
        return str(sorted(parts) if isinstance(value, set | frozenset) else parts)
    return re.sub(" at 0x[0-9a-fA-F]+", "", repr(value)).replace(repr(os.getcwd())[1:-1], ".")
