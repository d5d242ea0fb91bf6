"""`lightning-fire board`: a method of one's own joins, its row is checked, and errors."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from recipe_files import Unbuilt

from lightning_fire.board import check, command
from lightning_fire.board.evaluate import recipe_digest
from lightning_fire.board.row import Cell, Row, read_row, read_rows, write_row
from lightning_fire.board.suite import FOLDER, SUITE, read_suite
from lightning_fire.cli import main
from lightning_fire.recipe.recipe import VANILLA

MINE = """
from dataclasses import dataclass, field
from typing import ClassVar

import torch

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


class Thing:
    pass


class Named(Halve):
    pass


class Typo(Halve):
    search_space = {"facto": [0.5]}


class Scalar(Halve):
    search_space = {"factor": 0.5}


class Odd(Halve):
    search_space = {"factor": (torch.float32,)}


class Untunable(Halve):
    search_space = {"factor": ["large"]}


class Unlucky(Halve):
    search_space = {}

    def plan(self, model, training):
        if torch.initial_seed() == 1:
            raise ArithmeticError("seed 1")
        return super().plan(model, training)


@dataclass(frozen=True)
class Needs(Halve):
    more: int = field(kw_only=True)
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
    for name in ("mine.py", "again.py", "my-method.py"):
        (tmp_path / name).write_text(MINE)
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
    assert len(cell.curve) == 3 and 0 < cell.seconds < 100 and len(cell.source) == 64
    assert (
        rows["fire"].cells["random_labels"].source == "" and rows["fire"].cells["random_labels"].vanilla == cell.vanilla
    )

    marks = {path: path.stat().st_mtime_ns for path in Path("out").rglob("finished.json")}
    board("mine.py:Halve")
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("finished.json")} == marks

    with pytest.raises(SystemExit) as ended:
        main(["board", "--suite", "suite/suite.yaml", "--check", "out/rows/halve.json"])
    assert ended.value.code == 0 and "random_labels: seeds 0, 1: equal" in capsys.readouterr().out
    for changed, told in (
        (
            {"values": {seed: value + 0.5 for seed, value in cell.values.items()}},
            "halve differs by up to 0.5, standard",
        ),
        ({"vanilla": {seed: value + 0.5 for seed, value in cell.vanilla.items()}}, "vanilla differs by up to 0.5,"),
        ({"scratch": {**cell.scratch, 0: math.nan}}, "full_reset lacks a seed, or has diverged with other seeds"),
        (
            {"source": "0", "versions": {"torch": "1"}},
            "equal; other code of the method; torch 1, here",
        ),
    ):
        write_row(Path("wrong.json"), replace(row, cells={"random_labels": replace(cell, **changed)}))
        with pytest.raises(SystemExit) as ended:
            main(["board", "--suite", "suite/suite.yaml", "--check", "wrong.json"])
        out = capsys.readouterr().out
        assert ended.value.code == (0 if "source" in changed else 1) and told in out, out
    write_row(Path("more.json"), replace(row, cells={"random_labels": cell, "elsewhere": cell}))
    with pytest.raises(SystemExit) as ended:
        main(["board", "--suite", "suite/suite.yaml", "--check", "more.json"])
    out = capsys.readouterr().out
    assert ended.value.code == 1 and "elsewhere: not checked: there is no such task in suite/suite.yaml" in out


@pytest.mark.slow
def test_a_task_that_cannot_be_trained_says_why_once_and_the_others_are(folder, capsys):
    rule = yaml.safe_load(Path("suite/suite.yaml").read_text())
    rule["tasks"] = {
        "language": {**rule["tasks"]["random_labels"], "metric": "probe/loss", "mode": "min"},
        **rule["tasks"],
    }
    Path("suite/suite.yaml").write_text(yaml.safe_dump(rule))
    Path("suite/language.yaml").write_text((FOLDER / "language.yaml").read_text())  # no data/text/kjv.txt here
    with pytest.raises(SystemExit, match=r"without a result, for reasons given above: fire on language$"):
        board("fire")
    told = capsys.readouterr().out
    assert 1 <= told.count("data/text/kjv.txt does not exist: put the King James text there") <= 4
    assert "language: nothing was trained" in told
    assert list(read_row(Path("out/rows/fire.json")).cells) == ["random_labels"]


