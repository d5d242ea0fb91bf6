"""`lightning-fire compare` of a recipe with `starts`: a second phase from several checkpoints of the first."""

import csv
from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
import torch
from history import named
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from small_training import PlainData, PlainModule, trainer
from tiny_recipe import set_method, write_recipe
from token_files import write_tokens

from lightning_fire import FIRECallback, Log, OptimizerReset, PlasticityCallback, Weights
from lightning_fire.cli import main
from lightning_fire.data import TextDataModule
from lightning_fire.experiments.branching import with_first_phases
from lightning_fire.experiments.figures import draw
from lightning_fire.experiments.phases import PhaseReport
from lightning_fire.experiments.runs import plan
from lightning_fire.experiments.training import ReportProgress
from lightning_fire.modules import LanguageModel
from lightning_fire.nets import GPT
from lightning_fire.recipe.recipe import find_recipe

BASE = """
model:
  class_path: LanguageModel
  init_args:
    net: {class_path: GPT, init_args: {vocab_size: 16, block_size: 8, depth: 1, heads: 2, dim: 16}}
    learning_rate: 0.01
    min_learning_rate: 0.001
    warmup: [3, 0.25]
data:
  class_path: TextDataModule
  init_args:
    sources: {a: texts/a, b: texts/b}
    phases: [{a: 1}, {b: 3, a: 1}]
    epochs: [3, 2]
    steps_per_epoch: 5
    batch_size: 4
    block_size: 8
trainer:
  accelerator: cpu
  callbacks: [{class_path: PlasticityCallback, init_args: {method: {class_path: OptimizerReset}}}]
"""
FIRE = """
method:
  class_path: FIRE
  init_args: {where: {class_path: Weights, init_args: {preset: gpt}}, steps: 5}
log: {curvature: false}
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rising = np.tile(np.arange(16), 60)
    write_tokens(tmp_path / "texts" / "a", rising, rising[:100], vocab_size=16)
    write_tokens(tmp_path / "texts" / "b", rising[::-1], rising[99::-1], vocab_size=16)
    return write_recipe(
        tmp_path / "recipes" / "small.yaml", BASE, {"fire": FIRE}, starts="{best: best, early: 1, late: 3}"
    )


def compare(recipe, *words):
    return main(["compare", str(recipe), "--output", "out", "--jobs", "2", *words])


@pytest.mark.slow(10)
def test_a_whole_comparison(recipe, tmp_path, capsys):
    results = compare(recipe, "--methods", "vanilla", "fire", "--seeds", "1")
    text = capsys.readouterr().out
    assert list(results.index) == [(s, m, 0) for s in ("best", "early", "late") for m in ("vanilla", "fire")]
    vanilla, fire = (results.xs(method, level="method") for method in ("vanilla", "fire"))
    assert (vanilla["steps_to_reference"] <= 10).all() and vanilla["event_seconds"].isna().all()
    assert np.allclose(fire["final"], 0.25 * fire["final_a"] + 0.75 * fire["final_b"], rtol=1e-5)
    assert fire["event_seconds"].between(0, 10, inclusive="neither").all()
    assert "start early: after 5 steps of phase 1" in text and "start late: after 15 steps" in text
    assert len((tmp_path / "out" / "table.txt").read_text().splitlines()) == 2 + 3 * 2
    with open(tmp_path / "out" / "results.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert float(rows[1]["final"]) == pytest.approx(results.loc[("best", "fire", 0), "final"], rel=1e-5)
    assert matplotlib.image.imread(tmp_path / "out" / "comparison.png").shape[1] > 1500
    check_against_a_manual_fit(tmp_path, results.loc[("early", "fire", 0)])

    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("events.out.*")}
    assert len(stamps) == 1 + 6
    again = compare(recipe, "--methods", "vanilla", "fire", "--seeds", "1", "--starts", "late")
    assert set(again.index.get_level_values("start")) == {"late"}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("events.out.*")} == stamps

    (tmp_path / "out" / "first_phase" / "seed0" / "epoch=3.ckpt").unlink()
    compare(recipe, "--methods", "vanilla", "--seeds", "1", "--starts", "late")
    again = {path for path in (tmp_path / "out").rglob("events.out.*") if path not in stamps}
    assert {path.parent.relative_to(tmp_path / "out").as_posix() for path in again} == {"first_phase/seed0"}


def check_against_a_manual_fit(folder, numbers):
    """A fit that continues from the checkpoint, with phase 1 as short as it was then, ends with the same loss."""
    torch.manual_seed(0)
    model = LanguageModel(GPT(16, 8, 1, 2, 16), learning_rate=0.01, min_learning_rate=0.001, warmup=[3, 0.25])
    texts = {name: str(folder / "texts" / name) for name in ("a", "b")}
    data = TextDataModule(texts, [{"a": 1}, {"b": 3, "a": 1}], [1, 2], 5, batch_size=4, block_size=8, seed=0)
    fit = trainer(
        PlasticityCallback(OptimizerReset()),
        FIRECallback(where=Weights(preset="gpt"), steps=5, log=Log(curvature=False)),
        max_epochs=3,
    )
    fit.fit(model, datamodule=data, ckpt_path=folder / "out" / "first_phase" / "seed0" / "epoch=1.ckpt")
    assert fit.global_step == 15 and fit.callbacks[1].num_events == 1
    assert float(fit.callback_metrics["val/loss"]) == pytest.approx(numbers["final"], rel=1e-5)


class Losses(PlainModule):
    """Has the given validation losses."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.losses[self.current_epoch])

    def on_save_checkpoint(self, checkpoint):
        checkpoint["saved_at"] = self.current_epoch


