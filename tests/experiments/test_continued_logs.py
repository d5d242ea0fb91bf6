"""A training that is resumed by `lightning-fire fit --ckpt_path` continues the logs of its checkpoint."""

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml
from recipe_files import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_recipe import BASE

from lightning_fire.cli import main

CARTPOLE = ROOT / "reinforcement_learning" / "dqn" / "cartpole_mlp.yaml"
SMALL = """
data:
  init_args:
    {steps_per_epoch: 80, initial_steps: 16, capacity: 640, batch_size: 4, evaluation_episodes: 2, replay_ratio: 1}
trainer: {accelerator: cpu, enable_progress_bar: false, enable_model_summary: false, log_every_n_steps: 16}
"""
LOGGERS = [
    {"class_path": "TensorBoardLogger", "init_args": {"save_dir": "logs"}},
    {"class_path": "CSVLogger", "init_args": {"save_dir": "logs", "name": "csv"}},
]
SAVE = {"class_path": "ModelCheckpoint", "init_args": {"save_top_k": -1}}
pytestmark = [
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings(r"ignore:The .* does not have many workers:UserWarning"),
]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows, the last value of a step: an event at the very checkpoint is there twice."""
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    keys = set(log.Tags()["scalars"]) - {"hp_metric", "charts/SPS"}
    return {key: list({event.step: event.value for event in log.Scalars(key)}.items()) for key in keys}


def rows(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as lines:
        return [{key: value for key, value in row.items() if key != "charts/SPS"} for row in csv.DictReader(lines)]


def fit(monkeypatch, folder: Path, recipe: list[str], *words: str) -> None:
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    Path("small.yaml").write_text(SMALL)
    Path("more.yaml").write_text(yaml.safe_dump({"trainer": {"logger": LOGGERS, "callbacks": [SAVE]}}))
    main(["fit", *recipe, "-c", "small.yaml", "-c", "more.yaml", *words])


@pytest.mark.slow
def test_it_has_one_folder_and_the_curves_of_an_uninterrupted_one(tmp_path, monkeypatch):
    recipe = [str(CARTPOLE), "--method", "fire"]
    fit(monkeypatch, tmp_path / "whole", recipe, "--trainer.max_epochs", "4")
    fit(monkeypatch, tmp_path / "resumed", recipe, "--trainer.max_epochs", "4")  # and interrupted: this much is lost
    checkpoint = "logs/lightning_logs/version_0/checkpoints/epoch=1-step=176.ckpt"
    fit(monkeypatch, tmp_path / "resumed", recipe, "--trainer.max_epochs", "4", "--ckpt_path", checkpoint)
    whole, resumed = (scalars(tmp_path / name / "logs/lightning_logs/version_0") for name in ("whole", "resumed"))
    assert whole.keys() == resumed.keys()
    for key, values in whole.items():
        if not key.endswith("seconds"):
            assert np.array_equal(resumed[key], values, equal_nan=True), key
    assert [step for step, _ in resumed["val/episode_return"]] == [96, 176, 256, 336]
    assert [step for step, _ in resumed["fire/event"]] == [184]
    files = [rows(tmp_path / name / "logs/csv/version_0/metrics.csv") for name in ("whole", "resumed")]
    for key in ("charts/episodic_return", "losses/loss", "val/episode_return", "train/loss"):
        curves = [[(int(row["step"]), row[key]) for row in file if row[key]] for file in files]
        assert curves[0] == curves[1] and len(curves[0]) >= 4, key
    for name in ("lightning_logs", "csv"):
        assert [path.name for path in Path("logs", name).iterdir()] == ["version_0"]


def test_another_method_or_model_begins_logs_of_its_own(tmp_path, monkeypatch):
    recipe = [str(CARTPOLE)]
    fit(monkeypatch, tmp_path, recipe, "--trainer.max_epochs", "1")
    checkpoint = "logs/lightning_logs/version_0/checkpoints/epoch=0-step=96.ckpt"
    before = scalars(tmp_path / "logs/lightning_logs/version_0")
    words = ["--trainer.max_epochs", "2", "--ckpt_path", checkpoint]
    fit(monkeypatch, tmp_path, recipe, *words, "--method", "fire")
    fit(monkeypatch, tmp_path, recipe, *words, "--model.init_args.epsilon=0.2")
    versions = sorted(path.name for path in Path("logs/lightning_logs").iterdir())
    assert versions == ["version_0", "version_1", "version_2"]
    assert scalars(tmp_path / "logs/lightning_logs/version_0") == before
    fit(monkeypatch, tmp_path, recipe, *words)
    assert len(list(Path("logs/lightning_logs").iterdir())) == 3
    assert [step for step, _ in scalars(tmp_path / "logs/lightning_logs/version_0")["train/loss"]] == [96, 176]


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_other_data_logs_over_batches_and_continues_too(tmp_path, monkeypatch):
    """Six epochs of two batches; the default logger."""
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    Path("save.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks+": [SAVE]}}))
    words = ["fit", "-c", "base.yaml", "-c", "save.yaml", "--trainer.log_every_n_steps", "1"]
    main(words)
    whole = scalars(Path("lightning_logs/version_0"))
    main([*words, "--ckpt_path", "lightning_logs/version_0/checkpoints/epoch=2-step=6.ckpt"])
    assert [path.name for path in Path("lightning_logs").iterdir()] == ["version_0"]
    resumed = scalars(Path("lightning_logs/version_0"))
    assert {key: [step for step, _ in values] for key, values in whole.items()} == {
        key: [step for step, _ in values] for key, values in resumed.items()
    }
    assert [step for step, _ in resumed["train/loss"]] == [1, 3, 5, 7, 9, 11]
