"""Logs of a resumed training: continued in the version folder of its checkpoint."""

import csv
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger

from lightning_fire._lightning import first_step_after
from lightning_fire.messages import inform

_TENSORBOARD = "TensorBoardLogger"


def first_new_step(checkpoint: Mapping[str, Any]) -> int:
    """Return the first step that a training resumed from a checkpoint logs: environment steps or batches."""
    for part in checkpoint.values():
        if isinstance(part, dict) and "environment_steps" in part:
            return int(part["environment_steps"]) + 1
    return first_step_after(checkpoint)


def continue_logs(config: Namespace, written: str) -> int | None:
    """Make TensorBoard and CSV loggers without a `version` continue the logs of `ckpt_path`.

    The checkpoint must be `version_N/checkpoints/*.ckpt` of one of the loggers, and `version_N/config.yaml` have the
    same seed, model, data and method as `written`. Otherwise a new version starts. TensorBoard ignores values logged
    after the checkpoint. Changes the `trainer.logger` of `config`; returns the first new step, None for a new version.
    """
    kind: Any = Namespace  # without types
    checkpoint, logger = Path(config.get("ckpt_path") or ""), config.trainer.logger
    folder = checkpoint.resolve().parent.parent
    file = folder / "config.yaml"
    if not checkpoint.is_file() or logger is False or not file.is_file():
        return None
    there, here = (yaml.safe_load(text) for text in (file.read_text(), written))
    if any(there.get(key) != here.get(key) for key in ("seed_everything", "model", "data", "method")):
        return None
    if logger is None or logger is True:
        arguments = kind(save_dir=config.trainer.default_root_dir or str(Path.cwd()))
        logger = kind(class_path=f"lightning.pytorch.loggers.{_TENSORBOARD}", init_args=arguments)
    versions = {}
    for it in logger if isinstance(logger, list) else [logger]:
        if it.class_path.endswith((_TENSORBOARD, "CSVLogger")) and it.init_args.get("version") is None:
            place = Path(it.init_args.save_dir, it.init_args.get("name", "lightning_logs") or "", folder.name)
            versions[place.resolve()] = it
    if folder not in versions:
        return None
    step = first_new_step(torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu"))
    for version, it in versions.items():
        if version.is_dir():
            it.init_args.version = folder.name
            if it.class_path.endswith(_TENSORBOARD):
                it.dict_kwargs = {**it.get("dict_kwargs", {}), "purge_step": step}
    config.trainer.logger = logger
    inform(f"The logs in {folder} are continued.")
    return step


def keep_rows(logger: Any, step: int) -> None:
    """Keep the rows of CSV loggers before a step; the loggers would delete the file."""
    for it in logger if isinstance(logger, list) else [logger]:
        path = Path(it.log_dir, "metrics.csv") if isinstance(it, CSVLogger) else None
        if path is None or not path.is_file():
            continue
        with open(path, newline="") as file:
            rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Experiment logs directory")
            it.experiment.metrics[:0] = [row for row in rows if int(row["step"]) < step]
