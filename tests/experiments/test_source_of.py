"""The source of a function sees a change of whatever it uses, and is the same in another process."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_fire.experiments.source_of import own_code, source_of

SCRIPT = """
import functools
from dataclasses import dataclass

import numpy

import mine_of_source

options = {"lr": 0.1, "names": {"a", "b", "c"}}
size = mine_of_source.SIZE
data = numpy.zeros(3)
batches = 4


@dataclass
class Config:
    depth: int = 2

    def layers(self):
        return layer() * self.depth


class Plain:
    def __init__(self):
        self.momentum = 0.9


config, plain, builders = Config(), Plain(), {"net": lambda: head()}


def head():
    return 1


def layer():
    return 16


@functools.cache
def cached():
    return 5


def default(width=size):
    return width


def rate():
    return [options["lr"] for _ in range(batches)]


def decorated(function):
    @functools.wraps(function)
    def outer():
        return function()

    return outer


@decorated
def fit():
    return rate(), config.layers(), plain.momentum, builders["net"](), cached(), default(), data.sum()


def unused():
    return 0


def train(seed, start):
    return fit(), mine_of_source.build()
"""
MINE = "SIZE = 3\n\n\ndef build():\n    return 'built', SIZE\n"


def run(folder, script=SCRIPT, mine=MINE):
    (folder / "script.py").write_text(script)
    (folder / "mine_of_source.py").write_text(mine)
    for name in ("script", "mine_of_source"):
        sys.modules.pop(name, None)
    import script as module

    return module


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


CHANGES = [
    ('"lr": 0.1', '"lr": 0.2'),
    ('"a", "b"', '"a", "d"'),
    ("zeros(3)", "zeros(4)"),
    ("batches = 4", "batches = 5"),
    ("depth: int = 2", "depth: int = 3"),
    ("Config()", "Config(depth=5)"),
    ("return layer() * self", "return 2 * layer() * self"),
    ("self.momentum = 0.9", "self.momentum = 0.8"),
    ("return 1\n", "return 2\n"),
    ("return 16", "return 17"),
    ("return 5", "return 6"),
    ("return function()", "return function() or 1"),
    ("return fit(), ", "return fit(), 1, "),
]


@pytest.mark.parametrize(("old", "new"), CHANGES, ids=[old for old, _ in CHANGES])
def test_a_change_of_what_is_used_is_seen(folder, old, new):
    before = source_of(run(folder).train)
    assert SCRIPT.count(old) == 1 and source_of(run(folder, SCRIPT.replace(old, new)).train) != before


@pytest.mark.parametrize(("old", "new"), [("SIZE = 3", "SIZE = 4"), ("'built'", "'made'")])
def test_a_change_in_a_file_beside_it_is_seen(folder, old, new):
    before = source_of(run(folder).train)
    assert source_of(run(folder, mine=MINE.replace(old, new)).train) != before


LATE = """
from dataclasses import dataclass
from functools import cached_property, partialmethod
from typing import NamedTuple


@dataclass
class Settings:
    width: int = 1

    def build(self):
        return self.width


class Member:
    def act(self):
        return 1


class Pair(NamedTuple):
    first: int = 1

    def both(self):
        return 3


class Options(dict):
    def all(self):
        return 4


class Key:
    def of(self):
        return 5


class Made(type):
    def __call__(cls):
        return 6


class Lazy(metaclass=Made):
    @cached_property
    def late(self):
        return seven()

    part = partialmethod(lambda self, value: eight(), 1)
    late_too = property(None, lambda self, value: nine())


def seven():
    return 7


def eight():
    return 8


def nine():
    return 9


table = {"nested": [(Member(), Settings()), Options()], "set": {len}, Key(): 0, "kind": Lazy}
pair = Pair()


def train():
    import late_of_source
    from below_of_source import deep

    return table, pair, late_of_source, deep
