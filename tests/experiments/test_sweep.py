"""`lightning-fire sweep`: trials, results and errors."""

import csv
import json
import sys
from itertools import groupby

import pytest
import yaml
from tiny_recipe import set_method, tiny_recipe

from lightning_fire.cli import main
from lightning_fire.experiments import sweep
from lightning_fire.experiments.report import Compared, ComparisonReport
from lightning_fire.recipe.recipe import find_recipe

pytest.importorskip("optuna")
SPACE = """
shrink: {strength: [0.0, 1.0]}
two: {strength: [0.2, 0.4], seed: [1, 2, 3]}
range: {strength: {low: 0.1, high: 0.9}, seed: {low: 1, high: 8, log: true}}
anywhere: {model.init_args.warmup: [0.1, 0.2]}
wrong: {strength: 0.3}
backwards: {strength: {low: 2, high: 1}}
log: {strength: {low: 0, high: 1.0, log: true}}
same: {strength: [0.1], method.init_args.strength: [0.2]}
strings: {strength: {low: 1e-5, high: 1e-1, log: true}, seed: [1, 1e-3]}
"""
OVERLAY = "method: {class_path: ShrinkAndPerturb}\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    several = f"method: [{OVERLAY.removeprefix('method: ').strip()}]\n"
    folder = tiny_recipe(tmp_path, {**dict.fromkeys(yaml.safe_load(SPACE), OVERLAY), "several": several})
    (folder.parent / "search_space.yaml").write_text(f"{SPACE}several: {{strength: [0.1]}}\n")
    return folder


def tune(recipe, *words):
    return main(["sweep", str(recipe), "--output", "out", "--jobs", "2", *words])


@pytest.mark.slow
def test_a_grid_is_tried_as_a_whole_and_resumed(recipe, tmp_path, capsys):
    best = tune(recipe, "--method", "shrink", "--seeds", "1", "--measure", "average")
    text = capsys.readouterr().out
    with open("out/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"shrink,strength=0.0", "shrink,strength=1.0"}
    assert float(rows[0]["average"]) >= float(rows[1]["average"])  # the best first
    assert f"best average: shrink,strength={best['strength']}; chosen on the test set" in text
    for value in (0.0, 1.0):
        config = yaml.safe_load((tmp_path / f"out/shrink,strength={value}/seed0/config.yaml").read_text())
        assert config["method"]["init_args"]["strength"] == value

    assert len(list((tmp_path / "out/shared_start").glob("seed0/events*"))) == 1  # one first chunk for all
    assert find_recipe("out/best.yaml").methods["shrink"]["method"]["init_args"]["strength"] == best["strength"]

    markers = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("shrink*/seed*/finished.json")}
    assert len(markers) == 2
    assert tune(recipe, "--method", "shrink", "--seeds", "1", "--measure", "average") == best
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("shrink*/seed*/finished.json")}
    assert after == markers


class Scores:
    """Stands in for training and for the report: the score of a setting is known, and it may fail."""

    def __init__(self, monkeypatch, score):
        self.seen, self.score = [], score
        monkeypatch.setattr(sweep, "train_and_read", self.train_and_read)

    def train_and_read(self, runs, engine, reference, options):
        rows = {}
        for label, of_label in groupby(runs, key=lambda run: run.method):
            of_label = list(of_label)
            setting = of_label[0].configs[-1]["method"]["init_args"]
            setting = {key: value for key, value in setting.items() if key != "when"}
            if not all(run.is_finished() for run in of_label):
                self.seen.append((setting, [run.seed for run in of_label]))
            value = self.score(**setting)
            for run in of_label if value is not None else []:
                rows["", label, run.seed] = {"final": value}
                run.folder.mkdir(parents=True, exist_ok=True)
                (run.folder / "finished.json").write_text(json.dumps({"settings": run.fingerprint()}))
        return (Known(rows) if rows else None), [run for run in runs if ("", run.method, run.seed) not in rows]


class Known(ComparisonReport):
    """A report of numbers that are known."""

    def __init__(self, rows):
        super().__init__(rows, next(iter(rows))[1])

    def measures(self, name):
        return self.curves[name]

    def publish(self, output, title):
        """Show nothing."""


def test_every_point_of_a_grid_is_tried_once(recipe, monkeypatch):
    scores = Scores(monkeypatch, lambda strength, seed: strength + seed)
    assert tune(recipe, "--method", "two", "--seeds", "2", "--first-seed", "5") == {"strength": 0.4, "seed": 3}
    assert sorted((s["strength"], s["seed"]) for s, _ in scores.seen) == [(a, b) for a in (0.2, 0.4) for b in (1, 2, 3)]
    assert all(seeds == [5, 6] for _, seeds in scores.seen)


