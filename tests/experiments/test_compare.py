"""`lightning-fire compare`: what it runs, what it reads back, what it prints and draws."""

import csv
import fcntl
import io
import json
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest
import yaml
from history import HISTORY, IDLE, NO_EVENTS, history, named, series
from instantaneous_runs import Instantaneous
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from scipy.stats import ttest_rel
from tiny_recipe import BASE, FIRE, MONITOR, set_base, set_method, tiny_recipe
from torch import nn

from lightning_fire.cli import main
from lightning_fire.experiments import compare as compare_command
from lightning_fire.experiments import engines, runner, runs
from lightning_fire.experiments.branching import with_shared_starts
from lightning_fire.experiments.chunks import ChunkedRun, ChunkReport, Metric
from lightning_fire.experiments.compare import _MONITOR, common, with_monitor
from lightning_fire.experiments.compare import parser as compare_parser
from lightning_fire.experiments.figures import band, colors, draw
from lightning_fire.experiments.logs import of_events, read_curves, read_logs
from lightning_fire.experiments.runs import Run
from lightning_fire.experiments.statistics import difference
from lightning_fire.experiments.tables import deliver
from lightning_fire.experiments.training import ReportProgress, RunProgress
from lightning_fire.modules import Classifier
from lightning_fire.recipe.recipe import Recipe, check_name, find_recipe


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = "method: {class_path: FIRE, init_args: {steps: 0}}\n"
    full_reset = "method: {class_path: FullReset}\n"
    return tiny_recipe(tmp_path, {"fire": FIRE, "full_reset": full_reset, "broken": broken})


@pytest.fixture
def instantaneous(recipe, tmp_path, monkeypatch):
    """Let a comparison write the logs of its trainings at once."""
    Instantaneous.write_logs(tmp_path / "logs", ["vanilla", "fire", "full_reset", *SHARING])
    monkeypatch.setattr(compare_command, "engine_for", Instantaneous)


def compare(recipe, *words):
    return main(["compare", str(recipe), "--output", "out", "--jobs", "2", *words])


