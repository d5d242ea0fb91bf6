"""The recipe of slowly-changing regression: its learner, and the report of a short comparison."""

import csv

import pytest
from recipe_files import ROOT, methods_of

from lightning_fire.cli import main
from lightning_fire.recipe.recipe import find_recipe

NAME = "streams/slowly_changing_regression"


def test_the_learner_is_that_of_the_original():
    """cfg/sgd/bp/relu.json of shibhansh/loss-of-plasticity; steps, tasks and samples are scaled."""
    config = find_recipe(NAME).base
    assert config["model"]["init_args"]["net"]["init_args"] == {"inputs": 20, "outputs": 1, "hidden": [5]}
    assert config["model"]["init_args"]["optimizer"]["class_path"] == "torch.optim.SGD"
    assert config["data"]["init_args"]["batch_size"] == 1
    stream = config["data"]["init_args"]["protocol"]["init_args"]
    assert stream == {"num_chunks": 40, "samples_per_task": 1000, "change": "all_bits"}  # the rest is the default


@pytest.mark.slow
def test_compare_reports_the_online_error(tmp_path, capsys):
    methods = [method for method in methods_of(ROOT / f"{NAME}.yaml") if method != "vanilla"]
    stream = "data.init_args.protocol.init_args"
    words = ["compare", NAME, "--methods", "vanilla", *methods, "--seeds", "1", "--output", str(tmp_path)]
    main([*words, "--set", f"{stream}.num_chunks=5", f"{stream}.samples_per_task=20"])
    printed = capsys.readouterr().out
    assert "online error, first" in printed
    assert "online error, last" in printed
    assert "less error is better" in printed
    assert "test: loss on the task's validation data" in printed
    with open(tmp_path / "results.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1 + len(methods)
    assert all(0 < float(row["online_last"]) < 10 for row in rows)
    assert len({row["online_last"] for row in rows}) == len(rows)