"""
LATE_CHANGES = [
    ("script.py", "return 1", "return 2"),
    ("script.py", "return self.width", "return 2 * self.width"),
    *(("script.py", f"return {number}", f"return 1{number}") for number in range(3, 10)),
    ("late_of_source.py", "1 / 0", "2 / 0"),
    ("below_of_source/deep.py", "size = 1", "size = 2"),
    ("below_of_source/beside.py", "width = 1", "width = 2"),
]


@pytest.mark.parametrize(("name", "old", "new"), LATE_CHANGES, ids=[f"{name}, {old}" for name, old, _ in LATE_CHANGES])
def test_a_change_in_containers_or_in_modules_imported_at_the_call_is_seen(folder, name, old, new):
    files = {
        "late_of_source.py": "1 / 0\n",
        "below_of_source/__init__.py": "",
        "below_of_source/deep.py": "from . import beside\n\nsize = 1\n",
    }
    files["below_of_source/beside.py"] = "import below_of_source.deep, no_such_module\n\nwidth = 1\n"
    (folder / "below_of_source").mkdir()
    for path, text in files.items():
        (folder / path).write_text(text)
    before = source_of(run(folder, LATE).train)
    changed = {"script.py": LATE, **files}[name].replace(old, new)
    (folder / name).write_text(changed)
    assert source_of(run(folder, changed if name == "script.py" else LATE).train) != before
    assert "late_of_source" not in sys.modules  # it was not run


def test_generated_methods_are_left_out(folder):
    """Their code is that of one version of Python, and of Python's next not the same."""
    told = source_of(run(folder, LATE).Settings)
    assert told.startswith("@dataclass\nclass Settings:") and "__init__" not in told and "__eq__" not in told


KINDS = """
import enum
from pathlib import Path
from typing import NamedTuple, Protocol


class Mode(enum.IntFlag):
    one = 1


class Size(NamedTuple):
    width: int = 1


class Acts(Protocol):
    def __annotate_func__(self):  # Python 3.14 adds one to each class with annotations
        return 2


def train():
    return Mode.one, Size(), Acts, Path
"""


def test_what_python_adds_to_classes_is_left_out(folder):
    told = source_of(run(folder, KINDS).train).splitlines()
    values = [line for line in told if line not in KINDS.splitlines()]
    assert not [line for line in values if re.match(r"_[a-z]\w+_ = |Size.__new__", line)], values
    assert told.count("        return 2") == 1 and "base = enum.IntFlag" in told and "Path = pathlib.Path" in told


def test_a_change_of_what_is_not_used_is_none(folder):
    before = source_of(run(folder).train)
    assert source_of(run(folder, SCRIPT.replace("return 0\n", "return 7\n") + "\n\nmore = 1\n").train) == before


def test_it_is_the_same_in_another_process(folder):
    before = source_of(run(folder).train)
    code = "import script; from lightning_fire.experiments.source_of import source_of; print(source_of(script.train))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # the order of sets
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert found.stdout == f"{before}\n"


PLACES = """
import os
from pathlib import Path

from pandas import DataFrame

HERE = Path(__file__).parent / "data"
LIST = [os.path.dirname(__file__)]


class OnWindows:
    def __repr__(self):
        return "<OnWindows at " + hex(10).replace("a", "0A") + ">"


value = OnWindows()


def made():
    import numpy

    def train(module=numpy):
        return numpy, DataFrame, value, HERE, LIST, __file__

    return train


train = made()
"""


def test_it_has_no_places_of_files_or_of_memory(folder, monkeypatch):
    monkeypatch.chdir(folder)
    told = source_of(run(folder, PLACES).train)
    assert {"numpy = numpy", "DataFrame = pandas.DataFrame", "value = <OnWindows>"} <= set(told.splitlines())
    assert "/" not in told.replace("./data", "") and "0x" not in told


def test_functions_inside_of_functions_partials_and_methods():
    def made(lr, depth):
        def build():
            return depth

        class Trainer:
            def fit(self, rate):
                return build(), rate

        return lambda seed: (build(), lr), functools.partial(Trainer.fit, rate=lr), Trainer().fit

    for one, other, equal in zip(made(0.1, 2), made(0.1, 3), made(0.1, 2), strict=True):
        assert source_of(one) == source_of(equal) != source_of(other)
    assert source_of(made(0.1, 2)[1]) != source_of(made(0.2, 2)[1])