@pytest.mark.slow(10)
def test_table_csv_figure_and_logs_of_a_whole_comparison(recipe, tmp_path, capsys):
    results = compare(recipe, "--methods", "vanilla", "fire", "--seeds", "2").loc[""]
    text = capsys.readouterr().out
    assert list(results.index) == [(method, seed) for method in ("vanilla", "fire") for seed in (0, 1)]
    vanilla, fire = results.loc["vanilla"], results.loc["fire"]
    assert vanilla["sfe"].isna().all() and (vanilla["dfi_after"] == vanilla["dfi_before"]).all()
    assert (fire["dfi_after"] < 0.5 * fire["dfi_before"]).all()
    assert (fire["sfe"] > 0).all()  # the initial network is untrained

    with open("out/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert [row["seed"] for row in rows] == ["0", "1"] * 2
    assert rows[0]["sfe"] == ""
    assert float(rows[-1]["final"]) == pytest.approx(fire.loc[1, "final"], rel=1e-5)
    assert matplotlib.image.imread("out/comparison.png").shape[0] > 500
    for line in (
        "tensorboard --logdir out",
        "out/comparison.png",
        "out/summary.csv",
        "first epoch",
        "vanilla  ",
        "fire  ",
    ):
        assert line in text
    assert (tmp_path / "out/fire/seed1/config.yaml").is_file()

    run = ChunkedRun(read_curves(tmp_path / "out/fire/seed0"), Metric())
    assert list(run.starts) == [0, 4, 8, 12]
    assert len(run.metric[1]) == len(run.dfi[1]) == 6
    assert len(run.at_new_data) == len(of_events(run.curves, "sfe_normalized")) == 2

    logs = read_logs("out")
    assert set(zip(logs.method, logs.seed, strict=True)) == set(results.index)
    accuracy = logs[(logs.method == "fire") & (logs.seed == 0) & (logs.key == "val/accuracy")]
    assert accuracy.step.tolist() == run.metric[0].tolist() and accuracy.value.tolist() == run.metric[1].tolist()

    before = (tmp_path / "out/fire/seed1/finished.json").stat().st_mtime_ns
    compare(recipe, "--methods", "vanilla", "fire", "--seeds", "2")
    assert (tmp_path / "out/fire/seed1/finished.json").stat().st_mtime_ns == before  # finished runs do not run again


def test_a_failed_run_is_reported_and_does_not_stop_the_others(recipe, tmp_path, capsys):
    set_method(recipe, "typo", "method: {class_path: FullRest}")
    set_method(recipe, "empty", "method: {class_path: FullReset, init_args: }\n")
    failing = ["broken", "typo", "empty"]
    with pytest.raises(SystemExit, match="3 of 4 runs failed"):
        compare(recipe, "--methods", *failing, "vanilla", "--seeds", "1", "--set", "trainer.limit_train_batches=1")
    text = capsys.readouterr().out
    assert all(f"{name} seed 0 FAILED" in text for name in failing)
    assert re.search(r"broken seed 0 FAILED: .*`steps` must be an integer of at least 1, or 'exact', got 0", text)
    assert (
        "`steps` must be an integer of at least 1, or 'exact', got 0"
        in (tmp_path / "out/broken/seed0/log.txt").read_text()
    )
    assert "vanilla  1" in text


def test_if_the_first_runs_fail_in_the_same_way_the_rest_is_not_begun(recipe, tmp_path, capsys):
    words = ["--seeds", "4", "--no-shared-start", "--set", "data.init_args.batch_size=0"]
    with pytest.raises(SystemExit, match="no run finished"):
        compare(recipe, "--methods", "vanilla", "full_reset", *words)
    text = capsys.readouterr().out
    assert len(re.findall("FAILED: .*`batch_size` must be", text)) < 8
    assert "runs were not begun, as the first runs have failed in the same way:\n" in text


def test_a_run_that_did_not_log_what_the_table_needs_is_reported(recipe, capsys):
    with pytest.raises(SystemExit, match="no run finished"):
        compare(recipe, "--methods", "vanilla", "--seeds", "1", "--set", "trainer.limit_val_batches=0")
    assert re.search("vanilla seed 0 FAILED: .* has not logged .*val/accuracy", capsys.readouterr().out)


OWN = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Data(LightningDataModule):
    chunk, num_chunks, epochs = 0, 2, 2

    def train_dataloader(self):
        self.chunk = self.trainer.current_epoch // self.epochs
        return DataLoader(TensorDataset(torch.rand(12, 4), torch.arange(12) % 3), 4)

    def val_dataloader(self):
        return self.train_dataloader()

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val/accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
"""


def test_ones_own_module_and_data_and_loggers_are_compared(recipe, tmp_path, capsys):
    """Data without an argument `seed`, a recipe without `PlasticityMonitor`, and a logger that stays beside ours."""
    (tmp_path / "own.py").write_text(OWN)
    base = """
        model: {class_path: own.Net}
        data: {class_path: own.Data}
        trainer: {max_epochs: 4, accelerator: cpu, reload_dataloaders_every_n_epochs: 1,
            logger: {class_path: CSVLogger, init_args: {save_dir: mine, version: one}}}
    """
    set_base(recipe, base)
    set_method(recipe, "fire", "{method: {class_path: FIRE}, log: {curvature: false}}")
    results = compare(recipe, "--methods", "vanilla", "fire", "--seeds", "1", "--no-shared-start", "--jobs", "1")
    assert 0 <= results.loc[("", "fire", 0), "final"] <= 1 and results.loc[("", "fire", 0), "sfe"] > 0
    assert "val/accuracy" in (tmp_path / "mine/lightning_logs/one/metrics.csv").read_text().splitlines()[0]
    assert list((tmp_path / "out/fire/seed0").glob("events.out.tfevents.*"))


def test_every_logger_of_a_recipe_stays_beside_ours():
    def loggers(trainer, extra=None):
        run = Run("vanilla", 0, Path("out/vanilla/seed0"), [{"trainer": trainer}], extra or {})
        names = [logger["class_path"] for logger in run.settings()["trainer"]["logger"]]
        assert names[0] == "lightning.pytorch.loggers.TensorBoardLogger"
        return names[1:]

    csv = {"class_path": "CSVLogger"}
    assert loggers({}) == loggers({"logger": True}) == loggers({"logger": False}) == loggers({"logger": None}) == []
    assert loggers({"logger": csv}) == loggers({"logger": "CSVLogger"}) == ["CSVLogger"]
    assert loggers({"logger": [csv, {"class_path": "WandbLogger"}]}) == ["CSVLogger", "WandbLogger"]
    wandb = {"trainer": {"logger": {"class_path": "lightning.pytorch.loggers.WandbLogger"}}}
    run = Run("fire", 3, Path("out/fire/seed3"), [wandb])
    assert run.settings()["trainer"]["logger"][1]["init_args"] == {"name": "fire seed 3"}
    assert loggers({"logger": csv}, {"trainer": {"logger": {"class_path": "MLFlowLogger"}}}) == ["MLFlowLogger"]


@pytest.mark.slow
def test_runs_arrive_in_weights_and_biases_and_in_mlflow(recipe, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    loggers = [
        {"class_path": "WandbLogger", "init_args": {"project": "mine", "offline": True, "save_dir": "."}},
        {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "file:./mlruns"}},
    ]
    compare(recipe, "--methods", "vanilla", "fire", "--seeds", "1", "--set", f"trainer.logger={json.dumps(loggers)}")
    client = tracking.MlflowClient("file:./mlruns")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    logged = {run.info.run_name: run for run in client.search_runs(experiments)}
    assert set(logged) == {"shared_start seed 0", "vanilla seed 0", "fire seed 0"}
    fire = logged["fire seed 0"]
    curve = [(point.step, point.value) for point in client.get_metric_history(fire.info.run_id, "val/accuracy")]
    ours = read_curves(tmp_path / "out/fire/seed0")["val/accuracy"]
    whole = list(zip(*ours, strict=True))
    assert np.allclose(curve, whole[-len(curve) :], atol=1e-6) and len(curve) == len(whole) - 2  # those before: shared
    assert fire.data.metrics["fire/event"] == 2
    assert len(list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "fier"], r"tiny.yaml has no method fier; there are vanilla, fire, full_reset, broken"),
        (["--seeds", "0"], "must be at least 1"),
        (["--labels", "dash=D"], "--labels takes METHOD=LABEL of a method among --methods, got dash"),
        (["--worth", "0"], "--worth must be a positive number, got 0.0"),
        (["--reference", "dash"], "--reference dash is not one of the methods: vanilla full_reset fire"),
        (["--set", "trainer.max_epochs"], "--set takes KEY=VALUE"),
        (["--set", "trainer.max_epochs=1", "trainer.max_epochs=2"], "--set gives trainer.max_epochs twice"),
        (["--set", "trainer={max_epochs: 1, max_epochs: 2}"], "the key max_epochs is given twice"),
        (["--set", "trainer.max_epochs=[1"], "while parsing a flow sequence"),
        (["--set", "trainer=1", "trainer.max_epochs=1"], "gives 'trainer' a value and, in 'trainer.max_epochs=1'"),
        (["--config", "vision/none"], "the configuration file vision/none does not exist"),
        (["--config", "quick_start"], "quick_start.yaml is a recipe with methods"),
    ],
)
def test_wrong_arguments(recipe, words, message, capsys):
    with pytest.raises(SystemExit):
        compare(recipe, *words)
    assert re.search(message, capsys.readouterr().err)


def test_unknown_recipe(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path)])
    error = capsys.readouterr().err
    assert f"unknown recipe {tmp_path}: neither a file nor a name of `lightning-fire recipes`" in error


@pytest.mark.parametrize("words", [["compare"], ["sweep", "--method", "fire", "--space", "space.yaml"]])
def test_an_output_that_is_a_file_is_refused_before_training(recipe, words, capsys):
    Path("taken").touch()
    with pytest.raises(SystemExit) as error:
        main([words[0], str(recipe), *words[1:], "--output", "taken"])
    assert error.value.code == 2 and "--output taken is a file: name a folder" in capsys.readouterr().err


def test_files_of_others_are_not_removed(recipe, tmp_path, capsys):
    precious = tmp_path / "out/vanilla/seed0/thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    with pytest.raises(SystemExit):
        compare(recipe, "--methods", "vanilla", "--seeds", "1")
    assert "choose another --output" in capsys.readouterr().out
    assert precious.read_text() == "years of work"


def report_of(methods, reference="vanilla", **options):
    return ChunkReport(named(methods), reference, **options)


def numbers(run, reference=None):
    others = {} if reference is None else {"vanilla": {0: reference}}
    return report_of({"fire": {0: run}, **others}).numbers.loc[("", "fire", 0)].to_dict()


def test_numbers_of_a_history():
    expected = {"after_event": 0.3, "final": 0.8, "average": 0.65, "dfi_before": 3.0, "dfi_after": 0.5, "sfe": 0.7}
    expected |= {"lambda_max_before": 20.0, "lambda_max_after": 5.0, "drop": 0.2, "recovery": 1.0}
    expected |= {"first_epoch_after": 0.6, "area": 0.7, "epochs_to_reference": 2.0}
    expected |= {"dfi_raw_before": 9.0, "dfi_raw_after": 11.0}
    unknown = dict.fromkeys(("online_first", "online_last", "test_last", "dormant_last", "units_reset"), math.nan)
    assert numbers(HISTORY, ending(0.7)) == pytest.approx(expected | unknown, nan_ok=True)
    late = history(val__accuracy=series((9, 0.4), (19, 0.7), (29, 0.3), (39, 0.6), (59, 0.8)))
    assert numbers(late)["recovery"] == 3
    never = history(val__accuracy=series((19, 0.9), (39, 0.6), (59, 0.8)))
    assert numbers(never)["recovery"] == float("inf")
    assert np.isnan(numbers(history(val__accuracy_at_new_data=None))["drop"])
    run = ChunkedRun(HISTORY, Metric())
    assert run.starts.tolist() == [0, 20, 60]
    places, values = run.with_events(run.metric, run.at_new_data)
    assert places.tolist() == pytest.approx([0.45, 0.95, 1.0, 1.475, 1.975]) and values[2] == 0.3
    after = of_events(run.curves, "dfi_normalized_after")
    assert run.with_events(run.dfi, after)[1].tolist() == [2.0, 4.0, 0.5, 1.0, 2.0]
    assert run.with_events(run.dfi, np.array([]))[1].tolist() == [2.0, 4.0, 1.0, 2.0]


def test_a_metric_of_which_less_is_better():
    """Losses are 1 - accuracy: the same numbers of epochs, and drops of the same size."""
    keys = ("val/accuracy", "val/accuracy_at_new_data")
    losses = {key.replace("accuracy", "loss"): (HISTORY[key][0], 1 - HISTORY[key][1]) for key in keys}
    run = {**{key: curve for key, curve in HISTORY.items() if "accuracy" not in key}, **losses}
    reports = report_of({"vanilla": {0: HISTORY}}), report_of({"vanilla": {0: run}}, metric=Metric("val/loss", "min"))
    one, other = (each.numbers.iloc[0] for each in reports)
    same = ["epochs_to_reference", "drop", "recovery", "dfi_after"]
    assert other[same].to_dict() == pytest.approx(one[same].to_dict())
    assert other["final"] == pytest.approx(0.2) and "final val/loss" in reports[1].table()
    accuracy, loss = (each.panels()[0] for each in reports)
    assert (loss.low, loss.high) == pytest.approx((1 - accuracy.high, 1 - accuracy.low))
    assert Metric("val/loss", "min").needs["val/loss"] == "a validation (see check_val_every_n_epoch)"
    assert Metric("train/accuracy").needs["train/accuracy"] == "training"


THREE_CHUNKS = history((0, 10, 30), val__accuracy=series((9, 0.5), (19, 0.3), (29, 0.6), (39, 0.2), (49, 0.7)))


def test_the_speed_after_events():
    """First epochs of the second and the third chunk; all epochs since the first event; epochs of the last chunk."""
    of = numbers(THREE_CHUNKS, ending(0.65))
    assert [of["first_epoch_after"], of["area"]] == pytest.approx([(0.3 + 0.2) / 2, (0.3 + 0.6 + 0.2 + 0.7) / 4])
    targets = (0.1, 0.55, 0.7, 0.71)
    reached = [numbers(THREE_CHUNKS, ending(target))["epochs_to_reference"] for target in targets]
    assert reached == [1, 2, 2, float("inf")]  # 0.55 was reached before, on other data
    assert np.isnan(numbers(THREE_CHUNKS)["epochs_to_reference"])
    alone = numbers(history((0,)), ending(0.5))
    assert np.isnan([alone[name] for name in ("first_epoch_after", "area", "epochs_to_reference")]).all()


def test_each_run_is_measured_against_the_reference_of_its_seed():
    methods = {"vanilla": {0: ending(0.5), 1: ending(0.9)}, "fire": {1: HISTORY, 0: HISTORY, 2: HISTORY}}
    compared = report_of(methods)
    assert compared.of("", "fire", "epochs_to_reference") == pytest.approx(
        {0: 1.0, 1: float("inf"), 2: float("nan")}, nan_ok=True
    )
    assert "1.0 (1 of 2)" in compared.table().splitlines()[3]


def test_the_two_tables_say_when_the_metric_was_measured():
    """0.3 before the first batch of the new data, 0.6 after one epoch on it."""
    first, second = cells_of(report_of({"vanilla": {0: IDLE}, "fire": {0: HISTORY, 1: HISTORY}}))
    assert first["fire"]["first epoch"] == "0.600 ± 0.000"
    assert second["fire"] == {
        "after the event": "0.300 ± 0.000",
        "DfI before": "3.000 ± 0.000",
        "DfI after": "0.500 ± 0.000",
        "DfI (eq. 2) before": "9.00 ± 0.00",
        "DfI (eq. 2) after": "11.00 ± 0.00",
        "SFE/‖W‖²": "0.700 ± 0.000",
    }


def test_the_first_epoch_has_its_difference_to_the_reference():
    methods = {
        "vanilla": {0: history(val__accuracy=series((19, 0.5), (39, 0.6), (59, 0.8)))},
        "fire": {0: history(val__accuracy=series((19, 0.5), (39, 0.7), (59, 0.8)))},
    }
    methods["vanilla"][1] = methods["vanilla"][0]
    methods["fire"][1] = history(val__accuracy=series((19, 0.5), (39, 0.8), (59, 0.8)))
    cells, _ = cells_of(report_of(methods))
    # differences 0.1 and 0.2: mean 0.15, deviation 0.0707, t of one degree of freedom 12.706
    assert cells["fire"]["first epoch minus vanilla (95 %)"] == "+0.150 (-0.485 to +0.785)"
    assert cells["fire"]["minus vanilla (95 %)"] == "0"


@pytest.mark.parametrize(("last_measured", "before"), [(9, "–"), (19, "4.000")])
@pytest.mark.parametrize(("keys", "after"), [({}, "–"), ({"dfi_normalized_at_new_data": series((20, 1.5))}, "1.500")])
def test_dfi_of_methods_that_do_not_log_it_is_the_monitors_or_unknown(last_measured, before, keys, after):
    """A method of a user's own. The last epoch before new data begins at step 10."""
    dfi = series((last_measured, 4.0), (59, 2.0))
    given = {"chunk": series((0, 0), (10, 0), (20, 1)), "dfi_normalized": dfi, **keys}
    own = history(**NO_EVENTS, **{f"plasticity__{key}": curve for key, curve in given.items()})
    report = report_of({"vanilla": {0: IDLE}, "own": {0: own}})
    _, cells = cells_of(report)
    assert (cells["own"]["DfI before"], cells["own"]["DfI after"]) == (before, after)
    drawn = report.panels()[1].curves["own"][0][1]
    assert drawn.tolist() == [4.0, *([1.5] if keys else []), 2.0]


def test_methods_that_reset_units_show_how_many():
    """ReDo logs them at each event, the others so far; one that has reset none has acted all the same."""
    counts = {
        "vanilla": {},
        "redo": {"redo__units": series((0, 2), (20, 3)), "redo__event": series((0, 1), (20, 2))},
        "snr": {"snr__units": series((19, 2), (59, 7))},
        "none": {"continual_backprop__units": series((19, 0), (59, 0))},
        "idle": {"val__units": series((19, 9))},
    }
    report = report_of({method: {0: history(**NO_EVENTS, **keys)} for method, keys in counts.items()})
    _, cells = cells_of(report)
    shown = {method: (of["DfI after"], of["units reset"]) for method, of in cells.items()}
    assert shown == {
        "vanilla": ("–", "–"),
        "redo": ("–", "5.0"),
        "snr": ("–", "7.0"),
        "none": ("–", "0.0"),
        "idle": ("never acted", "–"),
    }
    assert "units reset" not in report_of({"vanilla": {0: IDLE}, "fire": {0: HISTORY}}).table()


def cells_of(report):
    """Return the cells of each table by method and column."""
    found = []
    for table in report.table().split("\n\n"):
        head, _, *rows = (re.split(r" {2,}", line) for line in table.splitlines())
        found.append({row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows})
    return found


def test_the_difference_to_the_reference_is_that_of_a_paired_t_test():
    random = np.random.default_rng(0)
    for seeds in (2, 3, 10):
        reference = random.normal(size=seeds)
        values = reference + random.normal(0.3, 0.1, seeds)
        expected = ttest_rel(values, reference).confidence_interval(0.95)
        middle, low, high = difference(dict(enumerate(values)), dict(enumerate(reference)))
        assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-12)
        assert middle == pytest.approx(values.mean() - reference.mean())
    # expected: differences 0.1, 0.2, 0.3 of the seeds that both have; their deviation is 0.1, t of 2 degrees 4.3027
    found = difference({0: 1.1, 1: 2.2, 2: 3.3, 5: 9.0}, {2: 3.0, 1: 2.0, 0: 1.0, 7: -9.0})
    assert found == pytest.approx((0.2, 0.2 - 4.3027 * 0.1 / 3**0.5, 0.2 + 4.3027 * 0.1 / 3**0.5), abs=1e-5)
    for few in ({0: 1.0}, {0: 1.0, 3: 2.0}, {0: 1.0, 1: float("inf")}, {0: 1.0, 1: float("nan")}):
        assert np.isnan(difference(few, {0: 0.5, 1: 0.5, 2: 0.5})).all()