class WithValidation(PlainData):
    def val_dataloader(self):
        return self.train_dataloader()


def test_the_best_is_that_of_the_lowest_loss(tmp_path):
    fit = trainer(
        ReportProgress(tmp_path / "p.json", saves={"best.ckpt": "best", "epoch=2.ckpt": 2, "epoch=5.ckpt": 5}),
        max_epochs=6,
        enable_checkpointing=True,
        num_sanity_val_steps=0,
    )
    fit.fit(Losses([5.0, 3.0, 4.0, 2.0, 2.0, 3.0]), WithValidation())
    saved = {path.name: torch.load(path, weights_only=True)["saved_at"] for path in tmp_path.glob("*.ckpt")}
    assert saved == {"best.ckpt": 3, "epoch=2.ckpt": 1, "epoch=5.ckpt": 4}


class LogsNothing(Losses):
    """Validates, and logs nothing."""

    def validation_step(self, batch, batch_idx):
        pass


def test_the_best_needs_a_loss(tmp_path):
    report = ReportProgress(tmp_path / "p.json", saves={"best.ckpt": "best"})
    with pytest.raises(MisconfigurationException, match="lowest val/loss, which is not logged"):
        trainer(report, enable_checkpointing=True).fit(LogsNothing([]), WithValidation())


def checkpoint(path, epochs):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"epoch": epochs - 1, "global_step": 5 * epochs}, path)


def test_start_and_overlay_of_a_run(recipe, tmp_path):
    set_method(recipe, "fire.late", FIRE.replace("steps: 5", "steps: 7"))
    first = tmp_path / "out" / "first_phase" / "seed0"
    checkpoint(first / "best.ckpt", 2)
    checkpoint(first / "epoch=3.ckpt", 3)
    starts = {"best": "best", "late": 3}
    small = replace(find_recipe(recipe), starts=starts)
    later = with_first_phases(plan(small, ["vanilla", "fire"], [0], tmp_path / "out"), small)
    assert [run.name for run in later] == [
        "best vanilla seed 0",
        "best fire seed 0",
        "late vanilla seed 0",
        "late fire seed 0",
    ]
    assert [run.settings()["data"]["init_args"]["epochs"] for run in later] == [[2, 2], [2, 2], [3, 2], [3, 2]]
    assert [len(run.configs) for run in later] == [1, 2, 1, 2]
    assert [run.configs[1]["method"]["init_args"]["steps"] for run in later[1::2]] == [5, 7]
    assert later[3].folder == tmp_path / "out" / "late" / "fire" / "seed0"
    assert {run.start.folder for run in later} == {first} and later[3].checkpoint == first / "epoch=3.ckpt"


