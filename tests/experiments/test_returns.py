"""Comparisons of returns: branches from one training up to the event, numbers, table and picture."""

import csv
import shutil

import numpy as np
import pytest
import yaml
from matplotlib.image import imread
from recipe_files import ROOT

from lightning_fire.cli import main
from lightning_fire.experiments.history import read_scalars
from lightning_fire.experiments.return_history import ReturnHistory, read_returns
from lightning_fire.experiments.return_report import numbers, place_of_events, table
from lightning_fire.experiments.runs import plan
from lightning_fire.experiments.shared_start import with_shared_starts
from lightning_fire.experiments.task_scores import curves_of, read_task
from lightning_fire.recipe.recipe import Recipe

RECIPE = ROOT / "reinforcement_learning" / "dqn" / "cartpole_mlp.yaml"
TINY = (
    "trainer.max_epochs=4 data.init_args.steps_per_epoch=16 data.init_args.initial_steps=16 data.init_args.capacity=64"
    " data.init_args.batch_size=4 data.init_args.evaluation_episodes=2 data.init_args.replay_ratio=1"
)
METHODS = ["vanilla", "fire", "full_reset", "plasticity_injection"]


def history(values, events=(), dfi=(np.nan, np.nan)) -> ReturnHistory:
    steps = 100.0 * np.arange(1, len(values) + 1)
    return ReturnHistory((steps, np.array(values, float)), np.array(events, float), dfi, np.nan)


def test_numbers_of_a_run():
    run = history([1, 2, 3, 4, 5, 6, 7, 8, 9, 20], events=[500], dfi=(0.5, 0.1))
    assert numbers(run, 500) == pytest.approx(
        {"before": 5, "final": 14.5, "since": 10, "dfi_before": 0.5, "dfi_after": 0.1, "sfe": np.nan}, nan_ok=True
    )
    assert np.isnan(run.before(50)) and np.isnan(run.since(1000))


def test_runs_without_events_are_cut_where_the_others_act():
    runs = {"vanilla": {0: history([1, 2, 3, 4])}, "fire": {0: history([1, 2, 5, 6], events=[200])}}
    assert place_of_events(runs) == 200 == place_of_events({"vanilla": runs["vanilla"]})
    lines = table(runs, "vanilla").splitlines()
    assert lines[2].split() == ["vanilla", "1", "2.0", "4.0", "–", "3.5", "–", "→", "–", "–"]
    assert lines[3].split()[2:6] == ["2.0", "6.0", "–", "5.5"]
    idle = table({**runs, "redo": {0: history([1, 2, 3, 4])}}, "vanilla").splitlines()[4]
    assert idle.split()[-3:] == ["never", "acted", "–"]
    runs["vanilla"][1], runs["fire"][1] = history([1, 2, 3, 4]), history([1, 2, 5, 8], events=[200])
    assert "+3.0 (-9.7 to +15.7)" in table(runs, "vanilla").splitlines()[3]


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
        branch, whole = (read_scalars(folder / method / "seed0") for folder in compared.values())
        assert set(whole) <= set(branch), method
        for tag in whole:
            if not tag.endswith("seconds"):
                assert np.array_equal(branch[tag][0], whole[tag][0]), f"{method} {tag}"
                assert np.allclose(branch[tag][1], whole[tag][1], equal_nan=True), f"{method} {tag}"
    assert (compared["branches"] / "shared_start").is_dir() and not (compared["whole"] / "shared_start").exists()


@pytest.mark.slow
def test_leaves_a_table_numbers_and_a_picture(compared):
    folder = compared["branches"]
    assert "before the event" in (folder / "table.txt").read_text()
    with open(folder / "results.csv") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert rows["fire"]["before"] == rows["vanilla"]["before"] and float(rows["fire"]["dfi_after"]) < 0.1
    assert imread(folder / "comparison.png").std() > 0.01


@pytest.mark.slow
def test_two_comparisons_are_summed_up_with_their_curves(compared, tmp_path):
    tasks = [f"{compared['branches']}=0:100", f"{compared['whole']}=0:10"]
    result = main(["aggregate", *tasks, "--output", str(tmp_path)])
    assert list(result) == METHODS and imread(tmp_path / "aggregate.png").shape[1] > 1800  # three panels
    read = [read_task(task, "final") for task in tasks]
    curves = curves_of(read, METHODS)
    for method in METHODS:
        steps, returns = read_returns(compared["branches"] / method / "seed0").returns
        first, second = curves.values[method][0]
        assert first == pytest.approx(np.interp(curves.grid, steps / steps[-1], returns) / 100)
        assert second == pytest.approx(10 * first)  # branches are whole runs
    assert curves.event == 0.6 and curves.grid[[0, -1]] == pytest.approx([0.4, 1])
    shutil.copy(compared["whole"] / "results.csv", tmp_path)
    assert curves_of([read_task(str(tmp_path), "final")], METHODS) is None


@pytest.mark.slow
def test_a_method_that_is_added_later_goes_on_from_a_start_that_was_kept(compared, tmp_path):
    words = ["--seeds", "1", "--jobs", "2", "--output", str(tmp_path), "--keep-starts", "--set", *TINY.split()]
    start = tmp_path / "shared_start" / "seed0" / "start.ckpt"
    main(["compare", str(RECIPE), "--methods", "vanilla", "fire", *words])
    made = start.stat().st_mtime_ns
    assert not (compared["branches"] / "shared_start" / "seed0" / "start.ckpt").exists()
    main(["compare", str(RECIPE), "--methods", "full_reset", *words])
    assert start.stat().st_mtime_ns == made
    assert yaml.safe_load((tmp_path / "full_reset" / "seed0" / "run.yaml").read_text())["ckpt_path"] == str(start)
    late, early = (read_returns(folder / "full_reset" / "seed0") for folder in (tmp_path, compared["branches"]))
    assert np.array_equal(late.returns, early.returns)


@pytest.mark.slow
def test_the_event_is_at_half_of_training(compared):
    scalars = read_scalars(compared["branches"] / "fire" / "seed0")
    assert scalars["train/environment_steps"][1].tolist() == [32, 48, 64, 80]
    assert scalars["fire/event"][0].tolist() == [4]  # rounds of 8 steps


def resets(*fractions: float) -> dict:
    methods = [
        {"class_path": "FullReset", "init_args": {"when": {"class_path": "AtFraction", "init_args": {"fraction": f}}}}
        for f in fractions
    ]
    return {"intervention": methods}


@pytest.mark.parametrize("epochs, until", [(10, 5), (9, 5), (30, 15), (1, None)])
def test_methods_that_wait_for_the_same_share_of_training_have_one_start(tmp_path, epochs, until):
    methods = {"first": resets(0.5), "second": resets(0.5, 0.5), "later": resets(0.9), "mixed": resets(0.5, 0.9)}
    recipe = Recipe(tmp_path / "mine.yaml", {"trainer": {"max_epochs": epochs}}, methods)
    runs = plan(recipe, ["vanilla", *methods], [0], tmp_path / "out")
    starts = {run.method: run.start for run in with_shared_starts(runs, {})}
    sharing = {method for method, start in starts.items() if start is not None}
    assert sharing == ({"vanilla", "first", "second"} if until else set())
    assert not until or starts["first"].checkpoint_epochs == until
    with_steps = with_shared_starts(runs, {"trainer": {"max_steps": 100}})
    assert all(run.start is None for run in with_steps)