def test_the_table_pairs_runs_of_one_seed():
    """Seed 7 of the method has no partner; the seeds differ far more than the methods do."""
    methods = {"fire": {0: ending(0.82), 1: ending(0.43), 7: ending(0.1)}, "vanilla": {1: ending(0.4), 0: ending(0.8)}}
    head, _, fire, vanilla = report_of(methods).table().split("\n\n")[0].splitlines()
    assert "minus vanilla (95 %)" in head
    assert "+0.025 (-0.039 to +0.089)" in fire
    assert "+" not in vanilla
    assert "minus fire (95 %)" in report_of(methods, "fire").table()
    assert "+" not in report_of({"fire": methods["fire"]}).table()  # no run of the reference has finished


def ending(accuracy):
    return history(val__accuracy=series((19, 0.5), (59, accuracy)))


def test_a_method_whose_curves_are_those_of_vanilla_never_acted():
    dfi = series((9, 2.0), (19, 4.0), (39, 1.0), (59, 2.0 + 1e-12))
    other = history(**NO_EVENTS, plasticity__dfi_normalized=dfi)

    def never_acted(methods, method="redo"):
        table = report_of(methods, next(iter(methods))).table()
        _, line = [line for line in table.splitlines() if line.startswith(method)]
        return "never acted" in line

    assert never_acted({"vanilla": {0: IDLE, 1: other}, "redo": {0: IDLE, 1: other}})
    assert not never_acted({"vanilla": {0: IDLE, 1: other}, "redo": {0: IDLE, 1: other}}, "vanilla")
    assert not never_acted({"vanilla": {0: IDLE, 1: IDLE}, "redo": {0: IDLE, 1: other}})
    assert not never_acted({"vanilla": {0: IDLE}, "redo": {0: IDLE, 1: IDLE}})  # of seed 1 that is not known
    assert not never_acted({"fire": {0: IDLE}, "redo": {0: IDLE}})  # both may have acted alike


