"""Each study from its command to its tables and its figure, on tiny streams."""

import importlib
import json
import sys

import pandas as pd
import pytest

from lightning_fire.data import PermutedInputs, PermutedLabels, RandomLabels, WarmStart
from lightning_fire.experiments import compare, sweep
from lightning_fire.when import Clock
from studies import ablations, drift, layers, runs, scale, streams, units
from studies.map import PartlyRandomLabels

TINY = {
    "random_labels": streams.Stream("random labels", RandomLabels(3, 60, 2), 30, 3e-3),
    "permuted_labels": streams.Stream("permuted labels", PermutedLabels(3, 60, 1), 30, 3e-3),
    "permuted_inputs": streams.Stream("permuted inputs", PermutedInputs(3, 60, 2), 30, 3e-3),
    "warm_start": streams.Stream("warm start", WarmStart(0.01, (2, 1)), 500, 3e-3),
}


@pytest.fixture
def tiny(monkeypatch):
    for name, stream in TINY.items():
        monkeypatch.setitem(streams.STREAMS, name, stream)


def tiny_tasks(_chunks, _samples, epochs, **fraction):
    return PartlyRandomLabels(3, 60, epochs, **fraction)


TWO = {name: TINY[name] for name in ("random_labels", "warm_start")}


def some(study, *endings):
    """The methods of a study that it compares with, and one or two others."""
    return {name: act for name, act in study.METHODS.items() if name.endswith(("vanilla", *endings))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "shows", "only", "words"),
    [
        ("memory", "… of which memory", {"STREAMS": TWO}, ""),
        ("layers", "minus `reset_all` (95 %)", {"STREAMS": TWO, "SETS": layers.SETS[-2:]}, ""),
        ("ablations", "kept right after the event", {"STREAMS": TWO, "METHODS": some(ablations, "_1", "_10")}, ""),
        ("timing", "minus `every_change` (95 %)", {"NAMES": tuple(TWO)}, ""),
        ("drift", "vanilla minus young (95 %)", {"DRIFTS": (0.5,), "ACTING": ("full_reset",)}, ""),
        (
            "signs",
            "% right with a threshold",
            {"CHUNKS": {"random_labels": (1, 2), "permuted_inputs": (1, 2)}, "RATES": (1e-3,)},
            "--resamples 20",
        ),
        (
            "map",
            "| epochs a task | new labels | vanilla |",
            {"EPOCHS": (1, 2), "RATES": (1e-3,), "WIDTHS": (30,), "PartlyRandomLabels": tiny_tasks},
            "",
        ),
        (
            "scale",
            "### Normalization: batch",
            {
                "STREAMS": TINY,
                "NORMALIZATIONS": ("none", "batch"),
                "METHODS": some(scale, "reset_initial", "fire_paper"),
            },
            "",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:An input array is constant")  # of the rank correlations
def test_a_study_ends_with_its_tables_and_its_figure(study, shows, only, words, tiny, tmp_path, capsys, monkeypatch):
    module = importlib.import_module(f"studies.{study}")
    for name, value in only.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["study", str(tmp_path), "--seeds", "2", "--jobs", "1", *words.split()])
    module.main()
    first = capsys.readouterr().out
    assert shows in first and "batches" in first and "| nan" not in first
    assert (tmp_path / f"{study}.png").stat().st_size > 5_000
    if study in ("drift", "signs", "timing"):  # linked from the page
        assert len(pd.read_csv(tmp_path / f"{study}.csv")) > 10
    module.main()  # nothing is run again
    again = capsys.readouterr().out
    assert "batches" not in again and shows in again


def test_events_at_other_times_of_a_drift():
    """In tasks of 10 steps, of which half drift: after 2 (2.5, rounded to even) and 5 steps, not in the first task."""
    every = drift.times(0.5, 10)
    due = {
        name: [step for step in range(40) if every[name].due(Clock(step // 5, step, chunk=step // 10))]
        for name in ("middle", "end", "every_1.3_tasks")
    }
    assert due == {"middle": [12, 22, 32], "end": [15, 25, 35], "every_1.3_tasks": [13, 26, 39]}
    assert "end" not in drift.times(1.0, 10) and "middle" not in drift.times(0.0, 10)
    names = [each.method for each in drift.settings(["random_labels"], range(2), other_times=True)]
    assert len(names) == 2 * (4 * 7 + 3 * (2 + 4 + 4 + 3)) and names.count("fire_procrustes middle") == 2 * 3
    assert drift.steps_of(drift.tasks_of("permuted_inputs", 0.5)) == 300


def test_tasks_that_count_are_every_second_of_the_last_third():
    values = [0.0] * 10 + [0.5, 9.0, 0.6, 9.0, 0.7]
    assert drift.counted(json.dumps({"online": values}), "online") == pytest.approx(0.6)


def test_what_was_tuned_is_compared(tmp_path, monkeypatch):
    """Instead of training: the words of each command; the recipe that one sweep leaves is that of the next."""
    seen = []

    def tuned(words):
        seen.append(sweep.parser().parse_args(words))
        return {"threshold": len(seen) / 10}

    def compared(words):
        seen.append(compare.parser().parse_args(words))
        methods = enumerate(seen[-1].methods)
        rows = [(method, seed, 0.1 * (number + seed), 0.5) for number, method in methods for seed in range(2)]
        return pd.DataFrame(rows, columns=["method", "seed", "online_last", "dormant_last"]).set_index("method")

    monkeypatch.setattr(sweep, "main", tuned)
    monkeypatch.setattr(compare, "main", compared)
    table = units.table(units.run("quick_start", "none", tmp_path, range(2), 1)).splitlines()
    assert [words.recipe for words in seen] == ["quick_start", *(f"{words.output}/best.yaml" for words in seen[:-1])]
    assert [words.method for words in seen[:-1]] == list(units.TUNED)
    assert seen[-1].methods == [*units.REFERENCES, *units.TUNED] and (seen[-1].seeds, seen[-1].first_seed) == (2, 0)
    assert table[2].startswith("| `vanilla` |  | 5.0 ± 7.1 | -10.0 (-10.0 to -10.0) | -30.0 (")
    assert table[5].startswith("| `redo` | threshold 0.1 | 35.0 ± 7.1 | +20.0 (+20.0 to +20.0) | 0 |")


def test_differences_are_paired_by_seed():
    """0.1, 0.2 and 0.3 above: mean 0.2, sd 0.1, half an interval 4.303 · 0.1 / √3 = 0.248, in percent."""
    frame = pd.DataFrame(
        [
            {"method": method, "seed": seed, "online_last": value}
            for method, values in {"vanilla": [0.1, 0.2, 0.3], "fire": [0.2, 0.4, 0.6]}.items()
            for seed, value in enumerate(values)
        ]
    ).sample(frac=1, random_state=0)
    assert runs.cell(frame, "fire", "vanilla") == "+20.0 (-4.8 to +44.8)"
    assert runs.cell(frame, "fire") == "40.0 ± 20.0"
    assert runs.cell(frame, "vanilla", "vanilla") == "0"
