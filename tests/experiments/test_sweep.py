"""`lightning-fire sweep`: what it tries, what it finds, what it refuses."""

import csv
import sys

import pytest
import yaml
from tiny_recipe import set_method, tiny_recipe

from lightning_fire.cli import main
from lightning_fire.experiments import sweep

optuna = pytest.importorskip("optuna")
SPACE = """
shrink: {strength: [0.0, 1.0]}
two: {strength: [0.2, 0.4], seed: [1, 2, 3]}
range: {strength: {low: 0.1, high: 0.9}, seed: {low: 1, high: 8, log: true}}
anywhere: {model.init_args.warmup: [0.1, 0.2]}
wrong: {strength: 0.3}
backwards: {strength: {low: 2, high: 1}}
log: {strength: {low: 0, high: 1.0, log: true}}
same: {strength: [0.1], intervention.init_args.strength: [0.2]}
strings: {strength: {low: 1e-5, high: 1e-1, log: true}, seed: [1, 1e-3]}
"""
OVERLAY = "intervention: {class_path: ShrinkAndPerturb, init_args: {when: {class_path: AtNewData}}}\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    several = f"intervention: [{OVERLAY.removeprefix('intervention: ').strip()}]\n"
    folder = tiny_recipe(tmp_path, {**dict.fromkeys(yaml.safe_load(SPACE), OVERLAY), "several": several})
    (folder.parent / "search_space.yaml").write_text(f"{SPACE}several: {{strength: [0.1]}}\n")
    return folder


def tune(recipe, *words):
    return main(["sweep", str(recipe), "--output", "out", "--jobs", "2", *words])


@pytest.mark.slow
def test_a_grid_is_tried_as_a_whole_and_gone_on_with(recipe, tmp_path, capsys):
    best = tune(recipe, "--method", "shrink", "--seeds", "1", "--measure", "average")
    text = capsys.readouterr().out
    with open("out/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"shrink,strength=0.0", "shrink,strength=1.0"}
    assert float(rows[0]["average"]) >= float(rows[1]["average"])  # the best first
    assert f"best average accuracy: shrink,strength={best['strength']}; chosen on the test set" in text
    for value in (0.0, 1.0):
        config = yaml.safe_load((tmp_path / f"out/shrink,strength={value}/seed0/config.yaml").read_text())
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
    best = tune(recipe, "--method", "range", "--trials", "60")
    assert abs(best["strength"] - 0.7) < 0.2
    assert abs(best["seed"] - 3) <= 1
    first, scores.seen = scores.seen, []
    assert tune(recipe, "--method", "range", "--trials", "60") == best
    assert scores.seen == first


def test_a_setting_that_fails_does_not_stop_the_sweep(recipe, monkeypatch):
    Scores(monkeypatch, lambda strength: None if strength == 0 else 0.5)
    assert tune(recipe, "--method", "shrink") == {"strength": 1.0}
    Scores(monkeypatch, lambda strength: None)
    with pytest.raises(SystemExit, match="no setting could be trained"):
        tune(recipe, "--method", "shrink")


def test_a_setting_that_was_not_measured_is_not_the_best(recipe, monkeypatch):
    Scores(monkeypatch, lambda strength, seed: 0.5 if (strength, seed) == (0.4, 2) else float("nan"))
    assert tune(recipe, "--method", "two") == {"strength": 0.4, "seed": 2}


def test_numbers_that_yaml_takes_for_strings(recipe, monkeypatch):
    scores = Scores(monkeypatch, lambda strength, seed: strength)
    tune(recipe, "--method", "strings", "--trials", "3")
    assert all(1e-5 <= s["strength"] <= 0.1 and s["seed"] in (1, 1e-3) for s, _ in scores.seen)


@pytest.mark.slow
def test_keys_of_the_recipe_are_tried_too(recipe, tmp_path):
    assert tune(recipe, "--method", "anywhere", "--seeds", "1", "--trials", "1")["model.init_args.warmup"] in (0.1, 0.2)
    (config,) = (tmp_path / "out").rglob("config.yaml")
    assert f"warmup={yaml.safe_load(config.read_text())['model']['init_args']['warmup']}" in str(config)


def test_labels_tell_settings_apart_and_are_names_of_folders():
    assert sweep._label("m", {"a": 0.1}) != sweep._label("m", {"a": 0.1000001})
    assert "/" not in sweep._label("m", {"a": "x/y"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "nothing"], "has no method nothing; there are vanilla, shrink, two"),
        (
            ["--method", "wrong"],
            "wrong.strength must be a list of values, or numbers low and high, above 0 with log: true; got 0.3",
        ),
        (["--method", "backwards"], "backwards.strength must be a list"),
        (["--method", "log"], "above 0 with log: true"),
        (["--method", "same"], "which are the same"),
        (["--method", "several"], "several has not one intervention"),
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
    set_method(recipe, "other", OVERLAY)
    with pytest.raises(SystemExit):
        tune(recipe, "--method", "other")
    assert "has no search space for 'other'; there are ['anywhere', 'backwards'" in capsys.readouterr().err
    (recipe.parent / "search_space.yaml").unlink()
    with pytest.raises(SystemExit):
        tune(recipe, "--method", "other")
    assert "no search_space.yaml beside" in capsys.readouterr().err


def test_without_optuna(recipe, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit):
        tune(recipe, "--method", "shrink")
    assert "pip install 'lightning-fire[sweep]'" in capsys.readouterr().err


def test_names_with_dots_are_keys_of_the_recipe():
    config = sweep.as_config({"model.init_args.warmup": 0.2, "strength": 1e-5})
    assert config == {"model": {"init_args": {"warmup": 0.2}}, "intervention": {"init_args": {"strength": 1e-5}}}