def test_the_summary_holds_mean_spread_and_difference(tmp_path):
    methods = {
        "vanilla": {0: ending(0.4), 1: ending(0.8)},
        "fire": {0: ending(0.43), 1: ending(0.82)},
        "single": {0: history(**NO_EVENTS, val__accuracy=series((19, 0.9), (59, 0.6)))},  # never recovers
    }
    report_of(methods).publish(tmp_path, "title")
    lines = (tmp_path / "summary.csv").read_text().splitlines()
    rows = {(row["method"], row["measure"]): row for row in csv.DictReader(lines)}
    final = rows["fire", "final"]
    assert [float(final[key]) for key in ("mean", "std", "difference", "low_95", "high_95")] == pytest.approx(
        [0.625, 0.275772, 0.025, 0.025 - 12.7062 * 0.005, 0.025 + 12.7062 * 0.005], abs=1e-5
    )
    assert (final["seeds"], final["reference"]) == ("2", "vanilla")
    assert rows["single", "final"]["difference"] == rows["single", "final"]["std"] == ""
    assert [rows["vanilla", "final"][key] for key in ("difference", "low_95", "high_95")] == ["0", "0", "0"]
    assert ("single", "sfe") not in rows
    assert (rows["single", "recovery"]["mean"], rows["single", "recovery"]["std"]) == ("inf", "")


@pytest.mark.parametrize(
    ("name", "methods", "expected"),
    [(None, ["fire", "vanilla"], "vanilla"), (None, ["fire", "dash"], "fire"), ("dash", ["vanilla", "dash"], "dash")],
)
def test_the_reference_is_the_one_named_or_vanilla_or_the_first(name, methods, expected):
    assert runs.reference_of(name, methods) == expected


def test_the_axis_of_the_metric_has_no_impossible_values():
    accuracies = {
        "vanilla": {0: history(val__accuracy=series((19, 0.9), (59, 0.02)))},
        "fire": {0: history(val__accuracy=series((19, 1.0), (59, 1.0)))},
    }
    panel = report_of(accuracies).panels()[0]
    assert (panel.low, panel.high, panel.y) == (0.0, 1.0, "validation accuracy")
    key = "val__return"
    returns = {"vanilla": {0: history(**{key: series((19, -3.0), (59, -1.0))})}}
    panel = report_of(returns, metric=Metric("val/return")).panels()[0]
    assert panel.low < -3 and panel.high > -1


@pytest.mark.parametrize(
    ("key", "origin"),
    [
        ("val/accuracy", "accuracy: on the validation data"),
        ("train/accuracy", "train/accuracy: on the training data"),
        ("test/f1", "test/f1: on the test data"),
        ("reward", "reward: as the module logs it"),
    ],
)
def test_the_note_names_the_data_of_the_metric(key, origin):
    run = history(**{key.replace("/", "__"): series((19, 0.5), (59, 0.6))})
    assert report_of({"vanilla": {0: run}}, metric=Metric(key)).note.startswith(origin)


