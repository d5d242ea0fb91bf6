"""The table, the sentence and the figure of a comparison on a stream, from runs with known numbers."""

import csv
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from history import HISTORY
from torch.utils.tensorboard import SummaryWriter

from lightning_fire.experiments.chunks import Metric
from lightning_fire.experiments.logs import read_curves
from lightning_fire.experiments.streams import StreamReport, report_of_chunks

TASKS, EPOCHS = 10, 2


def log(folder: Path, online, acted: bool, dormant: float = 0.25) -> None:
    """Write the logs of a run on 10 tasks of 2 epochs, 5 steps each."""
    with SummaryWriter(str(folder)) as writer:
        for epoch in range(TASKS * EPOCHS):
            task, last = divmod(epoch, EPOCHS)
            writer.add_scalar("plasticity/chunk", task, 5 * epoch)
            writer.add_scalar("plasticity/dfi_normalized", 1.0, 5 * epoch + 4)
            if last:
                writer.add_scalar("val/accuracy", online[task] + 0.1, 5 * epoch + 4)
                writer.add_scalar("train/online_accuracy", online[task], 5 * epoch + 4)
                writer.add_scalar("plasticity/dormant_fraction", dormant, 5 * epoch + 4)
            elif acted and task:
                writer.add_scalar("fire/event", task, 5 * epoch)


FALLING, RISING = np.linspace(0.5, 0.14, TASKS), np.linspace(0.5, 0.86, TASKS)


@pytest.fixture
def histories(tmp_path):
    """Seeds differ by ±0.01; `level` by more, in both directions; `idle` never acts."""
    curves = {
        "vanilla": lambda seed: FALLING + 0.01 * seed,
        "level": lambda seed: np.full(TASKS, 0.5) + 0.05 * seed * np.linspace(-1, 1, TASKS),
        "idle": lambda seed: FALLING + 0.01 * seed,
        "fire": lambda seed: RISING + 0.01 * seed + 0.02 * seed**2 * np.linspace(0, 1, TASKS),
    }
    found = {}
    for method, curve in curves.items():
        for seed in (-1, 0, 1):
            log(tmp_path / "runs" / method / f"seed{seed}", curve(seed), acted=method in ("level", "fire"))
            found["", method, seed] = read_curves(tmp_path / "runs" / method / f"seed{seed}")
    return found


METRIC = Metric()


def report_of(curves, metric=METRIC):
    return report_of_chunks(curves, "vanilla", metric)


def test_only_runs_with_online_accuracy_are_streams(histories):
    assert isinstance(report_of(histories), StreamReport)
    for other in (HISTORY, {key: of for key, of in histories["", "fire", 0].items() if key != "train/online_accuracy"}):
        assert not isinstance(report_of(histories | {("", "other", 0): other}), StreamReport)


def test_table(histories):
    lines = report_of(histories).table().splitlines()
    cells = {line.split("  ")[0]: [cell.strip() for cell in line.split("  ") if cell] for line in lines}
    # FALLING: 0.5, 0.46, … 0.14; the first and last fifth are two tasks
    assert cells["vanilla"] == ["vanilla", "3", "0.480 ± 0.010", "0.160 ± 0.010", "0", "0.260 ± 0.010", "0.250 ± 0.000"]
    assert "never acted" in cells["idle"]
    # of the seeds of `fire`: 0.84 plus (-0.01, 0, 0.01) plus 0.02 · 17/18 for two of them
    less = np.array([0.68 + 0.02 * 17 / 18, 0.68, 0.68 + 0.02 * 17 / 18])
    half = 4.302653 * less.std(ddof=1) / np.sqrt(3)
    assert cells["fire"][4] == f"+{less.mean():.3f} (+{less.mean() - half:.3f} to +{less.mean() + half:.3f})"


def test_sentence(histories):
    assert report_of(histories).remarks() == [
        "From the first tasks to the last, lost online accuracy: vanilla -32 points (0.48 to 0.16), idle -32 points"
        " (0.48 to 0.16); neither lost nor gained: level; gained: fire +33 points (0.52 to 0.85)."
    ]
    name = ("", "vanilla", 0)
    assert report_of({name: histories[name]}).remarks() == []


def test_everything_is_written(histories, tmp_path, capsys):
    report_of(histories).publish(tmp_path, "title")
    assert "From the first tasks to the last, lost" in capsys.readouterr().out
    with open(tmp_path / "results.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "vanilla" and row["seed"] == "0"]
    assert {key: float(rows[0][key]) for key in ("online_first", "online_last", "test_last", "dormant_last")} == {
        "online_first": pytest.approx(0.48),
        "online_last": pytest.approx(0.16),
        "test_last": pytest.approx(0.26),
        "dormant_last": pytest.approx(0.25),
    }
    assert matplotlib.image.imread(tmp_path / "comparison.png").shape[:2] == (1050, 1400)


@pytest.fixture
def errors(tmp_path):
    """Online errors of two methods, with the seeds -0.01, 0 and 0.01 around them."""
    found = {}
    for method, curve in (("vanilla", 2 - FALLING), ("fire", 2 - RISING), ("level", np.full(TASKS, 1.5))):
        for seed in (-1, 0, 1):
            folder = tmp_path / "errors" / method / f"seed{seed}"
            online = curve + 0.01 * seed * np.linspace(1, 2, TASKS)
            with SummaryWriter(str(folder)) as writer:
                for task in range(TASKS):
                    writer.add_scalar("plasticity/chunk", task, 5 * task)
                    for key in ("plasticity/dfi_normalized", "val/loss", "train/online_error"):
                        writer.add_scalar(key, online[task], 5 * task + 4)
            found["", method, seed] = read_curves(folder)
    return found


def test_less_online_error_is_better(errors):
    report = report_of(errors, Metric("val/loss", "min"))
    assert isinstance(report, StreamReport)
    assert report.tables()[0][0][2:5] == ["online error, first", "online error, last", "minus vanilla (95 %)"]
    assert report.cell(report.columns[1], "", "vanilla").startswith("1.840 ± 0.019")
    assert report.cell(report.columns[2], "", "fire").startswith("-0.680 (")
    assert report.remarks() == [
        "From the first tasks to the last, more online error: vanilla +0.32 (1.52 to 1.84); neither more nor less:"
        " level; less: fire -0.32 (1.48 to 1.16).",
        "Dormant units are not known: it takes a PlasticityMonitor with data_every_n_steps of at most 10, the steps of"
        " the last fifth of the tasks, and hidden units that it finds.",
    ]
    assert "squared error of each batch before the update" in report.note
    assert "less error is better" in report.note
    assert report.panels()[0].y == "online error"
    assert report.compared == ("online_last", "online error", "min")
    assert report.decisions()[""].best == ["vanilla", "fire", "level"]  # equal differences with three seeds