def test_phase_1_has_its_full_length_for_any_start(recipe, tmp_path):
    small, extra = replace(find_recipe(recipe), starts={"early": 1}), {"data": {"init_args": {"epochs": [4, 1]}}}
    (run,) = with_first_phases(plan(small, ["fire"], [0], tmp_path, extra), small)
    assert run.start.settings()["data"]["init_args"] == {"seed": 0, "phases": [{"a": 1}], "epochs": [4]}
    assert run.start.products == [tmp_path / "first_phase" / "seed0" / "epoch=1.ckpt"]


def test_other_settings_of_phase_1_make_phase_2_outdated(recipe, tmp_path):
    """From the checkpoint after epoch 1, phase 2 has the same settings whether phase 1 has 3 epochs or 4."""
    checkpoint(tmp_path / "out" / "first_phase" / "seed0" / "epoch=1.ckpt", 1)

    def fingerprints(extra, starts):
        small = replace(find_recipe(recipe), starts=starts)
        (run,) = with_first_phases(plan(small, ["fire"], [0], tmp_path / "out", extra), small, ["early"])
        assert run.settings()["data"]["init_args"]["epochs"] == [1, 2]
        return [each.fingerprint() for each in (run.start, run)]

    longer = {"data": {"init_args": {"epochs": [4, 2]}}}
    as_it_is = fingerprints({}, {"early": 1})
    assert not set(as_it_is) & set(fingerprints(longer, {"early": 1}))
    assert as_it_is == fingerprints({}, {"early": 1, "best": "best"})  # which says only what is kept


@pytest.mark.slow
def test_a_phase_1_that_diverges_has_failed(recipe, tmp_path, capsys):
    with pytest.raises(SystemExit, match="no run finished"):
        compare(recipe, "--methods", "vanilla", "--seeds", "1", "--set", "model.init_args.learning_rate=1e30")
    assert "FAILED: first_phase seed 0: it left no best.ckpt: was val/loss never a number" in capsys.readouterr().out


@pytest.mark.parametrize(
    "starts, message",
    [
        ("[1, 2]", "must give names to numbers of epochs or 'best'"),
        ("{late: 0}", "must give names to numbers of epochs or 'best'"),
        ("{late: worst}", "must give names to numbers of epochs or 'best'"),
        ("{late: true}", "must give names to numbers of epochs or 'best'"),
    ],
)
def test_invalid_starts(recipe, starts, message):
    write_recipe(recipe, BASE, {"fire": FIRE}, starts)
    with pytest.raises(ValueError, match=message):
        find_recipe(recipe)


def test_invalid_comparisons_raise_before_training(recipe, capsys):
    def error_of(*words):
        with pytest.raises(SystemExit) as error:
            compare(recipe, "--methods", "vanilla", *words)
        return str(error.value) + capsys.readouterr().err

    assert "--starts: no latest; there are best, early, late" in error_of("--starts", "latest")
    assert "--no-shared-start cannot be used with it" in error_of("--no-shared-start")
    assert "checkpoint after 3 epochs, but phase 1 has 2" in error_of("--set", "data.init_args.epochs=[2, 2]")
    assert "need data with two `phases` or more" in error_of("--set", "data.init_args.phases=[{a: 1}]")
    assert "must be a number for each phase, got [1]" in error_of("--set", "data.init_args.epochs=[1]")
    assert "need data with two `phases` or more" in error_of("--set", "data=rubbish")
    assert "must be a number for each phase, got ['a', 2]" in error_of("--set", "data.init_args.epochs=[a, 2]")
    write_recipe(recipe, BASE, {"fire": FIRE})
    assert "the recipe has no `starts`" in error_of("--starts", "late")


