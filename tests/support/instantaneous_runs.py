"""Runs of a comparison that take no time: what the command does around its trainings, without them."""

import itertools
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import yaml
from torch.utils.tensorboard import SummaryWriter

from lightning_fire.experiments.branching import SHARED_START
from lightning_fire.experiments.runs import Run
from lightning_fire.experiments.training import RunProgress, perform


class Instantaneous:
    """Stand-in for an engine and its jobs: writes the files of a training, from existing logs."""

    logs = Path()  # files of the name <method>.<chunk>
    limit = 2

    def __init__(self, *args):
        self.result = None

    def begin(self, runs):
        """Run the jobs."""
        jobs = []
        for run in runs:
            jobs.append(job := Instantaneous())
            job.result = perform(run, partial(job.fit, run))
        return jobs

    def ended(self):
        """Return True."""
        return True

    def failure(self):
        """Return the error."""
        return self.result

    def close(self):
        """Do nothing."""

    def fit(self, run: Run, words: Sequence[str]) -> None:
        """Write the files of a training."""
        place = run.folder
        method = place.parent.name
        start = yaml.safe_load((place / "run.yaml").read_text()).get("ckpt_path")
        assert start is None or Path(start).is_file()
        if method == SHARED_START:
            (place / "start.ckpt").touch()
        for chunk in [0] if method == SHARED_START else [1] if start else [0, 1]:
            name = "vanilla" if chunk == 0 else method
            shutil.copy(self.logs / f"{name}.{chunk}", place / f"events.out.tfevents.{chunk}")
        (place / "progress.json").write_text(json.dumps(RunProgress(2, 2, 2, 2, ended=True)))

    @classmethod
    def write_logs(cls, folder: Path, methods: Sequence[str]) -> None:
        """Make the logs of some methods."""
        for number, (method, chunk) in enumerate(itertools.product(methods, (0, 1))):
            with SummaryWriter(str(folder / "now")) as log:
                log.add_scalar("plasticity/chunk", chunk, 4 * chunk)
                for step in range(4 * chunk, 4 * chunk + 4):
                    log.add_scalar("val/accuracy", 0.01 * step + 0.1 * number, step)
                    log.add_scalar("plasticity/dfi_normalized", 1 / (step + 1 + number), step)
            (written,) = (folder / "now").iterdir()
            written.rename(folder / f"{method}.{chunk}")
        cls.logs = folder
