"""Recipes that train by a function: what it gets, what is compared, and each mistake."""

import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tiny_recipe import error_of

from lightning_fire.cli import main
from lightning_fire.experiments import compare as compare_command
from lightning_fire.experiments.branching import with_shared_starts
from lightning_fire.experiments.logs import read_curves
from lightning_fire.experiments.runs import plan
from lightning_fire.experiments.training import perform
from lightning_fire.methods import FIRE
from lightning_fire.recipe.recipe import find_recipe

MINE = """
import random

import numpy as np
import torch

calls = []


def train(seed, method, log, tasks: int = 5, rate: float = 0.1):
    calls.append((seed, method, tasks, rate, random.random(), np.random.rand(), torch.rand(1).item()))
    weight = torch.nn.Linear(4, 4)
    for task in range(tasks):
        if task == tasks - 1 and method is not None:
            method(weight)
        log("loss", rate * weight.weight.norm(), task)
    return weight


def silent(seed, method, log):
    log("accuracy", 1.0, 0)


def leaving(seed, method, log):
    raise SystemExit(0)


def lacking(seed, method): ...


number = 3
"""
RECIPE = {
    "train": {"function": "own_loop.train", "init_args": {"tasks": 10}},
    "methods": {
        "fire": {"class_path": "FIRE", "init_args": {"steps": 5}},
        "idle": {},
        "slow": {"train": {"init_args": {"rate": 0.01}}},
    },
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a function and its recipe; return the module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_loop.py").write_text(MINE)
    Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    import own_loop

    return own_loop


class Here:
    """Engine that trains in this process."""

    limit = 2

    def __init__(self, *_):
        self.result = None

    def begin(self, runs):
        jobs = [Here() for _ in runs]
        for job, run in zip(jobs, runs, strict=True):
            job.result = perform(run, partial(self.fit, run))
        return jobs

    def fit(self, run, words):
        try:
            main(["fit", *words])
        except (SystemExit, ValueError, RuntimeError) as error:
            return str(error)
        return None

    def ended(self):
        return True

    def failure(self):
        return self.result

    def close(self): ...


@pytest.fixture
def here(mine, monkeypatch):
    monkeypatch.setattr(compare_command, "engine_for", Here)
    return mine


def test_the_function_gets_seed_method_and_its_arguments_and_logs_into_a_new_folder(mine):
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    weight = main(["fit", "recipe.yaml", "--method", "fire", "--seed_everything", "7", "--train.init_args.rate", "1"])
    assert mine.calls == [(7, FIRE(steps=5), 10, 1.0, *expected)]
    steps, values = read_curves(Path("lightning_logs/version_0"))["loss"]
    assert steps.tolist() == list(range(10))
    assert values[-1] == np.float32(weight.weight.norm().item()) != values[0]
    written = yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text())
    assert written["train"]["init_args"] == {"tasks": 10, "rate": 1.0}
    main(["fit", "-c", "lightning_logs/version_0/config.yaml"])
    assert mine.calls[1] == mine.calls[0]
    main(["fit", "recipe.yaml"])
    assert mine.calls[2][:4] == (0, None, 10, 0.1)
    assert Path("lightning_logs/version_2").is_dir()


MISTAKES = {
    "-c {train: {init_args: {task: 3}}}": "own_loop.train has no argument task; did you mean tasks?",
    "--train.init_args.tasks abc": "train.init_args.tasks must be int, got abc",
    "-c {train: {function: own_loop.tran}}": "own_loop has no function tran; did you mean train?",
    "-c {train: {function: own_lop.train}}": "there is no module own_lop, installed or in the current folder",
    "-c {train: {function: own_loop.number}}": "own_loop.number is not a function",
    "-c {train: {function: own_loop.lacking}}": "must take seed, method and log, and lacks log",
    "-c {train: own_loop.train}": "`train` must name its function",
    "-c {model: {class_path: Classifier}}": "it has model beside `train`",
    "-c {data: {}, when: AtNewData}": "it has data, when beside `train`",
    "-c {method: [{class_path: FIRE}]}": "a function gets one method, and this is a list",
    "-c {tran: {}}": "unknown key tran",
    "--when AtNewData": "--when",
    "--method fire --method.stps 3": "stps",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_an_error_before_the_function_is_called(mine, capsys, words):
    option, _, value = words.partition(" ")
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "recipe.yaml", option, *([value] if option == "-c" else value.split())])
    assert MISTAKES[words] in " ".join(capsys.readouterr().err.split())
    assert mine.calls == [] and not Path("lightning_logs").exists()