@pytest.mark.parametrize("text", [None, '"""', "(", "  def", "def other(:", ""])
def test_code_without_source_is_known_by_its_code(text, tmp_path):
    """Typed at a prompt, or of a file that is another one by now."""
    found, path = [{}, {}, {}], tmp_path / "written.py"
    if text is not None:
        path.write_text(f"{text}\n")
    for names, code in zip(found, ("1", "2", "1"), strict=True):
        exec(compile(f"\n\n\ndef train(): return {code}", path, "exec"), names)
    one, two, again = (source_of(names["train"]) for names in found)
    assert one == again != two


def test_a_dataclass_typed_at_a_prompt_is_known_by_its_methods():
    code = (
        "from dataclasses import dataclass\nfrom lightning_fire.experiments.source_of import source_of\n"
        "@dataclass\nclass Size:\n    width: int = 1\nprint(source_of(lambda: Size()))"
    )
    found = [
        subprocess.run([sys.executable, "-c", of], capture_output=True, text=True).stdout
        for of in (code, code.replace("= 1", "= 2"), code)
    ]
    assert found[0] == found[2] != found[1] and "Size.__init__" in found[0]


def test_a_name_that_is_not_yet_assigned_is_left_out():
    def train():
        return found

    assert source_of(train).startswith("    def train")
    found = 1
    assert "found = 1" in source_of(train)


def test_what_refers_to_itself_ends():
    class Node:
        pass

    node = Node()
    node.next = node
    assert "class Node" in source_of(lambda: node)


OWN = {
    "mine_own.py": "from below_own import Base\n\n\nclass Mine(Base):\n    pass\n\n\nclass Other:\n    pass\n",
    "below_own/__init__.py": "from .deep import (\n    Base,\n    build,\n)\n",
    "below_own/deep.py": "class Base:\n    steps = 1\n\n\ndef build():\n    return 1\n",
    "train.py": "import csv\n\nraise SystemExit('a file of data was taken for code')\n",
    "broken.py": "class Broken:\n    pass\n\n\n1 / 0\n",
}


def test_the_code_of_a_configuration_is_that_of_the_users_classes_and_functions(tmp_path, monkeypatch):
    (tmp_path / "below_own").mkdir()
    for name, text in OWN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    config = {"method": [{"class_path": "mine_own.Mine"}], "model": {"groups": "below_own.build", "lr": 0.1}}
    code = own_code(config)
    assert "class Mine" in code and "steps = 1" in code and "def build" in code and "Other" not in code
    assert own_code({"groups": "below_own.deep.build"}) == own_code("below_own.build") != ""
    nothing = "train.csv", "broken.Broken", "torch.optim.Adam", "lightning_fire.FIRE", "no.such", "mine_own", "a b", ""
    assert [own_code(name) for name in nothing] == [""] * len(nothing)
    assert str(tmp_path) not in sys.path


NOW = {
    "mine_of_now.py": "from below_of_now import build\n\nprint(0)\nsteps = 1\n\n\nclass Mine:\n    def act(self):\n"
    "        import late_of_now\n\n        return build(), steps, late_of_now\n",
    "below_of_now.py": "def build():\n    return 1\n",
    "late_of_now.py": "size = 1\n",
}


@pytest.mark.parametrize("name", NOW)
def test_the_code_of_a_configuration_is_that_of_now_not_that_of_the_first_import(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    files = {file.replace("now", name[:-3]): text.replace("now", name[:-3]) for file, text in NOW.items()}
    for file, text in files.items():
        Path(file).write_text(text)
    changing, config = name.replace("now", name[:-3]), f"mine_of_{name[:-3]}.Mine"
    before = own_code(config)
    Path(changing).write_text(f"\n\n{files[changing]}\n\nclass More:\n    pass\n")
    assert (own_code(config) == before) == (not name.startswith("late"))  # of which the whole text counts
    Path(changing).write_text(files[changing].replace("= 1", "= 22").replace("return 1", "return 22"))
    assert "22" in own_code(config) and "22" not in before