@pytest.mark.slow
def test_ranges_are_searched_in_the_same_order_every_time(recipe, monkeypatch):
    scores = Scores(monkeypatch, lambda strength, seed: -abs(strength - 0.7) - abs(seed - 3))
    best = tune(recipe, "--method", "range", "--trials", "30")
    assert abs(best["strength"] - 0.7) < 0.2
    assert abs(best["seed"] - 3) <= 1
    first, scores.seen = scores.seen, []
    assert tune(recipe, "--method", "range", "--trials", "30", "--output", "again") == best
    assert scores.seen == first
    scores.seen = []
    tune(recipe, "--method", "range", "--trials", "20", "--output", "again")
    assert tune(recipe, "--method", "range", "--trials", "30", "--output", "again") == best
    assert scores.seen == []  # what was trained is not trained again


def test_pruning_drops_the_worse_half_after_each_seed(recipe, monkeypatch):
    scores = Scores(monkeypatch, lambda strength, seed: strength + seed)
    assert tune(recipe, "--method", "two", "--seeds", "3", "--prune") == {"strength": 0.4, "seed": 3}
    first = [(setting["strength"], setting["seed"]) for setting, seeds in scores.seen if seeds == [0]]
    second = [(setting["strength"], setting["seed"]) for setting, seeds in scores.seen if seeds == [0, 1]]
    third = [(setting["strength"], setting["seed"]) for setting, seeds in scores.seen if seeds == [0, 1, 2]]
    assert (len(first), second, third) == (6, [(0.4, 3), (0.2, 3), (0.4, 2)], [(0.4, 3), (0.2, 3)])


def test_a_setting_that_fails_does_not_stop_the_sweep(recipe, monkeypatch):
    Scores(monkeypatch, lambda strength: None if strength == 0 else 0.5)
    assert tune(recipe, "--method", "shrink") == {"strength": 1.0}
    Scores(monkeypatch, lambda strength: None)
    with pytest.raises(SystemExit, match="no setting could be trained"):
        tune(recipe, "--method", "shrink")


def test_a_setting_that_was_not_measured_is_not_the_best(recipe, monkeypatch):
    Scores(monkeypatch, lambda strength, seed: 0.5 if (strength, seed) == (0.4, 2) else float("nan"))
    assert tune(recipe, "--method", "two") == {"strength": 0.4, "seed": 2}


def test_less_of_a_loss_is_better(recipe, monkeypatch):
    Scores(monkeypatch, lambda strength, seed: strength + seed)
    monkeypatch.setattr(Known, "compared", Compared(mode="min"))
    assert tune(recipe, "--method", "two", "--prune") == {"strength": 0.2, "seed": 1}


@pytest.mark.parametrize(
    ("words", "best"), [([], 0.0), (["--measure", "final"], 1.0)], ids=["of the decision", "named"]
)
def test_it_chooses_by_the_measure_of_the_decision_unless_one_is_named(recipe, monkeypatch, capsys, words, best):
    """Of a stream it is the online metric, in its own direction: an error, though more of `final` is better."""
    Scores(monkeypatch, lambda strength: strength)
    monkeypatch.setattr(Known, "compared", Compared("online_last", "online error", "min"))
    monkeypatch.setattr(
        Known, "measures", lambda self, name: self.curves[name] | {"online_last": self.curves[name]["final"]}
    )
    assert tune(recipe, "--method", "shrink", *words) == {"strength": best}
    assert f"best {'final' if words else 'online_last'}: shrink,strength={best};" in capsys.readouterr().out


def test_numbers_that_yaml_takes_for_strings(recipe, monkeypatch):
    scores = Scores(monkeypatch, lambda strength, seed: strength)
    tune(recipe, "--method", "strings", "--trials", "3")
    assert all(1e-5 <= s["strength"] <= 0.1 and s["seed"] in (1, 1e-3) for s, _ in scores.seen)


def test_labels_are_distinct_names_of_folders(recipe, tmp_path, monkeypatch):
    (tmp_path / "space.yaml").write_text("shrink: {strength: [0.1, 0.1000001, x/y]}")
    Scores(monkeypatch, lambda strength: float(strength != "x/y"))
    tune(recipe, "--method", "shrink", "--space", "space.yaml")
    there = {path.name for path in (tmp_path / "out").glob("shrink*")}
    assert there == {"shrink,strength=0.1", "shrink,strength=0.1000001", "shrink,strength=_x_y_"}


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
        (["--method", "several"], "several is not one callback"),
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
        tune(recipe, "--method", "range", "--trials", "2")
    assert "pip install 'lightning-fire[sweep]'" in capsys.readouterr().err
    Scores(monkeypatch, lambda strength: strength)
    assert tune(recipe, "--method", "shrink") == {"strength": 1.0}  # a grid needs none


def test_names_with_dots_are_keys_of_the_recipe():
    config = sweep.as_config({"model.init_args.warmup": 0.2, "strength": 1e-5})
    assert config == {"model": {"init_args": {"warmup": 0.2}}, "method": {"init_args": {"strength": 1e-5}}}


def test_a_setting_that_fails_does_not_stop_a_pruned_search(recipe, monkeypatch):
    Scores(monkeypatch, lambda strength, seed: None if strength < 0.5 else strength)
    words = ["--method", "range", "--trials", "8", "--seeds", "2", "--prune"]
    assert tune(recipe, *words)["strength"] >= 0.5
