"""Trainings that are killed at random times and resumed: nothing is lost, nothing done twice."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from killed_processes import KILLED
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils._pytree import tree_flatten

from lightning_fire.experiments.training import clear_run

SUPPORT = Path(__file__).parents[1] / "support"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")


def lives_of(program: str, folder: Path, *words: object) -> dict[str, list[dict]]:
    """Run a helper program, its temporary files in `folder`; return its reports of each life, by training."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    command = [sys.executable, str(SUPPORT / program), str(folder), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lives = defaultdict(list)
    for life in [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]:
        assert life["code"] in (0, KILLED), done.stderr
        lives[life["training"]].append(life)
    return lives


METHODS = {"fire": "FIRECallback", "shrink_and_perturb": "ShrinkAndPerturb", "optimizer_reset": "OptimizerReset"}


def in_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return step and number of the events of a log of TensorBoard."""
    if not folder.is_dir():
        return {}  # killed before it began
    log = EventAccumulator(str(folder)).Reload()
    tags = [tag for tag in log.Tags()["scalars"] if tag.endswith("/event")]
    return {tag.partition("/")[0]: [(event.step, event.value) for event in log.Scalars(tag)] for tag in tags}


def logged_events(folder: Path, lives: list[dict]) -> dict[str, list[tuple[int, float]]]:
    """Return step and number of each event in the logs of lives, by method, but those that a kill has undone.

    These are the events that the last checkpoint before the kill does not count.
    """
    events = defaultdict(list)
    for number, life in enumerate(lives):
        for name, moments in in_tensorboard(folder / "tensorboard" / f"life{number}").items():
            events[name] += [moment for moment in moments if moment[1] <= life["counts"].get(METHODS[name], 0)]
    return {name: moments for name, moments in events.items() if moments}


EVENTS = {
    "fire": [(6, 1.0), (18, 2.0)],
    "optimizer_reset": [(6, 1.0), (18, 2.0)],
    "shrink_and_perturb": [(7, 1.0), (14, 2.0), (21, 3.0), (28, 4.0)],
}


@pytest.mark.slow(10)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.crash)])
def test_a_training_that_is_killed_many_times_is_the_undisturbed_one(tmp_path, kills):
    lives = lives_of("killed_training.py", tmp_path, kills)
    weights, counts = torch.load(tmp_path / "whole" / "weights.pt"), lives.pop("whole")[-1]["counts"]
    assert counts == {
        "FIRECallback": 2,
        "OptimizerReset": 2,
        "ShrinkAndPerturb": 4,
        "ContinualBackprop": pytest.approx(96, rel=0.5),
    }
    assert [life["code"] for training in lives.values() for life in training].count(KILLED) == kills
    for name, training in lives.items():
        assert [life["unreadable"] for life in training] == [[]] * len(training), name
        assert training[-1]["counts"] == counts, name
        for key, tensor in torch.load(tmp_path / name / "weights.pt").items():
            assert torch.equal(tensor, weights[key]), f"{key} of {name} differs"
        assert logged_events(tmp_path / name, training) == EVENTS, name


def results_in(folder: Path) -> dict[str, str]:
    """Return the files of a comparison without its figures."""
    return {name: (folder / name).read_text() for name in ("table.txt", "results.csv", "summary.csv")}


@pytest.mark.crash
def test_a_comparison_that_is_killed_ends_its_trainings_and_comes_to_the_same_results(tmp_path):
    lives = lives_of("killed_comparison.py", tmp_path, "trainings")
    assert [life["code"] for life in lives.pop("orphan")] == [KILLED]
    assert sum(len(codes) - 1 for codes in lives.values()) == 3
    for name, codes in lives.items():
        assert [life["code"] for life in codes] == [*[KILLED] * (len(codes) - 1), 0], name
        assert results_in(tmp_path / name) == results_in(tmp_path / "whole"), name


@pytest.mark.slow(10)
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.crash)])
def test_a_comparison_may_be_killed_before_any_change_to_the_disk(tmp_path, every):
    """Its trainings take no time here; started again, it has a method more."""
    lives = lives_of("killed_comparison.py", tmp_path, "files", every)
    assert len(lives) > 50 / every
    *killed, (whole, _) = lives.values()
    assert [first["code"] for first, _ in killed] == [KILLED] * len(killed)
    assert (whole["code"], len(whole["files"])) == (0, 4)
    expected = results_in(tmp_path / list(lives)[-1])
    for name, (first, second) in lives.items():
        assert first["files"].items() <= whole["files"].items(), f"half a file in {name}"
        assert second["code"] == 0, name
        assert not list((tmp_path / name).rglob("start.*")), name
        assert results_in(tmp_path / name) == expected, name


@pytest.mark.parametrize("last", range(4))
def test_what_an_interrupted_run_left_is_removed_also_if_that_is_interrupted(tmp_path, monkeypatch, last):
    folder = tmp_path / "fire" / "seed0"
    names = ["log.txt", "run.yaml", "finished.json", "progress.json", "events.out.tfevents.1", "config.yaml"]
    (folder / "checkpoints").mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    unlink, done = Path.unlink, []

    def stopped(path, **options):
        done.append(path.name)
        if len(done) > last:
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stopped)
        with pytest.raises(KeyboardInterrupt):
            clear_run(folder)
    assert (folder / "finished.json").exists() == (last == 0)  # it goes first
    clear_run(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "run.yaml"]


@pytest.mark.slow(20)
@pytest.mark.parametrize("kills", [1, pytest.param(42, marks=pytest.mark.crash)])
def test_killed_fits_with_schedulers_and_averages_end_as_if_whole(tmp_path, kills):
    pytest.importorskip("transformers")
    lives = lives_of("killed_fits.py", tmp_path, kills)
    assert sum(life["code"] == KILLED for training in lives.values() for life in training) == 6 * kills
    for name in lives:
        ends = [torch.load(tmp_path / name / of / "end.pt", weights_only=False) for of in (".", "../whole")]
        (killed, shape), (whole, whole_shape) = map(tree_flatten, ends)
        assert shape == whole_shape, name
        for one, other in zip(killed, whole, strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, name
