"""Runs of a comparison that take no time: what the command does around its trainings, without them."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml
from torch.utils.tensorboard import SummaryWriter

from lightning_fire.experiments import runs
from lightning_fire.experiments.progress import Progress


class Instantaneous:
    """Stands in for `processes.begin`: leaves what a training leaves, from logs that are there already."""

    logs = Path()  # files of the name <method>.<chunk>
    returncode = 0

    def __init__(self, words, log, environment):
        log.touch()
        place = Path(words[-1]).parent
        method = place.parent.name
        start = yaml.safe_load(Path(words[-1]).read_text()).get("ckpt_path")
        if start:
            assert all(Path(start).with_suffix(kind).is_file() for kind in (".ckpt", ".random"))
        if method == runs.SHARED_START:
            (place / "start.ckpt").touch()
            (place / "start.random").touch()
        for chunk in [0] if method == runs.SHARED_START else [1] if start else [0, 1]:
            name = "vanilla" if chunk == 0 else method
            shutil.copy(self.logs / f"{name}.{chunk}", place / f"events.out.tfevents.{chunk}")
        (place / "progress.json").write_text(json.dumps(Progress(2, 2, 2, 2, ended=True)))

    def poll(self):
        return self.returncode

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