def test_other_commands_are_an_error(mine, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["validate", "recipe.yaml"])
    assert "the recipe trains by a function, for which there is no validate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        ("silent", ValueError, "own_loop.silent has returned without logging loss, .* it has logged accuracy"),
        ("leaving", RuntimeError, r"own_loop.leaving has ended the process by exit\(0\)"),
    ],
)
def test_a_function_that_leaves_no_metric_is_an_error(mine, function, kind, message):
    words = ["-c", f"train: {{function: own_loop.{function}, metric: loss}}"]
    with pytest.raises(kind, match=message):
        main(["fit", *words])


def compare(*words):
    return main(
        ["compare", "recipe.yaml", "--output", "out", "--seeds", "2", "--metric", "loss", "--mode", "min", *words]
    )


def test_compare_reports_the_last_fifth_and_the_mean_of_what_is_logged(here, capsys):
    numbers = compare("--methods", "vanilla", "fire", "idle", "slow")
    assert len(here.calls) == 8
    _, values = read_curves(Path("out/fire/seed1"))["loss"]
    assert numbers.loc["", "fire", 1].tolist()[:2] == pytest.approx([values[-2:].mean(), values.mean()])
    assert numbers.loc["", "slow", 0]["final"] == pytest.approx(0.1 * numbers.loc["", "vanilla", 0]["final"])
    shown = capsys.readouterr().out
    assert "final loss" in shown and "less is better" in shown
    assert [row.split()[0] for row in shown.splitlines() if "never acted" in row] == ["idle", "Decision:"]
    assert json.loads(Path("out/fire/seed1/progress.json").read_text())[-2]  # ended
    compare("--methods", "vanilla", "fire", "idle", "slow")
    assert len(here.calls) == 8  # finished runs are not run again
    compare("--methods", "vanilla", "--set", "train.init_args.rate=0.2")
    assert [call[3] for call in here.calls[8:]] == [0.2, 0.2]


def test_the_recipe_can_name_the_metric(here, capsys):
    Path("recipe.yaml").write_text(
        yaml.safe_dump(RECIPE | {"train": {**RECIPE["train"], "metric": "loss", "mode": "max"}})
    )
    main(["compare", "recipe.yaml", "--output", "out", "--seeds", "1", "--methods", "vanilla"])
    shown = capsys.readouterr().out
    assert "final loss" in shown and "loss: more is better." in shown and "less is better" not in shown
    with pytest.raises(SystemExit):
        main(["compare", "recipe.yaml", "--output", "out", "--seeds", "1", "--methods", "vanilla", "--metric", "los"])
    assert "has not logged los, as the function of the recipe does" in capsys.readouterr().out


def test_without_a_metric_nothing_is_trained(here, capsys):
    assert "with --metric or as train.metric" in error_of(["compare", "recipe.yaml", "--methods", "vanilla"], capsys)
    assert here.calls == []


def test_without_the_direction_of_a_loss_nothing_is_trained(here, capsys):
    """Nor tuned; --mode and the recipe may say it."""
    words = ["recipe.yaml", "--metric", "loss", "--seeds", "1"]
    told = "the name of loss suggests that less is better: give --mode min"
    assert told in error_of(["compare", *words, "--methods", "fire"], capsys)
    Path("space.yaml").write_text("fire: {steps: [5, 6]}")
    assert told in error_of(["sweep", *words, "--method", "fire", "--space", "space.yaml"], capsys)
    Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"train": {**RECIPE["train"], "metric": "loss"}}))
    assert f"{told} or train.mode: min, or" in error_of(["compare", "recipe.yaml", "--methods", "fire"], capsys)
    assert here.calls == []


def test_a_run_that_was_interrupted_begins_again(mine):
    (run,) = plan(find_recipe("recipe.yaml"), ["fire"], [3], Path("out"))
    run.folder.mkdir(parents=True)
    run.log.touch()
    assert perform(run, lambda words: 1) == 1
    (run.folder / "events.out.tfevents.half").touch()
    assert not run.is_finished()
    assert perform(run, partial(Here().fit, run)) is None
    assert run.is_finished() and not (run.folder / "events.out.tfevents.half").exists()


def test_runs_share_no_start(mine):
    runs = plan(find_recipe("recipe.yaml"), ["vanilla", "fire"], [0], Path("out"))
    assert [run.start for run in with_shared_starts(runs)] == [None, None]


def test_a_sweep_tries_arguments_of_method_and_function(here, tmp_path, monkeypatch):
    from lightning_fire.experiments import sweep

    monkeypatch.setattr(sweep, "engine_for", Here)
    Path("space.yaml").write_text("fire: {steps: [5, 6], train.init_args.rate: [0.2, 0.1]}")
    words = ["--method", "fire", "--space", "space.yaml", "--seeds", "1", "--metric", "loss", "--mode", "min"]
    best = main(["sweep", "recipe.yaml", *words])
    assert best["train.init_args.rate"] == 0.1
    assert {(call[1].steps, call[3]) for call in here.calls} == {(5, 0.2), (5, 0.1), (6, 0.2), (6, 0.1)}