def test_a_metric_that_is_not_logged_is_named_at_once(tmp_path):
    """That of validation when it ends, that of training at the end of the epoch, where `Classifier` logs it."""
    trainer = SimpleNamespace(callback_metrics={"val/loss": 1.0}, sanity_checking=False, is_global_zero=False)
    trainer.current_epoch, trainer.strategy = 0, SimpleNamespace(broadcast=lambda due: False)
    trainer.callbacks = [SimpleNamespace(), SimpleNamespace(name="probe")]
    module = Classifier(nn.Linear(2, 2), 2)
    ReportProgress(tmp_path / "progress.json", needs="probe/loss").on_validation_end(trainer, module)  # logged later
    for key, stage in (("val/f1", "validation"), ("train/f1", "training")):
        report = ReportProgress(tmp_path / "progress.json", needs=key)
        end = report.on_validation_end if stage == "validation" else report.on_train_epoch_end
        if stage == "training":
            report.on_validation_end(trainer, module)
        told = f"{stage} logs no {key}, which is compared: let Classifier log it, or name another"
        told += " with --metric and --mode"
        with pytest.raises(MisconfigurationException, match=f"{told}; there are val/loss"):
            end(trainer, module)
        for there in (key, f"{key}_seen"):
            end(SimpleNamespace(**{**vars(trainer), "callback_metrics": {there: 0.5}}), module)


def test_trainings_end_with_their_comparison(tmp_path):
    stopped = []
    job = SimpleNamespace(ended=lambda: False, stop=lambda: stopped.append("job"))
    engine = SimpleNamespace(limit=1, begin=lambda runs: [job] * len(runs))
    with pytest.raises(runner.TimeIsUpError):
        runner.execute([Run("vanilla", 0, tmp_path / "run", [{}])], engine, until=0.0)
    assert stopped == ["job"]


def test_many_methods_have_colours_of_their_own():
    assert len(set(colors([str(n) for n in range(20)]).values())) == 20
    assert len(colors([str(n) for n in range(45)])) == 45


def test_one_seed_has_no_standard_deviation_and_what_was_not_measured_is_a_dash():
    lines = report_of({"vanilla": {0: IDLE}}).table().splitlines()
    assert "±" not in lines[2]
    assert lines[2].split() == ["vanilla", "1", "0.600", "–", "0.700", "0.800", "–", "2.0"]
    assert lines[-1].split() == ["vanilla", "0.300", "4.000", "–", "–"]


def test_a_chunk_without_validation_is_left_out_of_the_average():
    sparse = numbers(history(val__accuracy=series((39, 0.6), (59, 0.8))))
    assert sparse["average"] == sparse["final"] == 0.8