def history(*losses):
    """Evaluations every 10 steps of a phase that begins at step 100, the first of them just after the event."""
    steps = np.arange(100, 100 + 10 * len(losses), 10)
    curves = {}
    for text in ("", "/a"):
        curves[f"val/loss{text}"] = steps[1:] - 1, np.array(losses[1:])
        curves[f"val/loss_at_new_data{text}"] = steps[:1], np.array(losses[:1])
    return curves


def report_of(methods, reference="vanilla", **options):
    options = {"first": {}, "taken": {}, **options}
    return PhaseReport(named(methods, start="late"), reference, **options)


def test_numbers_of_a_run():
    run = history(5.0, 3.0, 4.0, 2.0)
    for final, expected in ((6.0, 0), (3.0, 10), (2.5, 30), (2.0, 30), (1.9, float("inf"))):
        numbers = report_of({"fire": {0: run}, "vanilla": {0: history(9.0, final)}}).numbers.loc[("late", "fire", 0)]
        assert numbers["steps_to_reference"] == expected
    assert numbers[["at_start", "final", "final_a"]].tolist() == [5.0, 2.0, 2.0]


def test_the_table_counts_the_seeds_that_reach_vanilla():
    methods = {
        "vanilla": {0: history(4, 3, 2), 1: history(4, 3, 2)},
        "fire": {0: history(5, 2, 1), 1: history(5, 3, 1)},
        "lucky": {0: history(5, 2, 1), 1: history(5, 4, 3)},
        "poor": {0: history(5, 4, 3), 1: history(5, 4, 3)},
        "idle": {0: history(4, 3, 2), 1: history(4, 3, 2)},
    }
    lines = report_of(methods).table().splitlines()[2:]
    assert [line.split("  ")[-1].strip() for line in lines] == ["20", "15", "10 (1 of 2)", "never", "never acted"]
    assert [" -1.000 (-1.000 to -1.000)" in line for line in lines] == [False, True, False, False, False]
    assert "+0.000 (-12.706 to +12.706)" in lines[2]
    by_fire = report_of(methods, "fire").table().splitlines()
    assert "minus fire (95 %)" in by_fire[0] and by_fire[0].endswith("steps to fire's")
    del methods["vanilla"]
    assert report_of(methods).table().splitlines()[2].split("  ")[-1].strip() == "–"


def test_a_run_that_ends_as_nan_is_drawn_and_reported(tmp_path):
    methods = {"vanilla": {0: history(4, 3, 2)}, "wild": {0: history(4, 3, float("nan"))}}
    first = {0: {"val/loss": (np.arange(3), np.array([4.0, 3.0, 2.0]))}}
    report = report_of(methods, first=first, taken={"late": {0: 2}, "best": {0: 2}})
    assert list(report.panels()[0].lines.items()) == [(2.0, "late, best")]
    draw(report.panels(), tmp_path / "picture.png", "title", side_by_side=True)
    assert matplotlib.image.imread(tmp_path / "picture.png").std() > 0
    assert report.table().splitlines()[3].split()[-2:] == ["–", "never"]


def test_each_start_has_a_decision_and_less_loss_is_better():
    losses = {"vanilla": [2.0, 2.01, 2.0], "full_reset": [2.2, 2.2, 2.21], "fire": [1.71, 1.7, 1.7]}
    curves = {
        (start, method, seed): history(4, 3, last + shift * (method == "fire"))
        for start, shift in (("early", 1.0), ("late", 0.0))
        for method, of in losses.items()
        for seed, last in enumerate(of)
    }
    decisions = PhaseReport(curves, "vanilla", {}, {}).decisions(failed={"early": {"dash": [1]}})
    assert {start: decision.choice for start, decision in decisions.items()} == {"early": "vanilla", "late": "fire"}
    assert "Warm starting (vanilla) gains 0.20" in decisions["late"].text and " loss (" in decisions["late"].text
    assert "Steps until vanilla's final loss: fire 20." in decisions["late"].text
    assert ["dash failed with seed 1" in decision.text for decision in decisions.values()] == [True, False]
