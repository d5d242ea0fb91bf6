"""Comparisons of returns: branches from one training up to the event, numbers, table and figure."""

import csv

import numpy as np
import pytest
import yaml
from history import named
from matplotlib.image import imread
from recipe_files import ROOT

from lightning_fire.cli import main
from lightning_fire.experiments.branching import with_shared_starts
from lightning_fire.experiments.logs import read_curves
from lightning_fire.experiments.returns import ReturnReport, returns_of
from lightning_fire.experiments.runs import plan
from lightning_fire.recipe.recipe import Recipe

RECIPE = ROOT / "reinforcement_learning" / "dqn" / "cartpole_mlp.yaml"
TINY = (
    "trainer.max_epochs=4 data.init_args.steps_per_epoch=16 data.init_args.initial_steps=16 data.init_args.capacity=64"
    " data.init_args.batch_size=4 data.init_args.evaluation_episodes=2 data.init_args.replay_ratio=1"
)
METHODS = ["vanilla", "fire", "full_reset", "plasticity_injection"]


def history(values, events=(), dfi=None):
    """Evaluations each 100 environment steps, an update each."""
    steps = 100 * np.arange(1, len(values) + 1)
    curves = {"val/episode_return": (steps, np.array(values, float)), "train/environment_steps": (steps, steps)}
    if len(events):
        curves["fire/event"] = (np.array(events), np.arange(1, len(events) + 1))
    if dfi:
        before, after = dfi
        curves["fire/dfi_normalized_before"] = (np.array(events), np.array([before]))
        curves["fire/dfi_normalized_after"] = (np.array(events), np.array([after]))
    return curves


def report_of(**methods):
    return ReturnReport(named({method: dict(enumerate(runs)) for method, runs in methods.items()}), "vanilla")


def test_numbers_of_a_run():
    report = report_of(fire=[history([1, 2, 3, 4, 5, 6, 7, 8, 9, 20], events=[500], dfi=(0.5, 0.1))])
    assert report.numbers.iloc[0].to_dict() == pytest.approx(
        {
            "before": 5,
            "final": 14.5,
            "since": 10,
            "dfi_before": 0.5,
            "dfi_after": 0.1,
            "sfe": np.nan,
            "units_reset": np.nan,
        },
        nan_ok=True,
    )
    early, late = report_of(fire=[history([1, 2], events=[100])]), report_of(fire=[history([1, 2], events=[200])])
    assert early.numbers["before"].item() == 1 and np.isnan(late.numbers["since"].item())


