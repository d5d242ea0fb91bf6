"""One training on the first chunk of data for all methods that do nothing in it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_fire.compare.runs import Run, is_finished

FOLDER = "shared_start"


class SaveStart(Callback):
    """Saves a checkpoint at the end of the first chunk of data, and ends the training there.

    Args:
        path: The checkpoint.

    Raises:
        MisconfigurationException: When training starts, if the DataModule has no `chunk_at(epoch)`.
    """

    def __init__(self, path: str):
        self.path = Path(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the data."""
        if not hasattr(trainer.datamodule, "chunk_at"):
            raise MisconfigurationException(
                f"{type(trainer.datamodule).__name__} has no chunk_at(epoch), which tells where its first chunk ends:"
                " compare with --no-shared-start"
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, and stop."""
        data, epoch = trainer.datamodule, trainer.current_epoch
        if data.chunk_at(epoch + 1) != data.chunk_at(epoch):
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def with_shared_starts(runs: Sequence[Run], extra: Mapping[str, Any]) -> list[Run]:
    """Let runs that are the same in their first chunk go on from one training on it.

    These are the runs whose overlay adds nothing but methods that wait for new data: `when` is `AtNewData`, or
    `start_chunk` at least 1.

    Args:
        runs: Runs that are to be trained, or have finished.
        extra: Configuration on top of each run's own, as for YAML.

    Returns:
        They, in their order; where several that have not finished are the same, with a `start`.
    """
    if "intervention" in extra:  # nobody knows what it makes the methods do
        return list(runs)
    alike = defaultdict(list)
    for run in runs:
        plain = "intervention" not in yaml.safe_load(run.configs[0].read_text())
        if plain and not is_finished(run, extra) and all(_is_idle_at_first(path) for path in run.configs[1:]):
            alike[run.configs[0], run.seed].append(run)
    start_of = {}
    for (base, seed), group in alike.items():
        if len(group) > 1:
            folder = group[0].folder.parent.parent / FOLDER / f"seed{seed}"
            start = Run(FOLDER, seed, folder, (base,), checkpoint=folder / "start.ckpt")
            start_of |= dict.fromkeys(group, start)
    return [replace(run, start=start_of.get(run)) for run in runs]


def _is_idle_at_first(overlay: Path) -> bool:
    """Tell whether an overlay adds methods, and nothing else, which all wait for new data."""
    content = yaml.safe_load(overlay.read_text())
    if not isinstance(content, Mapping) or set(content) != {"intervention"}:
        return False
    methods = content["intervention"] if isinstance(content["intervention"], list) else [content["intervention"]]
    return all(_waits(method) for method in methods)


def _waits(method: Any) -> bool:
    arguments = method.get("init_args", {}) if isinstance(method, Mapping) else {}
    when = arguments.get("when", {})
    at_new_data = isinstance(when, Mapping) and when.get("class_path", "").rpartition(".")[2] == "AtNewData"
    skips = at_new_data and when.get("init_args", {}).get("skip_first", True)
    return bool(skips) or arguments.get("start_chunk", 0) >= 1