def test_the_axis_of_the_deviation_ends_at_1e_4(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    for lowest in (1e-13, 0.5):
        histories = {"fire": {0: history(fire__dfi_normalized_after=series((20, lowest)))}}
        draw(report_of(histories).panels(), tmp_path / "picture.png", "title")
    (low, high), (unclipped, _) = (figure.axes[1].get_ylim() for figure in figures)
    assert low == 1e-4 and high > 4
    assert unclipped == pytest.approx(0.45, abs=0.01)
    monkeypatch.undo()
    plt.close("all")


def test_runs_of_different_length_are_averaged_together():
    """Mean and spread at each position are those of the runs that reach it."""
    short = history((0,), val__accuracy=series((9, 0.6)), plasticity__dfi_normalized=series((9, 4.0)))
    curves = report_of({"vanilla": {0: history(val__accuracy_at_new_data=None), 1: short}}).panels()[0].curves
    position, mean, deviation = band(curves["vanilla"])
    assert position == pytest.approx([0.45, 0.9, 0.95, 1.475, 1.975])
    assert mean[:3] == pytest.approx([0.4, (0.6 + np.interp(0.9, [0.45, 0.95], [0.4, 0.5])) / 2, 0.5])
    assert mean[-1] == 0.8 and deviation[-1] == 0
    assert deviation[1] == pytest.approx(np.std([0.6, 0.49], ddof=1))


def test_a_monitor_that_measures_no_weights_leaves_dashes(tmp_path):
    """As `every_n_epochs=25` in 9 epochs; the accuracy is compared all the same."""
    run = history(**NO_EVENTS, plasticity__dfi_normalized=None)
    report = report_of({"vanilla": {0: run}})
    first, second = cells_of(report)
    assert first["vanilla"]["final accuracy"] == "0.800"
    assert (second["vanilla"]["DfI before"], second["vanilla"]["DfI after"]) == ("–", "–")
    assert "by the PlasticityMonitor (before: if it measures the last epoch of each chunk)" in report.note
    report.publish(tmp_path, "title")  # without a panel for it


OWN_DATA = """
from lightning_fire.data import SmallFashionMNISTDataModule

class Own(SmallFashionMNISTDataModule):
    {}
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "report = 'retrun'",
            "own_data.Own.report must be one of accuracy, loss, return, as an attribute of the class",
        ),
        ("report = property(lambda self: 'loss')", "as an attribute of the class, got <property"),
        ("import own_dtaa", "data: there is no module own_dtaa, installed or in the current folder"),
        ("repot = undefined", "own_data.Own cannot be imported: NameError: name 'undefined' is not defined"),
    ],
)
def test_a_mistake_in_ones_own_data_is_an_error_before_training(recipe, line, message, capsys):
    Path("own_data.py").write_text(OWN_DATA.format(line))
    with pytest.raises(SystemExit):
        compare(recipe, "--methods", "vanilla", "--set", "data.class_path=own_data.Own")
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("config", "added"),
    [
        ({"trainer": {"callbacks": [{"class_path": "PlasticityCallback"}]}}, True),
        ({"trainer": {"callbacks": [{"class_path": "PlasticityMonitor"}]}}, False),
        ({"method": {"class_path": "lightning_fire.callbacks.PlasticityMonitor"}}, False),
        (
            {
                "method": {
                    "class_path": "PlasticityMonitor",
                    "init_args": {"log": {"class_path": "Log", "init_args": {"name": "other"}}},
                }
            },
            True,
        ),
    ],
)
def test_a_recipe_without_a_monitor_gets_one(config, added):
    data = {"data": {"class_path": "SmallFashionMNISTDataModule"}}
    run, plain = Run("vanilla", 0, Path("out"), [data, config]), Run("plain", 0, Path("out"), [data])
    assert with_monitor([run])[0].extra == ({"trainer": {"callbacks+": [_MONITOR]}} if added else {})
    by_config = replace(plain, extra=config)
    assert (with_monitor([by_config])[0].extra == config) != added
    if not added:
        with pytest.raises(ValueError, match="plain lacks the PlasticityMonitor that other methods have"):
            with_monitor([run, plain])


@pytest.mark.parametrize(
    "name",
    ["../../up", "a/b", "=cmd|calc!A0", "+1", "-1", "@a", "\x1b[2J", "a\n", "..", "", "a.", "shared_start", "x" * 101],
)
@pytest.mark.parametrize("key", ["methods", "starts"])
def test_names_that_leave_the_folder_or_run_in_a_spreadsheet_are_refused(recipe, name, key, capsys):
    content = yaml.safe_load(recipe.read_text())
    content.setdefault(key, {})[name] = {"class_path": "FullReset"} if key == "methods" else 1
    recipe.write_text(yaml.safe_dump(content))
    with pytest.raises(SystemExit):
        compare(recipe, "--methods", "vanilla")
    text = capsys.readouterr()
    assert f"{name!r} is not a valid name" in text.err and "\x1b" not in text.err and not text.out


@pytest.mark.parametrize("name", ["fire", "fire,steps=5", "shrink_and_perturb_0.5", "_own", "été", "3 steps", "a+b"])
def test_usual_names_are_names(name):
    check_name(name)


def test_a_failed_run_does_not_steer_the_terminal(recipe, monkeypatch, capsys):
    monkeypatch.setattr(runner, "execute", lambda runs, *_: dict.fromkeys(runs, "\x1b[2J"))
    with pytest.raises(SystemExit):
        compare(recipe, "--methods", "vanilla", "--seeds", "1")
    text = capsys.readouterr().out
    assert "FAILED: \\x1b[2J" in text and "\x1b" not in text


def test_a_method_that_is_named_twice_runs_once(recipe, tmp_path):
    assert len(runs.plan(find_recipe(recipe), ["vanilla", "fire", "vanilla"], range(2), tmp_path)) == 4


def test_the_reason_of_a_failure_begins_at_the_last_error():
    log = "Epoch 0\nlightning-fire: error: no\nusage: …\nerror: Parser key:\n  Option 'stepz' not accepted\n  Given 4\n"
    assert engines.log_tail(log) == "error: Parser key: Option 'stepz' not accepted Given 4"
    assert engines.log_tail("one\n\nRuntimeError: two\n") == "RuntimeError: two"


@pytest.mark.parametrize(
    ("jobs", "each", "expected"),
    [(1, None, ["4"]), (3, None, ["4", "5", "4"]), (None, None, ["4", "5"]), (None, 2, [None]), (2, 0, ["", ""])],
)
def test_several_processes_share_the_gpus(monkeypatch, jobs, each, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    engine = engines.Local(jobs, engines.Resources(gpus=each))
    assert [engine.share(slot).get("CUDA_VISIBLE_DEVICES") for slot in range(engine.limit)] == expected


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)

    def shared(jobs, cpus):
        engine = engines.Local(jobs, engines.Resources(cpus=cpus))
        return engine.limit, engine.share(0)["OMP_NUM_THREADS"]

    assert [shared(None, None), shared(2, None), shared(None, 4), shared(3, 4)] == [
        (8, "1"),
        (2, "4"),
        (2, "4"),
        (3, "4"),
    ]
    with pytest.raises(ValueError, match="a run needs 1 GPUs, this machine has 0"):
        engines.Local(1, engines.Resources(gpus=1))


def test_overrides_of_the_data_keep_the_seed_of_the_data(recipe, tmp_path):
    extra = {"data": {"init_args": {"root": "elsewhere"}}, "trainer": {"max_epochs": 3}}
    for run in runs.plan(find_recipe(recipe), ["vanilla"], range(3), tmp_path, extra):
        settings = run.settings()
        assert settings["seed_everything"] == run.seed
        assert settings["data"]["init_args"] == {"seed": run.seed, "root": "elsewhere"}
        assert settings["trainer"]["max_epochs"] == 3
        assert settings["trainer"]["enable_progress_bar"] is False


def test_configuration_is_laid_over_every_run_and_what_is_set_over_that(recipe):
    Path("more.yaml").write_text("trainer: {precision: bf16-mixed, max_epochs: 3}\n")
    words = [str(recipe), "--config", "more.yaml", "--set", "trainer.max_epochs=5"]
    extra = common(compare_parser().parse_args(words))[3]
    assert extra == {"trainer": {"precision": "bf16-mixed", "max_epochs": 5}}


SHARING = {
    "fire": FIRE,
    "full_reset": "method: {class_path: FullReset}\n",
    "shrink": "method: {class_path: ShrinkAndPerturb}\n",
    "dash": "method: {class_path: DASH}\n",
    "l2": "method: {class_path: L2Init, init_args: {strength: 0.1}}\nstart_chunk: 1\n",
    "redo": "method: {class_path: ReDo, init_args: {threshold: 0.9}}\nstart_chunk: 1\n",
    "cbp": "method: {class_path: ContinualBackprop, init_args: {replacement_rate: 0.2, maturity: 1}}\nstart_chunk: 1\n",
    "snr": "method: {class_path: SelfNormalizedReset, init_args: {max_silence: 20}}\nstart_chunk: 1\n",
    "pi": "method: {class_path: PlasticityInjection, init_args: {head: net.head}}\n",
}


DFI = "plasticity/dfi_normalized"


@pytest.mark.slow(10)
@pytest.mark.parametrize("names", [["fire", "cbp"], pytest.param(list(SHARING), marks=pytest.mark.crash)], ids=len)
def test_a_shared_first_chunk_changes_no_number(recipe, tmp_path, names):
    for name in names:
        set_method(recipe, name, SHARING[name])
    methods = ["vanilla", *names]
    shared = main(["compare", str(recipe), "--output", "shared", "--seeds", "1", "--methods", *methods])
    alone = ["--output", "alone", "--seeds", "1", "--no-shared-start"]
    apart = main(["compare", str(recipe), *alone, "--methods", *methods])
    for method in methods:
        one, other = (read_curves(tmp_path / folder / method / "seed0") for folder in ("shared", "alone"))
        assert list(ChunkedRun(one, Metric()).starts) == list(ChunkedRun(other, Metric()).starts) == [0, 4, 8, 12]
        for key in ("val/accuracy", DFI):  # curves from the very first epoch on
            assert np.array_equal(one[key], other[key]), method
        if method not in ("vanilla", "snr"):
            vanilla = read_curves(tmp_path / "alone" / "vanilla" / "seed0")
            assert not np.array_equal(one[DFI], vanilla[DFI]), f"{method} does nothing"
    pandas.testing.assert_frame_equal(shared, apart, rtol=1e-6)
    assert yaml.safe_load((tmp_path / "shared/fire/seed0/run.yaml").read_text())["ckpt_path"]
    assert not list((tmp_path / "shared").rglob("*.ckpt"))
    assert ChunkedRun(read_curves(tmp_path / "shared/shared_start/seed0"), Metric()).starts[-1] == 4
    assert not (tmp_path / "alone/shared_start").exists()


def test_only_runs_that_wait_for_new_data_share(recipe, tmp_path):
    overlays = {
        "waits": "method: {class_path: ReDo}\nstart_chunk: 2",
        "at_once": "method: {class_path: FIRE}\nwhen: {class_path: AtNewData, init_args: {skip_first: false}}",
        "by_default": "method: {class_path: ReDo}",
        "both": "method: [{class_path: FullReset}, {class_path: ReDo}]",
        "more": "model: {init_args: {warmup: 0.2}}\nmethod: {class_path: ReDo}\nstart_chunk: 2",
        "no_method": "model: {init_args: {warmup: 0.2}}",
        "users": "method: {class_path: their.Method}\nwhen: {class_path: AtNewData}",
        "muon": "method: {class_path: UseMuon, init_args: {when: {class_path: AtNewData}}}",
    }
    for name, overlay in overlays.items():
        set_method(recipe, name, overlay)
    planned = runs.plan(find_recipe(recipe), ["vanilla", "fire", *overlays], [0, 1], tmp_path / "out")
    shared = with_shared_starts(planned)
    assert [run.method for run in shared] == [run.method for run in planned]
    assert {run.method for run in shared if run.start} == {"vanilla", "fire", "waits"}
    assert len({run.start for run in shared if run.start}) == 2  # one for each seed
    changed = [replace(run, extra={"method": {"init_args": {"steps": 3}}}) for run in planned]
    assert not any(run.start for run in with_shared_starts(changed))
    assert not any(run.start for run in with_shared_starts(planned[:1]))  # no run to share with
    set_base(recipe, BASE + MONITOR + "method: {class_path: ReDo}\n")
    planned = runs.plan(find_recipe(recipe), ["vanilla", "fire", *overlays], [0, 1], tmp_path / "out")
    assert not any(run.start for run in with_shared_starts(planned))


@pytest.mark.slow
def test_where_the_first_chunk_cannot_be_shared_runs_train_it_themselves(recipe, tmp_path, capsys):
    """One chunk has no end before the training's, and data may not say where its chunks are."""
    words = ["--methods", "vanilla", "fire", "--seeds", "1", "--set"]
    compare(recipe, *words, "data.init_args.protocol.init_args.num_chunks=1")
    for method in ("vanilla", "fire"):
        assert "ckpt_path" not in yaml.safe_load((tmp_path / f"out/{method}/seed0/run.yaml").read_text())
    with pytest.raises(SystemExit, match="no run finished"):
        compare(recipe, *words, "data.init_args.batch_size=0")
    assert len(re.findall("seed 0 FAILED: .*`batch_size` must be", capsys.readouterr().out)) == 2


def test_a_training_is_another_one_if_its_settings_are(recipe, tmp_path):
    """Not by comments, the layout of the recipe, the order of keys, or another name of its folder."""
    text = recipe.read_text()

    def fingerprint(text=text, extra=None, output=tmp_path / "out"):
        recipe.write_text(text)
        (run,) = runs.plan(find_recipe(recipe), ["fire"], [0], output, extra)
        return run.fingerprint()

    as_it_is = fingerprint()
    for same in (f"# what came of it\n{text}\n", yaml.safe_dump(yaml.safe_load(text), sort_keys=False, indent=6)):
        assert same != text and fingerprint(same) == as_it_is
    assert fingerprint(output=Path("out")) == as_it_is
    for new in ("steps: 6", "steps: '5'", ""):
        other = text.replace("steps: 5", new)
        assert other != text and fingerprint(other) != as_it_is
    keys = {"trainer": {"max_epochs": 3, "precision": 32}, "ckpt_path": None}
    turned = {"ckpt_path": None, "trainer": {"precision": 32, "max_epochs": 3}}
    assert fingerprint(extra=keys) == fingerprint(extra=turned) != as_it_is


def test_a_run_whose_code_changes_before_it_begins_is_not_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("changing_code.py").write_text("class Mine:\n    steps = 1\n")
    config = {"method": {"class_path": "changing_code.Mine"}}
    starts = [Run("start", seed, tmp_path / f"start{seed}", [config]) for seed in range(2)]
    runs = [Run("mine", start.seed, tmp_path / str(start.seed), [config], start=start) for start in starts]
    plain, begun = Run("plain", 0, tmp_path / "plain", [{"method": {}}]), []
    assert not plain.code

    class Changing:
        limit = 1

        def begin(self, runs):
            begun.extend(runs)
            Path("changing_code.py").write_text("class Mine:\n    steps = 22\n")
            return [SimpleNamespace(ended=lambda: True, failure=lambda: "no")]

    outcome = runner.train(runs, Changing())
    assert begun == starts[:1] and "steps = 1" in runs[0].code
    assert set(outcome.values()) == {"its code has changed since this command began: give the command again"}
    assert not runs[0].folder.exists() and not plain.has_new_code()


def test_recipes_of_one_name_have_folders_of_their_own(tmp_path):
    assert Recipe(tmp_path / "recipes/vision/warm_start/a.yaml", {}).name == Path("vision/warm_start/a")
    assert Recipe(tmp_path / "mine.yaml", {}).name == Path("mine")


def test_callbacks_are_added_to_those_of_the_run(recipe, tmp_path):
    extra = {"trainer": {"callbacks+": [{"class_path": "Timer"}]}}
    (run,) = runs.plan(find_recipe(recipe), ["fire"], [0], tmp_path / "out", extra)
    callbacks = run.settings()["trainer"]["callbacks+"]
    assert [callback["class_path"].rpartition(".")[2] for callback in callbacks] == ["ReportProgress", "Timer"]


def test_a_comparison_under_nohup_is_not_stopped_by_a_hang_up():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runner._stoppable():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, former)


