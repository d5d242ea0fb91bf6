"""`lightning-fire sweep`: what it tries, what it finds, what it refuses."""

import csv
import sys

import pytest
import yaml
from tiny_recipe import tiny_recipe

from lightning_fire.cli import main
from lightning_fire.compare import sweep

optuna = pytest.importorskip("optuna")
SPACE = """
shrink: {strength: [0.0, 1.0]}
two: {strength: [0.2, 0.4], seed: [1, 2, 3]}
range: {strength: {low: 0.1, high: 0.9}, seed: {low: 1, high: 8, log: true}}
anywhere: {model.init_args.warmup: [0.1, 0.2]}
wrong: {strength: 0.3}
backwards: {strength: {low: 2, high: 1}}
typo: {strenght: [0.1]}
"""
OVERLAY = "intervention: {class_path: ShrinkAndPerturb, init_args: {when: {class_path: AtNewData}}}\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tiny_recipe(tmp_path, dict.fromkeys(yaml.safe_load(SPACE), OVERLAY))
    (folder.parent / "search_space.yaml").write_text(SPACE)
    return folder


def tune(recipe, *words):
    return main(["sweep", str(recipe), "--output", "out", "--jobs", "2", *words])


def test_a_grid_is_tried_as_a_whole_and_gone_on_with(recipe, tmp_path, capsys):
    best = tune(recipe, "--method", "shrink", "--seeds", "1", "--measure", "average")
    text = capsys.readouterr().out
    with open("out/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"strength=0", "strength=1"}
    assert float(rows[0]["average"]) >= float(rows[1]["average"])  # the best first
    assert f"best average accuracy: strength={best['strength']:g}; chosen on the test set" in text
    for value in (0.0, 1.0):
        config = yaml.safe_load((tmp_path / f"out/strength={value:g}/seed0/config.yaml").read_text())
        assert config["intervention"]["init_args"]["strength"] == value

    markers = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("finished.json")}
    assert len(markers) == 2
    assert tune(recipe, "--method", "shrink", "--seeds", "1", "--measure", "average") == best
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("finished.json")} == markers


class Scores:
    """Stands in for training: the score of a setting is known."""

    def __init__(self, monkeypatch, score):
        self.seen, self.score = [], score
        monkeypatch.setattr(sweep, "train", self.train)
        monkeypatch.setattr(sweep, "publish", lambda *args: None)
        monkeypatch.setattr(sweep.report, "numbers", lambda run: run)

    def train(self, runs, jobs, extra):
        setting = extra["intervention"]["init_args"]
        self.seen.append((setting, [run.seed for run in runs]))
        value = self.score(**setting)
        failed = {} if value is not None else {runs[0]: "reason"}
        return {} if failed else {runs[0].method: {run.seed: {"final": value} for run in runs}}, failed


def test_every_point_of_a_grid_is_tried_once(recipe, monkeypatch):
    scores = Scores(monkeypatch, lambda strength, seed: strength + seed)
    assert tune(recipe, "--method", "two", "--seeds", "2", "--first-seed", "5") == {"strength": 0.4, "seed": 3}
    assert sorted((s["strength"], s["seed"]) for s, _ in scores.seen) == [(a, b) for a in (0.2, 0.4) for b in (1, 2, 3)]
    assert all(seeds == [5, 6] for _, seeds in scores.seen)


def test_ranges_are_searched_in_the_same_order_every_time(recipe, monkeypatch):
    scores = Scores(monkeypatch, lambda strength, seed: -abs(strength - 0.7) - abs(seed - 3))
    best = tune(recipe, "--method", "range", "--trials", "30")
    assert abs(best["strength"] - 0.7) < 0.2
    assert abs(best["seed"] - 3) <= 1
    first, scores.seen = scores.seen, []
    assert tune(recipe, "--method", "range", "--trials", "30") == best
    assert scores.seen == first


def test_a_setting_that_fails_does_not_stop_the_sweep(recipe, monkeypatch):
    Scores(monkeypatch, lambda strength: None if strength == 0 else 0.5)
    assert tune(recipe, "--method", "shrink") == {"strength": 1.0}
    Scores(monkeypatch, lambda strength: None)
    with pytest.raises(SystemExit, match="no setting could be trained"):
        tune(recipe, "--method", "shrink")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "nothing"], "no nothing.yaml in"),
        (["--method", "wrong"], "wrong.strength must be a list of values, or low and high (and log: true), got 0.3"),
        (["--method", "backwards"], "backwards.strength must be a list"),
        (["--method", "range"], "say how many settings to try, --trials N"),
        (["--method", "shrink", "--trials", "0"], "--trials must be at least 1, got 0"),
        (["--method", "shrink", "--space", "none.yaml"], "none.yaml"),
        ([], "--method"),
    ],
)
def test_wrong_arguments(recipe, words, message, capsys):
    with pytest.raises(SystemExit):
        tune(recipe, *words)
    assert message in capsys.readouterr().err


def test_a_method_without_a_space_and_a_recipe_without_spaces(recipe, capsys):
    (recipe / "other.yaml").write_text(OVERLAY)
    with pytest.raises(SystemExit):
        tune(recipe, "--method", "other")
    assert "has no search space for 'other'; there are ['anywhere', 'backwards'" in capsys.readouterr().err
    (recipe.parent / "search_space.yaml").unlink()
    with pytest.raises(SystemExit):
        tune(recipe, "--method", "other")
    assert "no search_space.yaml in" in capsys.readouterr().err


def test_without_optuna(recipe, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit):
        tune(recipe, "--method", "shrink")
    assert "pip install 'lightning-fire[sweep]'" in capsys.readouterr().err


def test_names_with_dots_are_keys_of_the_recipe():
    config = sweep.as_config({"model.init_args.warmup": 0.2, "strength": 1e-5})
    assert config == {"model": {"init_args": {"warmup": 0.2}}, "intervention": {"init_args": {"strength": 1e-5}}}
