"""The templates of `lightning-fire init`, from the empty folder to the decision."""

import importlib
import re
import runpy
from pathlib import Path

import pytest
import torch
from PIL import Image

from lightning_fire.callbacks import PlasticityCallback
from lightning_fire.cli import main
from lightning_fire.experiments import compare
from lightning_fire.methods import FIRE
from lightning_fire.recipe.init import TEMPLATES
from lightning_fire.recipe.recipe import find_recipe

COMPARED = "recipe.yaml --methods vanilla full_reset fire --seeds 2"
QUIET = "--trainer.accelerator cpu --trainer.enable_progress_bar false --trainer.logger false"
SMALL = {  # by template: keys of a training of seconds
    "images": "data.init_args.protocol.init_args.fraction=0.5 data.init_args.protocol.init_args.epochs=[1,1]"
    " data.init_args.batch_size=2 data.init_args.size=8",
    "tabular": "data.init_args.rows=40 data.init_args.weeks=3 data.init_args.epochs=2 data.init_args.window=2",
}
METRIC = {"images": "val/accuracy", "tabular": "val/mae"}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Carry out `init` with a template in the current folder, an empty one."""

    def begin(name):
        main(["init", ".", "--template", name])
        for number in range(6 if name == "images" else 0):
            for part in ("train", "test"):
                place = Path("images", part, f"class{number % 2}")
                place.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (40 * number, 9, 9)).save(place / f"{number}.png")

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return begin


def options_of(name):
    """The keys of a small training as options of `fit`."""
    return [word for pair in SMALL[name].split() for word in ("--" + pair.replace("init_args.", "")).split("=")]


def test_init_changes_no_file_that_exists(begun, capsys):
    begun("images")
    with pytest.raises(SystemExit) as error:
        main(["init", "."])
    assert error.value.code == 2 and "mine.py, recipe.yaml: exists already" in capsys.readouterr().err
    for place in ("mine.py", "mine.py/below"):
        with pytest.raises(SystemExit) as error:
            main(["init", place])
        assert error.value.code == 2 and f"{place} cannot be written: " in capsys.readouterr().err.splitlines()[-1]


def test_help_and_errors_name_the_templates(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["init", "--help"])
    told = capsys.readouterr().out
    assert all(
        re.search(rf"^  {name} +{re.escape(line)}$", told, re.MULTILINE) for name, (line, *_) in TEMPLATES.items()
    )
    with pytest.raises(SystemExit):
        main(["init", str(tmp_path / "new"), "--template", "txt"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert all(name in last for name in TEMPLATES) and not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.filterwarnings("ignore:An event of fire has reduced val/accuracy")  # of two images
def test_every_method_of_a_template_trains(name, begun):
    begun(name)
    trained = main(["fit", "recipe.yaml", "--method", "fire", *options_of(name), *QUIET.split()])
    acting = [c for c in trained.trainer.callbacks if isinstance(c, PlasticityCallback)]
    assert FIRE in {type(callback.method) for callback in acting}
    assert {callback.num_events for callback in acting} == {trained.datamodule.num_chunks - 1}
    assert trained.trainer.current_epoch == trained.datamodule.total_epochs == {"images": 2, "tabular": 6}[name]
    assert {"full_reset", "shrink_and_perturb", "fire", "fire_procrustes"} == set(find_recipe("recipe.yaml").methods)
    for method in find_recipe("recipe.yaml").methods:
        words = ["fit", "recipe.yaml", "--method", method, *options_of(name), *QUIET.split()]
        main([*words, "--trainer.fast_dev_run", "1"])


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", SMALL)
def test_a_template_ends_in_a_decision(name, begun, capfd):
    begun(name)
    words = ["--metric", METRIC[name], "--mode", "min" if name == "tabular" else "max", "--worth", "0.05"]
    numbers = compare.main([*COMPARED.split(), *words, "--set", *SMALL[name].split(), "trainer.accelerator=cpu"])
    assert len(numbers) == 6
    (told,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("Decision: ")]
    assert re.match(r"Decision: (keep vanilla|train from scratch \(full_reset\)|use fire|open; if)", told)
    assert f" {METRIC[name]} (" in told or "equal with every seed" in told
    assert re.search(r"(train|training) from scratch \(full_reset\)", told)


@pytest.mark.slow(20)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_the_text_template_ends_in_a_decision(begun, capsys):
    """With two steps a training, as a user would shorten it in the file."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    begun("text")
    script = Path("mine.py")
    short = script.read_text().replace("STEPS = 200", "STEPS = 2").replace("SEEDS = 5", "SEEDS = 2")
    script.write_text(short.replace("len(NEW) * 9 // 10", "len(NEW) * 99 // 100"))
    runpy.run_path("mine.py", run_name="__main__")
    told = capsys.readouterr().out.splitlines()[-1]
    decisions = r"Decision: (keep vanilla|train from scratch \(scratch\)|use (fire|shrink_and_perturb)|open; if)"
    assert re.match(decisions, told)
    assert re.search(r" loss \(", told) and re.search(r"(train|training) from scratch \(scratch\)", told)
    assert Path("runs/decide/results.csv").read_text().count("\n") == 1 + 4 * 2


def test_weeks_train_on_the_latest_and_validate_on_the_next(begun):
    begun("tabular")
    mine, table = importlib.import_module("mine"), importlib.import_module("table")
    weeks = mine.Weeks(rows=40, drift=0.2, weeks=3, epochs=2, window=2, batch_size=16)

    def targets(loader):
        return torch.cat([batch[2] for batch in loader]).sort().values

    for epoch in range(weeks.total_epochs):
        weeks.trainer = type("Trainer", (), {"current_epoch": epoch})
        week = [0, 0, 1, 1, 2, 2][epoch]
        trained = [table.read_week(number, 40, 0.2)[2] for number in range(max(0, week - 1), week + 1)]
        assert weeks.chunk == week and torch.equal(targets(weeks.train_dataloader()), torch.cat(trained).sort().values)
        held_out = table.read_week(week + 1, 40, 0.2)[2]
        assert torch.equal(targets(weeks.val_dataloader()), held_out.sort().values)
        assert torch.equal(next(iter(weeks.train_dataloader()))[2], next(iter(weeks.train_dataloader()))[2])


def test_each_week_has_a_cycle_of_the_learning_rate(begun):
    begun("tabular")
    trained = main(["fit", "recipe.yaml", *options_of("tabular"), "--data.batch_size", "16", *QUIET.split()])
    (config,) = trained.trainer.lr_scheduler_configs
    assert config.scheduler.total_steps == config.scheduler.last_epoch == 2 * 5  # epochs of 80 rows in batches of 16


@pytest.mark.parametrize(("drift", "low", "high"), [(0.0, 0.95, 1.0), (0.2, 0.6, 0.95), (1.0, -0.4, 0.4)])
def test_drift_is_how_much_the_table_changes(begun, drift, low, high):
    """Correlation of the mean demand for an item in two weeks, five apart: (1 - drift²)^(5/2) with many rows."""
    begun("tabular")
    table = importlib.import_module("table")
    means = []
    for week in (0, 5):
        codes, _, demand = table.read_week(week, 60_000, drift)
        means.append(torch.stack([demand[codes[:, 1] == item].mean() for item in range(60)]))
    assert low <= torch.corrcoef(torch.stack(means))[0, 1] <= high