@pytest.mark.slow
def test_a_method_without_a_result_for_each_seed_is_left_out(folder, capsys):
    with pytest.raises(SystemExit, match=r"untunable on random_labels, unlucky on random_labels$"):
        board("mine.py:Untunable", "mine.py:Unlucky", "vanilla")
    told = capsys.readouterr().out
    assert "random_labels: no setting of untunable could be trained, so that it is left out" in told
    assert "random_labels: unlucky is left out, without unlucky seed 1\n" in told
    rows = read_rows(Path("out/rows"))
    assert list(rows) == ["vanilla"] and sorted(rows["vanilla"].cells["random_labels"].values) == [0, 1, 2]


def test_a_failure_shows_no_rows_of_earlier_runs(folder, capsys, monkeypatch):
    cell = Cell({0: 0.5}, {0: 0.25}, {0: 0.5}, {}, {}, [], 1.0, "")
    for method in ("fire", "halve"):
        write_row(Path(f"out/rows/{method}.json"), Row(method, {}, {"random_labels": cell}))
    for trained, shown in ({}, []), ({"fire": cell}, ["fire"]):
        monkeypatch.setattr(command, "evaluate", lambda *rest, of=trained: of)
        with pytest.raises(SystemExit, match=r"halve on random_labels$"):
            board("fire", "mine.py:Halve")
        told = capsys.readouterr().out
        assert re.findall("^(fire|halve)  ", told, re.MULTILINE) == shown and ("Gain over" in told) == bool(shown)


def test_the_time_limit_is_one_for_all_tasks(folder):
    with pytest.raises(SystemExit, match="the same command continues them"):
        board("fire", "--max-minutes", "0")


def test_a_method_of_one_task_is_left_out_of_the_others_with_the_reason(folder, capsys):
    rule = yaml.safe_load(Path("suite/suite.yaml").read_text())
    rule["tasks"]["permuted_labels"] = rule["tasks"]["random_labels"]
    Path("suite/suite.yaml").write_text(yaml.safe_dump(rule))
    recipe = yaml.safe_load(Path("suite/random_labels.yaml").read_text())
    own = {"methods": {"only_here": {"method": {"class_path": "FIRE"}}}}
    Path("suite/permuted_labels.yaml").write_text(yaml.safe_dump(recipe | own))
    board("only_here", "--tasks", "random_labels")
    assert "random_labels: only_here is left out: it is one of permuted_labels" in capsys.readouterr().out


def test_cells_of_other_tasks_stay_in_a_row(folder):
    suite, cell = read_suite(Path("suite/suite.yaml")), Cell({0: 0.5}, {}, {}, {}, {}, [], 1.0, "")
    for task in ("elsewhere", "random_labels", "elsewhere"):
        command._keep(Path("out"), "fire", task, cell, suite)
    assert list(read_row(Path("out/rows/fire.json")).cells) == ["random_labels", "elsewhere"]


def refused(capsys, *words):
    with pytest.raises(SystemExit):
        board(*words)
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a method, FILE.py:CLASS or one of vanilla, full_reset"),
        (["fir"], "no method fir: name FILE.py:CLASS or one of"),
        (["mine.py:value"], "mine.py has no class value"),
        (["other.py:Halve"], "other.py must be a Python file in the current folder"),
        (["suite/mine.py:Halve"], "suite/mine.py must be a Python file in the current folder"),
        (["my-method.py:Halve"], "my-method.py must be a Python file in the current folder, with a name that can be"),
        (["mine.py:Other"], "mine.py has no class Other"),
        (["mine.py:Thing"], "mine.py:Thing must be a method or a callback, but Thing derives from neither"),
        (["mine.py:Typo"], "mine.py:Typo cannot be made from its search_space and defaults: got an unexpected keyword"),
        (["mine.py:Needs"], "mine.py:Needs cannot be made from its search_space and defaults: missing a required"),
        (
            ["mine.py:Scalar"],
            "mine.py:Scalar: search_space: Scalar.factor must be a list of values, or numbers low and",
        ),
        (["mine.py:Odd"], "mine.py:Odd: search_space must have numbers, strings, true or false, got {'factor': [torch"),
        (["mine.py:Named", "again.py:Named"], "again.py:Named: there is a method named already, give another `name`"),
        (["fire", "--tasks", "labels"], "--tasks: no labels; there are random_labels"),
        (["--check", "nope.json"], "error: nope.json does not exist"),
        (["--check", "mine.py"], "mine.py is not a row of the board"),
    ],
)
def test_an_error_says_what_to_give(folder, capsys, words, told):
    assert told in refused(capsys, *words)