def test_sigterm_is_handled_without_sighup(monkeypatch):
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    with runner._stoppable():
        assert callable(signal.getsignal(signal.SIGTERM))


def test_a_file_keeps_few_lines_of_the_bar(monkeypatch, capsys):
    """500 reports of progress at once: a terminal would show some of them, a log file gets the first line alone."""

    def execute(runs, engine, show, until):
        for epoch in range(500):
            show({"run": RunProgress(epoch, 500, 1, 1)}, [])
        return {}

    monkeypatch.setattr(runner, "execute", execute)
    monkeypatch.setattr(runner, "amount", lambda todo, now, active: (500, now["run"].epoch))
    assert runner.train([], None) == {}
    assert capsys.readouterr().err.count("\r") == 2  # at its begin, and at its end


def test_the_bar_counts_a_shared_first_chunk_once(recipe, tmp_path):
    planned = with_shared_starts(runs.plan(find_recipe(recipe), ["vanilla", "fire"], [0], tmp_path / "out"))
    (start,) = {run.start for run in planned}

    def at(epoch, began=0):
        return RunProgress(epoch, 110, 1, 2, began=began)

    todo = [start, *planned]
    assert runner.amount(todo, {start: at(50)}, [start]) == (None, 50)
    assert runner.amount(todo, {start: at(100)}, []) == (None, 100)
    now = {start: at(100), planned[0]: at(110, 100), planned[1]: at(105, 100)}
    assert runner.amount(todo, now, [planned[1]]) == (120, 115)
    assert runner.amount(planned, {planned[0]: at(30)}, [planned[0]]) == (220, 30)
    assert runner.amount(planned, {planned[0]: at(100, 90)}, [planned[0]]) == (40, 10)  # resumed


def test_later_methods_share_again_and_a_single_one_trains_by_itself(recipe, tmp_path, instantaneous):
    compare(recipe, "--methods", "vanilla", "fire", "--seeds", "1")
    set_method(recipe, "shrink", SHARING["shrink"])
    set_method(recipe, "full_reset", SHARING["full_reset"])
    compare(recipe, "--methods", "vanilla", "fire", "shrink", "full_reset", "--seeds", "1")
    assert "ckpt_path" in yaml.safe_load((tmp_path / "out/shrink/seed0/run.yaml").read_text())
    set_method(recipe, "dash", SHARING["dash"])
    compare(recipe, "--methods", "fire", "dash", "--seeds", "1")
    assert "ckpt_path" not in yaml.safe_load((tmp_path / "out/dash/seed0/run.yaml").read_text())


