"""The paper's ablation figures: training, output and errors."""

from typing import get_args

import numpy as np
import pytest
from matplotlib.axes import Axes
from tiny_recipe import set_method, tiny_recipe

from lightning_fire.experiments.chunks import ChunkReport
from lightning_fire.experiments.report import ComparisonReport
from lightning_fire.experiments.tables import aligned
from lightning_fire.functional.orthogonal import Coefficients
from studies import ablation_figures as study

FIRE = "method: {class_path: FIRE, init_args: {steps: 5}}\n"
RESET = "method: {class_path: FullReset}\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tiny_recipe(tmp_path, {"fire": FIRE, "full_reset": RESET, "wrong": RESET})


def ablate(recipe, *words):
    return study.main([str(recipe), "--output", "out", "--jobs", "2", "--seeds", "1", *words])


NAN = float("nan")
MEASURES = ("final", "lambda_max_before", "lambda_max_after", "dfi_after", "dfi_raw_after", "sfe")
FIRST, SECOND = (0.6, 8.0, 2.0, 0.1, 5.0, 0.4), (0.8, 8.0, 4.0, 0.3, 6.0, 0.6)
NUMBERS = {
    ("", "vanilla", 0): (0.5, NAN, NAN, 2.0, NAN, NAN),
    ("", "fire", 0): FIRST,
    ("", "fire", 1): SECOND,
    ("", "fire,steps=5", 0): (0.7, *FIRST[1:]),
    ("", "fire,steps=5", 1): (0.9, *SECOND[1:]),
}


class Known(ComparisonReport):
    """A report of numbers that are known."""

    def measures(self, name):
        return dict(zip(MEASURES, self.curves[name], strict=True))


def test_the_table_and_the_figure_show_mean_and_spread(tmp_path, monkeypatch):
    rows = {"vanilla": "vanilla", "fire": "fire"}
    table = aligned(study.table(Known(NUMBERS, "vanilla"), "method", rows)).splitlines()
    assert table[0].split("  ")[0] == "method"
    assert table[2].split() == ["vanilla", "0.500", "–", "–", "–", "2.000", "–", "–"]
    assert "0.700 ± 0.141" in table[3]
    assert "5.50 ± 0.71" in table[3]  # the paper's DfI
    assert "3.000 ± 1.414" in table[3]
    row = aligned(study.table(Known(NUMBERS, "fire"), "steps", {"5": "fire,steps=5"})).splitlines()[2]
    assert row.startswith("5 ")
    assert "+0.100 (+0.100 to +0.100)" in row
    seen, bar = [], Axes.bar

    def remember(axis, names, heights, **options):
        seen.append((list(names), list(heights), list(options["yerr"])))
        return bar(axis, names, heights, **options)

    monkeypatch.setattr(Axes, "bar", remember)
    study.draw(Known(NUMBERS, "vanilla"), rows, {"5": "fire,steps=5", "10": "fire"}, tmp_path / "a.png", "title")
    (names, heights, errors), dfi, _ = seen
    assert (names, heights) == (["fire"], [3.0])
    assert errors == pytest.approx([2**0.5])
    assert dfi[0] == ["vanilla", "fire"]
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "full_reset"], "--methods must have fire among them, got full_reset"),
        (["--steps", "0"], "must be a whole number of at least 1, or exact; got 0"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--what", "coefficients", "--steps", "5"], "--steps is for --what steps, not coefficients"),
    ],
)
def test_invalid_arguments(recipe, capsys, words, message):
    with pytest.raises(SystemExit):
        ablate(recipe, *words)
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_coefficients_are_compared_by_their_curves(recipe, monkeypatch, tmp_path, capsys):
    """The paper's figure 7: the recipe's own FIRE is `cubic`, the default."""
    steps = np.arange(4)
    curves = {
        "plasticity/chunk": (steps, np.array([0, 0, 1, 1])),
        "plasticity/dfi_normalized": (steps, np.ones(4)),
        "val/accuracy": (steps, np.linspace(0.5, 0.9, 4)),
    }
    seen = []

    def trained(runs, engine, reference, options):
        seen.extend(runs)
        return ChunkReport({(run.branch, run.method, run.seed): curves for run in runs}, reference), []

    monkeypatch.setattr(study, "train_and_read", trained)
    numbers = ablate(recipe, "--what", "coefficients")
    variants = [f"fire,coefficients={name}" for name in ("quintic", "muon")]
    assert list(numbers.index.unique("method")) == ["vanilla", "fire", *variants]
    layers = {run.method: run.configs[-1]["method"]["init_args"] for run in seen[1:]}
    own = layers.pop("fire")
    assert "coefficients" not in own and own["steps"] == 5
    assert layers == {f"fire,coefficients={name}": {**own, "coefficients": name} for name in ("quintic", "muon")}
    assert ["cubic", "quintic", "muon"] == study._COEFFICIENTS == list(get_args(Coefficients))
    assert "fire,coefficients=muon" in (tmp_path / "out/table.txt").read_text()
    assert (tmp_path / "out/comparison.pdf").read_bytes().startswith(b"%PDF")


def test_fire_must_be_one_method(recipe, capsys):
    set_method(recipe, "fire", RESET)
    with pytest.raises(SystemExit):
        ablate(recipe, "--methods", "fire")
    assert "the method fire is not one FIRE" in " ".join(capsys.readouterr().err.split())