def test_runs_without_events_are_cut_where_the_others_act():
    runs = {"vanilla": [history([1, 2, 3, 4])], "fire": [history([1, 2, 5, 6], events=[200])]}
    assert report_of(**runs).event == 200 == report_of(vanilla=runs["vanilla"]).event
    lines = report_of(**runs).table().splitlines()
    assert lines[2].split() == ["vanilla", "1", "2.0", "4.0", "–", "3.5", "–", "→", "–", "–"]
    assert lines[3].split()[2:6] == ["2.0", "6.0", "–", "5.5"]
    idle = report_of(**runs, redo=[history([1, 2, 3, 4])]).table().splitlines()[4]
    assert idle.split()[-3:] == ["never", "acted", "–"]
    runs = {"vanilla": 2 * runs["vanilla"], "fire": [*runs["fire"], history([1, 2, 5, 8], events=[200])]}
    assert "+3.0 (-9.7 to +15.7)" in report_of(**runs).table().splitlines()[3]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The same comparison with branches, and with each run by itself."""
    folders = {}
    for name, words in (("branches", []), ("whole", ["--no-shared-start"])):
        folders[name] = tmp_path_factory.mktemp(name)
        words = ["--methods", *METHODS, "--seeds", "1", "--jobs", "2", "--output", str(folders[name]), *words]
        main(["compare", str(RECIPE), *words, "--set", *TINY.split()])
    return folders


@pytest.mark.slow
def test_branches_equal_whole_trainings(compared):
    for method in METHODS:
        branch, whole = (read_curves(folder / method / "seed0") for folder in compared.values())
        assert set(whole) <= set(branch), method
        for tag in whole:
            if not tag.endswith("seconds"):
                assert np.array_equal(branch[tag][0], whole[tag][0]), f"{method} {tag}"
                assert np.allclose(branch[tag][1], whole[tag][1], equal_nan=True), f"{method} {tag}"
    assert (compared["branches"] / "shared_start").is_dir() and not (compared["whole"] / "shared_start").exists()


@pytest.mark.slow
def test_writes_a_table_numbers_and_a_figure(compared):
    folder = compared["branches"]
    assert "before the event" in (folder / "table.txt").read_text()
    with open(folder / "results.csv") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert rows["fire"]["before"] == rows["vanilla"]["before"] and float(rows["fire"]["dfi_after"]) < 0.1
    assert imread(folder / "comparison.png").std() > 0.01


@pytest.mark.slow
def test_a_method_that_is_added_later_continues_from_a_start_that_was_kept(compared, tmp_path):
    words = ["--seeds", "1", "--jobs", "2", "--output", str(tmp_path), "--keep-starts", "--set", *TINY.split()]
    start = tmp_path / "shared_start" / "seed0" / "start.ckpt"
    main(["compare", str(RECIPE), "--methods", "vanilla", "fire", *words])
    made = start.stat().st_mtime_ns
    assert not (compared["branches"] / "shared_start" / "seed0" / "start.ckpt").exists()
    main(["compare", str(RECIPE), "--methods", "full_reset", *words])
    assert start.stat().st_mtime_ns == made
    assert yaml.safe_load((tmp_path / "full_reset" / "seed0" / "run.yaml").read_text())["ckpt_path"] == str(start)
    late, early = (read_curves(folder / "full_reset" / "seed0") for folder in (tmp_path, compared["branches"]))
    assert np.array_equal(returns_of(late), returns_of(early))


@pytest.mark.slow
def test_the_event_is_after_the_first_rollout_of_the_second_half(compared):
    scalars = read_curves(compared["branches"] / "fire" / "seed0")
    assert not any(key.startswith(("charts/", "losses/")) for key in scalars)  # too long a table
    assert scalars["train/environment_steps"][1].tolist() == [32, 48, 64, 80]
    assert scalars["fire/event"][0].tolist() == [56]


def resets(*fractions: float) -> dict:
    whens = [{"class_path": "AtFraction", "init_args": {"fraction": fraction}} for fraction in fractions]
    methods = [{"method": {"class_path": "FullReset"}, "when": when} for when in whens]
    return {"method": [{"class_path": "PlasticityCallback", "init_args": method} for method in methods]}


@pytest.mark.parametrize("epochs, until", [(10, 5), (9, 5), (30, 15), (1, None)])
def test_methods_that_wait_for_the_same_fraction_of_training_have_one_start(tmp_path, epochs, until):
    methods = {"first": resets(0.5), "second": resets(0.5, 0.5), "later": resets(0.9), "mixed": resets(0.5, 0.9)}
    recipe = Recipe(tmp_path / "mine.yaml", {"trainer": {"max_epochs": epochs}}, methods)
    runs = plan(recipe, ["vanilla", *methods], [0], tmp_path / "out")
    starts = {run.method: run.start for run in with_shared_starts(runs)}
    sharing = {method for method, start in starts.items() if start is not None}
    assert sharing == ({"vanilla", "first", "second"} if until else set())
    assert not until or starts["first"].saves == {"start.ckpt": until}
    with_steps = plan(recipe, ["vanilla", *methods], [0], tmp_path / "out", {"trainer": {"max_steps": 100}})
    assert all(run.start is None for run in with_shared_starts(with_steps))


def test_the_decision_is_of_final_returns():
    ends = {"vanilla": [100, 101], "full_reset": [140, 142], "fire": [180, 181.5]}
    report = report_of(**{method: [history([1, 2, end], [100]) for end in of] for method, of in ends.items()})
    decision = report.decisions(worth=5.0)[""]
    half = 12.706205 * 0.5
    assert report_of(vanilla=[history([1])]).decisions()[""].choice is None
    assert decision.warm_start.gain == pytest.approx(-40.5) and decision.worth == 5
    assert decision.warm_start.high == pytest.approx(half - 40.5)  # Holm's last step, as all differences are shown
    assert "return" in decision.text and "nan" not in decision.text