def test_the_table_is_utf8_for_any_default_encoding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(io, "text_encoding", lambda encoding, stacklevel=2: encoding or "ascii")
    files = dict.fromkeys(("a.png", "a.pdf", "a.csv"), Path.touch)
    deliver(tmp_path, [[["final"], ["0.8 ± 0.1"]]], files, "été ±")
    assert "0.8 ± 0.1\n".encode() in (tmp_path / "table.txt").read_bytes()
    assert b"0.8 $\\pm$ 0.1" in (tmp_path / "table.tex").read_bytes()


def test_every_run_is_in_the_first_table_of_several(tmp_path, capsys):
    deliver(tmp_path, [[["final"]]], dict.fromkeys(("results.csv", "summary.csv"), Path.touch), "note")
    assert f"every run:   {tmp_path / 'results.csv'}\n" in capsys.readouterr().out


def test_jobs_of_a_scheduler_train_what_the_comparison_would(recipe, tmp_path, capsys, instantaneous):
    words = ["--set", "data.init_args.batch_size=9", "--methods"]
    one = compare(recipe, *words, "fire", "--seeds", "1", "--first-seed", "1", "--no-report")
    assert list(one.index) == [("", "fire", 1)] and "final accuracy" not in capsys.readouterr().out
    (marker,) = (tmp_path / "out").rglob("finished.json")
    assert marker.parent == tmp_path / "out/fire/seed1" and not (tmp_path / "out/table.txt").exists()
    before = marker.stat().st_mtime_ns
    compare(recipe, *words, "vanilla", "fire", "--seeds", "2")
    assert marker.stat().st_mtime_ns == before
    compare(recipe, "--methods", "fire", "--seeds", "1", "--first-seed", "1")
    assert "trained before with other settings or code, training again: fire seed 1" in capsys.readouterr().out


def test_runs_of_changed_code_are_trained_again(recipe, tmp_path, capsys, instantaneous):
    own = "from lightning_fire import FIRE\n\n\nclass Own(FIRE):\n    pass\n\n\nclass Other:\n    pass\n"
    file = tmp_path / "own_of_compare.py"
    set_method(recipe, "dash", "method: {class_path: own_of_compare.Own}")
    trained = []
    for text in (own, own.replace("Other:", "Renamed:"), own.replace("    pass", "    mine = 1", 1)):
        file.write_text(text)
        compare(recipe, "--methods", "vanilla", "dash", "--seeds", "1")
        told = "trained before with other settings or code, training again: dash seed 0\n" in capsys.readouterr().out
        trained.append((told, (tmp_path / "out/dash/seed0/finished.json").read_text()))
    assert [told for told, _ in trained] == [False, False, True]
    assert trained[0][1] == trained[1][1] != trained[2][1]


def test_a_comparison_ends_in_a_decision(recipe, tmp_path, capsys, instantaneous):
    """The logs are the same with each seed: equal differences, which two seeds cannot show and six can."""
    words = ["--methods", "vanilla", "full_reset", "fire", "--json", "--seeds"]
    for seeds, choice in (("2", "vanilla"), ("8", "full_reset")):
        compare(recipe, *words, seeds, "--worth", "0.05")
        text = capsys.readouterr().out
        *_, last = text.splitlines()
        decision = json.loads(last)["decision"]
        assert decision["choice"] == choice and decision["worth"] == 0.05
        assert (tmp_path / "out/decision.txt").read_text() == f"{decision['text']}\n"
        assert decision["text"] in text.split("comparison.png")[0]
    assert decision["warm_start"]["gain"] == pytest.approx(-0.8)
    assert decision["text"].startswith("Decision: train from scratch")


def test_finished_runs_are_reported_without_training(recipe, tmp_path, capsys, instantaneous):
    compare(recipe, "--methods", "vanilla", "fire", "--seeds", "2")
    words = ["--methods", "fire", "vanilla", "full_reset", "--no-train", "--labels", "fire=FIRE, mine", "--title", "My"]
    compare(recipe, *words, "--seeds", "2", "--format", "markdown")
    text = capsys.readouterr().out
    assert (
        "not finished, left out: full_reset seed 0, full_reset seed 1\n" in text
        and "| FIRE, mine | 2 |" in text
        and "full_reset |" not in text
    )
    assert not (tmp_path / "out/full_reset").exists() and (tmp_path / "out/comparison.svg").is_file()
    with pytest.raises(SystemExit, match="no run finished"):
        compare(recipe, "--methods", "full_reset", "--no-train")
    with pytest.raises(SystemExit, match="no run finished"):
        compare(
            recipe, "--methods", "fire", "full_reset", "--seeds", "1", "--no-train", "--set", "trainer.max_epochs=5"
        )
    text = capsys.readouterr().out
    assert "trained with other settings or code, left out: fire seed 0; repeat their --set and --config\n" in text
    assert "not finished, left out: full_reset seed 0\n" in text


def test_two_comparisons_in_one_folder_raise(recipe, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    folder = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(SystemExit, match="another comparison is at work in out: wait, or choose another --output"):
        compare(recipe, "--methods", "vanilla", "--seeds", "1")
    os.close(folder)


@pytest.mark.slow
def test_a_comparison_stops_in_time_and_is_resumed(recipe, tmp_path, capsys, monkeypatch):
    words = ["--methods", "vanilla", "fire", "--seeds", "1", "--jobs", "1"]
    with pytest.raises(SystemExit, match="stopped: 0 of 2 runs have finished; the same command"):
        compare(recipe, *words, "--max-minutes", "0.001")
    results = compare(recipe, *words, "--json")
    *rows, last = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert last["decision"]["choice"] is None and "One seed" in last["decision"]["text"]
    assert [(row["method"], row["seed"]) for row in rows] == [("vanilla", 0), ("fire", 0)]
    assert rows[0]["sfe"] is None and rows[1]["final"] == results.loc[("", "fire", 0), "final"]


def test_the_resources_of_a_run_come_from_the_recipe_or_the_command_line(recipe, capsys):
    recipe.write_text(f"resources: {{cpus: 2, minutes: 5}}\n{recipe.read_text()}")
    assert find_recipe(recipe).resources == {"cpus": 2, "minutes": 5}
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("minutes: 5", "gpu: 1"))
    for words, message in (
        ([], "may have cpus, gpus and minutes, got {'cpus': 2, 'gpu': 1}"),
        (["--cpus", "0"], "got {'cpus': 0, 'gpu': 1}"),
    ):
        with pytest.raises(SystemExit):
            compare(recipe, "--methods", "vanilla", *words)
        assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ValueError, match="`cpus` of a run must be a whole number of at least 1, got 0"):
        engines.Resources(cpus=0)
