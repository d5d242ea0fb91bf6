"""`lightning-fire board`: a method of one's own joins, its row is checked, and errors."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lightning_fire.board import command
from lightning_fire.board.row import read_row, write_row
from lightning_fire.board.suite import FOLDER, SUITE, read_suite
from lightning_fire.cli import main
from lightning_fire.recipe.cli import RecipeCLI
from lightning_fire.recipe.recipe import VANILLA

MINE = """
from dataclasses import dataclass
from typing import ClassVar

from lightning_fire import Change, EventMethod, Weights


@dataclass(frozen=True)
class Halve(EventMethod):
    '''Multiplies the weights.'''

    name: ClassVar[str] = "halve"
    default_where: ClassVar[Weights] = Weights(preset="cnn")
    search_space: ClassVar[dict] = {"factor": [1.0, 0.5, 0.25]}

    factor: float = 0.5
    where: Weights | None = None

    def plan(self, model, training):
        views = self.selection.select(model)
        return Change({view.parameter: view.parameter.detach() * self.factor for view in views})


value = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a method of one's own, and a suite of one task of seconds."""
    monkeypatch.chdir(tmp_path)
    recipe = yaml.safe_load((FOLDER / "random_labels.yaml").read_text())
    recipe["data"]["init_args"]["protocol"]["init_args"] = {"num_chunks": 3, "samples_per_task": 40, "epochs": 2}
    recipe["trainer"]["check_val_every_n_epoch"] = 2
    recipe["trainer"]["callbacks"][0]["init_args"]["every_n_epochs"] = 2
    task = {"about": "", "number": "", "measure": "online_last", "scale": 100, "curve": "train/online_accuracy"}
    rule = {"trials": 2, "tuning_seeds": [100], "seeds": [0, 1, 2], "tasks": {"random_labels": task}}
    suite = tmp_path / "suite"
    suite.mkdir()
    for name, content in {"random_labels": recipe, "suite": rule}.items():
        (suite / f"{name}.yaml").write_text(yaml.safe_dump(content))
    for name in ("methods.yaml", "search_space.yaml"):
        (suite / name).write_text((FOLDER / name).read_text())
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def board(*words):
    return main(["board", *words, "--suite", "suite/suite.yaml", "--output", "out", "--jobs", "2"])


@pytest.mark.slow
def test_a_method_joins_by_one_file_and_its_row_can_be_checked(folder, capsys):
    rows = board("mine.py:Halve", "fire")
    told = capsys.readouterr().out
    assert list(rows) == ["fire", "halve"] and "halve " in told
    row = read_row(Path("out/rows/halve.json"))
    (cell,) = row.cells.values()
    assert sorted(cell.values) == sorted(cell.vanilla) == [0, 1, 2] and cell.values != cell.vanilla
    assert set(cell.tried) == {"factor=1.0", "factor=0.5"}  # two trials, of three values
    assert cell.setting["factor"] == float(max(cell.tried, key=cell.tried.get).partition("=")[2])
    assert len(cell.curve) == 3 and 0 < cell.seconds < 100 and len(row.source) == 64
    assert rows["fire"].source == "" and rows["fire"].cells["random_labels"].vanilla == cell.vanilla

    marks = {path: path.stat().st_mtime_ns for path in Path("out").rglob("finished.json")}
    board("mine.py:Halve")
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("finished.json")} == marks

    with pytest.raises(SystemExit) as ended:
        main(["board", "--suite", "suite/suite.yaml", "--check", "out/rows/halve.json"])
    assert ended.value.code == 0 and "random_labels: seeds 0, 1: equal" in capsys.readouterr().out
    wrong = replace(cell, values={seed: value + 0.5 for seed, value in cell.values.items()})
    write_row(Path("wrong.json"), replace(row, cells={"random_labels": wrong}))
    with pytest.raises(SystemExit) as ended:
        main(["board", "--suite", "suite/suite.yaml", "--check", "wrong.json"])
    assert ended.value.code == 1 and "differ by up to 0.5" in capsys.readouterr().out


