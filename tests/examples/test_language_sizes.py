"""The example of sizes: its table, and a run of one size and length, shortened."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from pages import script

from lightning_fire.experiments.compare import parser
from lightning_fire.recipe.recipe import find_recipe


@pytest.fixture
def example():
    return script("examples/language_sizes.py")


def test_differences_are_paired_by_seed(example, tmp_path):
    """FIRE is 0.1, 0.2 and 0.3 below vanilla: mean -0.2, sd 0.1, half an interval 4.303 · 0.1 / √3 = 0.248."""
    final = {"vanilla": [1.0, 1.5, 2.0], "fire": [0.9, 1.3, 1.7], "fire_procrustes": [1.0, 1.5, 2.0]}
    rows = [
        {"method": method, "seed": seed, "final": value, "size": "0.1M", "length": 400}
        for method, values in final.items()
        for seed, value in enumerate(values)
    ]
    runs = pd.DataFrame(rows).sample(frac=1, random_state=0)
    (row,) = example.table(runs).splitlines()[2:]
    assert row == "| 0.1M | 400 | 1.500 ± 0.500 | -0.200 (-0.448 to +0.048) | +0.000 (+0.000 to +0.000) |"
    example.draw(runs, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_comparisons_are_those_of_sizes_and_lengths(example, tmp_path, monkeypatch, capsys):
    """Instead of training: the words of each command, and results that end at 1.0."""
    commands = []

    def pretend(command, check):
        words = parser().parse_args(command[4:])
        commands.append(words)
        base = find_recipe(words.recipe).base
        for setting in words.set:
            value = base
            for key in setting.partition("=")[0].split("."):
                value = value[key]  # the recipe has it
        assert words.starts == ["late"] and set(words.methods) - {"vanilla"} <= set(find_recipe(words.recipe).methods)
        rows = [{"method": method, "seed": seed, "final": 1.0} for method in words.methods for seed in range(2)]
        Path(words.output).mkdir(parents=True)
        pd.DataFrame(rows).to_csv(Path(words.output, "results.csv"))

    monkeypatch.setattr(example.subprocess, "run", pretend)
    words = ["--sizes", "0.1M", "2M", "--lengths", "100", "200", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["language_sizes.py", str(tmp_path), *words])
    example.main()
    assert [Path(words.output).name for words in commands] == ["0.1M_100", "0.1M_200", "2M_100", "2M_200"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| 0.1M | 100 | 1.000 ± 0.000 | +0.000 (+0.000 to +0.000) | +0.000 (+0.000 to +0.000) |"
    assert lines[5] == "| 2M | 200 | 1.000 ± 0.000 | +0.000 (+0.000 to +0.000) | – |"
    assert len(pd.read_csv(tmp_path / "results.csv")) == 2 * (2 * 3 + 2 * 2)