def test_a_name_of_the_board_is_not_taken_twice(folder, capsys):
    Path("again.py").write_text(MINE.replace('"halve"', '"fire"'))
    assert "again.py:Halve: there is a method fire already, give" in refused(capsys, "again.py:Halve")


def test_the_row_of_a_class_with_another_name_is_not_checked(folder, capsys):
    cell = Cell({0: 0.5}, {}, {}, {}, {}, [], 1.0, "", source="0")
    write_row(Path("row.json"), Row("old", {"method": {"class_path": "mine.Halve"}}, {"random_labels": cell}))
    assert "row.json: mine.py:Halve is halve, not old" in refused(capsys, "--check", "row.json")


@pytest.mark.parametrize("config", [{}, 3, {"method": ["mine.Halve"]}])
def test_a_row_that_does_not_name_its_class_is_not_checked(folder, capsys, config):
    cell = Cell({0: 0.5}, {}, {}, {}, {}, [], 1.0, "", source="0")
    write_row(Path("row.json"), Row("halve", config, {"random_labels": cell}))
    assert "the row of halve has no config.method.class_path" in refused(capsys, "--check", "row.json")


def test_a_row_of_another_suite_is_named_before_any_training(folder, capsys, monkeypatch):
    suite = read_suite(Path("suite/suite.yaml"))
    monkeypatch.setattr(command, "evaluate", lambda suite, task, *rest: {"fire": cell})
    cell = Cell({0: 0.5}, {0: 0.5}, {0: 0.5}, {}, {}, [], 1.0, "")
    cell = replace(cell, recipe=recipe_digest(suite.tasks["random_labels"], suite.methods["fire"]))
    row = board("fire")["fire"]
    assert row.cells["random_labels"].suite == "suite/suite.yaml"
    monkeypatch.setattr(check, "evaluate", lambda *rest: pytest.fail("trained"))
    for words, told in (
        ([], f"not that of {SUITE}: name --suite suite/suite.yaml"),
        (["--suite", "suite/suite.yaml"], "not that of suite/suite.yaml: it has changed"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["board", "--check", "out/rows/fire.json", *words])
        assert ended.value.code == 1 and f"the recipe or setting is {told}\n" in capsys.readouterr().out
        write_row(
            Path("out/rows/fire.json"),
            replace(row, cells={"random_labels": replace(cell, recipe="0", suite="suite/suite.yaml")}),
        )


def test_another_file_among_the_rows_is_named_before_the_first_run(folder, capsys):
    Path("out/rows").mkdir(parents=True)
    Path("out/rows/notes.json").write_text("{}")
    assert "out/rows/notes.json is not a row of the board" in refused(capsys, "fire")
    assert not Path("out/random_labels").exists()


def test_a_file_that_fails_says_so(folder, capsys):
    Path("broken.py").write_text("1 / 0")
    assert "broken.py cannot be imported: ZeroDivisionError" in refused(capsys, "broken.py:Halve")


def test_a_suite_that_does_not_exist_is_refused(folder, capsys):
    with pytest.raises(SystemExit):
        main(["board", "fire", "--suite", "nope.yaml"])
    assert "error: nope.yaml does not exist" in capsys.readouterr().err


def test_a_suite_with_wrong_keys_is_refused(folder, capsys):
    path = Path("suite/suite.yaml")
    rule = yaml.safe_load(path.read_text())
    for key, value, told in (
        ("seeds", [0, 100], "must not be reported, got [100]"),
        ("tasks", {"random_labels": {"metric": "val/loss"}}, "less is better: give random_labels mode: min, or"),
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
