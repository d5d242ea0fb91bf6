"""Trainings with schedulers, averages and early stopping that are killed again and again, in two libraries.

Left out is what the libraries by themselves do not resume exactly. In Lightning: dropout, StochasticWeightAveraging, a
checkpoint between two steps of accumulated gradients, and after one at the last batch of an epoch schedulers by epoch
and what EarlyStopping counts (the validation that follows is skipped). In Hugging Face: dropout in one of
fifteen resumed trainings, and incomplete checkpoints.
"""

import json
import logging
import random
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from killed_processes import KILLED, lived, random_death
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from small_training import PlainModule, dataset, resumed_from, trainer
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_fire import (
    DASH,
    AtNewData,
    EveryNEpochs,
    EveryNSteps,
    FIRECallback,
    L2Init,
    PlasticityCallback,
    ReDo,
    RestartSchedulers,
    ShrinkAndPerturb,
)
from lightning_fire.data import ChunkedDataModule, Continual


class Scheduled(PlainModule):
    """A network with a scheduler, a validation loss, and with `averaged` an average of its own."""

    def __init__(self, scheduler: Callable, averaged: bool = False):
        super().__init__()
        self.scheduler = scheduler
        decay = get_ema_multi_avg_fn(0.9)
        self.average = AveragedModel(self.net, multi_avg_fn=decay) if averaged else None

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW([*self.net.parameters()], lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "interval": "step"}}

    def optimizer_step(self, *args, **options):
        super().optimizer_step(*args, **options)
        if self.average is not None:  # a checkpoint at the end of a batch comes before the module's own hook there
            self.average.update_parameters(self.net)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/loss", torch.nn.functional.cross_entropy(self.net(x), y))


def lightning(callbacks: Callable[[], list], module: Callable[[], Scheduled], folder: Path, **options) -> dict:
    """Fit in `folder`, from its last checkpoint on; return all that a training has at its end."""
    save = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=1, save_last=True, monitor=None)
    torch.manual_seed(0)
    data = ChunkedDataModule(dataset(48), dataset(12, seed=1), Continual(num_chunks=3, epochs=2), batch_size=6)
    network = module()
    run = trainer(*callbacks(), save, logger=False, **options)
    run.fit(network, data, **resumed_from("last", weights_only=False))
    schedulers = [config.scheduler.state_dict() for config in run.lr_scheduler_configs]
    kept = {
        type(one).__name__: one.state_dict()
        for one in run.callbacks
        if not isinstance(one, ModelCheckpoint | EarlyStopping)
    }
    optimizers = [optimizer.state_dict() for optimizer in run.optimizers]
    return {"weights": network.state_dict(), "optimizers": optimizers, "schedulers": schedulers, "callbacks": kept}


def hugging_face(method: Callable, folder: Path, **options) -> dict:
    """Train a small network by the Trainer of transformers, from its last checkpoint on."""
    import transformers
    from transformers.trainer_utils import get_last_checkpoint

    from lightning_fire.integrations.huggingface import PlasticityCallback as OfTrainer

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = PlainModule().net

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        str(folder), num_train_epochs=3, per_device_train_batch_size=6, learning_rate=1e-2, save_strategy="steps",
        save_steps=1, save_total_limit=2, eval_strategy="epoch", report_to=[], disable_tqdm=True, use_cpu=True,
        logging_strategy="no", dataloader_pin_memory=False, seed=0, **options,
    )  # fmt: skip
    rows = [[{"x": x, "labels": y} for x, y in dataset(size, seed)] for size, seed in ((36, 0), (12, 1))]
    run = transformers.Trainer(
        Classifier(), arguments, train_dataset=rows[0], eval_dataset=rows[1], callbacks=[OfTrainer(*method())]
    )
    while (last := get_last_checkpoint(str(folder))) and not _complete(Path(last)):
        shutil.rmtree(last)  # this Trainer does not write checkpoints at once
    run.train(resume_from_checkpoint=last)
    kept = run.optimizer.state_dict(), run.lr_scheduler.state_dict()  # with what the callback counts
    return {"weights": run.model.state_dict(), "optimizers": [kept[0]], "schedulers": [kept[1]]}


def _complete(checkpoint: Path) -> bool:
    try:
        return bool(json.loads((checkpoint / "trainer_state.json").read_text()))  # written last
    except (OSError, ValueError):
        return False


def _every(steps: int) -> Callable:
    return partial(lr_scheduler.StepLR, step_size=steps, gamma=0.9)


_CYCLE = partial(lr_scheduler.OneCycleLR, max_lr=2e-2, total_steps=60)
_STOP = partial(EarlyStopping, "val/loss", patience=4)
FITS: dict[str, Callable[[Path], dict]] = {
    "one cycle, own average, early stopping": partial(
        lightning, lambda: [FIRECallback(), _STOP()], lambda: Scheduled(_CYCLE, averaged=True)
    ),
    "cosine, average by a callback": partial(
        lightning,
        lambda: [FIRECallback(), EMAWeightAveraging(decay=0.9)],
        lambda: Scheduled(partial(lr_scheduler.CosineAnnealingLR, T_max=30)),
    ),
    "warm restarts, units": partial(
        lightning,
        lambda: [RestartSchedulers(AtNewData()), PlasticityCallback(ReDo(threshold=0.2), EveryNSteps(5)), _STOP()],
        lambda: Scheduled(partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4)),
    ),
    "steps, DASH, clipping": partial(
        lightning,
        lambda: [PlasticityCallback(DASH(alpha=0.3)), PlasticityCallback(L2Init(1e-3))],
        lambda: Scheduled(_every(3)),
        gradient_clip_val=0.5,
    ),
    "Hugging Face, cosine": partial(
        hugging_face, lambda: (ReDo(threshold=0.2), EveryNEpochs(1)), lr_scheduler_type="cosine"
    ),
    "Hugging Face, plateau of warm-up, accumulation": partial(
        hugging_face,
        lambda: (ShrinkAndPerturb(strength=0.2), EveryNSteps(4)),
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=5,
        gradient_accumulation_steps=2,
    ),
}


def train(name: str, folder: Path) -> None:
    """Run a fit in a folder, and keep there what it ends with."""
    torch.save(FITS[name](folder), folder / "end.pt")


def main(folder: Path, kills: int, words: list[str]) -> None:
    """Run each fit undisturbed, then killed that many times in all, and print a line of JSON for each life."""
    draw = random.Random(0)
    for name in [name for name in FITS if not words or any(word in name for word in words)]:
        left, number, place = kills, 0, folder / name / "whole"
        while True:
            place.mkdir(parents=True, exist_ok=True)
            disturbed = left > 0 and number > 0
            death = random_death(draw, seconds=2.0, operations=250) if disturbed else {}
            code = lived(partial(train, name, place), **death)
            print(json.dumps({"training": f"{name}/{place.name}", "code": code}), flush=True)
            if code == KILLED:
                left -= 1
                continue
            if code or (left <= 0 and number > 0):
                break
            number += 1
            place = folder / name / f"killed{number}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    import transformers  # noqa: F401  (once, before the forks)

    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