@pytest.mark.slow
def test_a_task_that_cannot_be_trained_says_why_once_and_the_others_are(folder, capsys):
    rule = yaml.safe_load(Path("suite/suite.yaml").read_text())
    rule["tasks"] = {"language": {**rule["tasks"]["random_labels"], "metric": "probe/loss"}, **rule["tasks"]}
    Path("suite/suite.yaml").write_text(yaml.safe_dump(rule))
    Path("suite/language.yaml").write_text((FOLDER / "language.yaml").read_text())  # no data/text/kjv.txt here
    rows = board("fire")
    told = capsys.readouterr().out
    assert 1 <= told.count("data/text/kjv.txt does not exist: put the King James text there") <= 4
    assert "language: nothing was trained" in told and list(rows["fire"].cells) == ["random_labels"]


def refused(capsys, *words):
    with pytest.raises(SystemExit):
        board(*words)
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a method, FILE.py:CLASS or one of full_reset"),
        (["fir"], "no method fir: name FILE.py:CLASS or one of"),
        (["mine.py:Other"], "mine.py has no class Other"),
        (["mine.py:value"], "mine.py has no class value"),
        (["other.py:Halve"], "other.py must be a Python file in the current folder"),
        (["suite/mine.py:Halve"], "suite/mine.py must be a Python file in the current folder"),
        (["fire", "--tasks", "labels"], "--tasks: no labels; there are random_labels"),
        (["--check", "mine.py"], "mine.py is not a row of the board"),
    ],
)
def test_an_error_says_what_to_give(folder, capsys, words, told):
    assert told in refused(capsys, *words)


def test_a_name_of_the_board_is_not_taken_twice(folder, capsys):
    Path("again.py").write_text(MINE.replace('"halve"', '"fire"'))
    assert "the board has a method fire, give another `name`" in refused(capsys, "again.py:Halve")


def test_a_file_that_fails_says_so(folder, capsys):
    Path("broken.py").write_text("1 / 0")
    assert "broken.py cannot be imported: ZeroDivisionError" in refused(capsys, "broken.py:Halve")


def test_a_suite_with_wrong_keys_is_refused(folder, capsys):
    path = Path("suite/suite.yaml")
    rule = yaml.safe_load(path.read_text())
    for key, value, told in (
        ("seeds", [0, 100], "must not be reported, got [100]"),
        ("tasks", {"random_labels": {"mesure": "final"}}, "a task has no mesure; it has about"),
        ("other", 1, "must have the keys seeds, tasks, trials, tuning_seeds"),
    ):
        path.write_text(yaml.safe_dump({**rule, key: value}))
        assert told in refused(capsys, "fire")


def test_the_rule_is_the_same_for_all_methods():
    """Each search space has as many settings as there are trials, and a task takes a method or says why not."""
    suite = read_suite()
    for task in suite.tasks.values():
        for method in suite.methods:
            space = suite.space_of(task, method)
            settings = math.prod(len(values) for values in space.values()) if space else suite.trials
            assert settings == suite.trials, f"{task.name}, {method}: {settings} settings"
        assert not set(task.left_out) - set(suite.methods), task.name
        assert all(task.left_out.values())
    assert VANILLA not in suite.methods and not set(suite.space) - {*suite.methods, *_of_recipes(suite)}
    assert len(suite.seeds) == 10 and len(suite.tuning_seeds) == 3 and SUITE.is_file()


def _of_recipes(suite):
    return {method for task in suite.tasks.values() for method in task.recipe.methods}


class Unbuilt(RecipeCLI):
    """Reads and checks a recipe, and builds none of its objects."""

    def instantiate_classes(self):
        pass


def distinct_tasks():
    """Yield the first of the tasks with the same network and the same methods."""
    suite, seen = read_suite(), []
    for name, task in suite.tasks.items():
        if "model" in task.recipe.base:
            own = task.recipe.base["model"]["init_args"]["net"], suite.recipe_of(task).methods
            if own not in seen:
                seen.append(own)
                yield name


@pytest.mark.parametrize("name", list(distinct_tasks()))
def test_every_method_is_parsed_on_every_task_that_takes_it(name):
    suite = read_suite()
    recipe = suite.recipe_of(suite.tasks[name])
    parser = Unbuilt(recipe.words(VANILLA), run=False).parser
    for method in recipe.methods:
        words = recipe.words(method)
        config = str(parser.parse_args(words))
        named = re.findall(r"(?:class_path|normalization|activation): ([\w.]+)", words[-1])
        assert all(one.rsplit(".", 1)[-1] in config for one in named), method


def test_engines_are_those_of_compare(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "--engine {local,slurm,ray}" in capsys.readouterr().out
