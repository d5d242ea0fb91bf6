"""A real training that is repeatedly killed and continued from its last checkpoint."""

import json
import logging
import random
import sys
import warnings
from functools import partial
from pathlib import Path

import torch
from killed_processes import KILLED, lived, random_death
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from small_training import PlainModule, dataset, trainer

from lightning_fire import (
    ContinualBackprop,
    EveryNSteps,
    FIRECallback,
    Log,
    OptimizerReset,
    PlasticityCallback,
    ShrinkAndPerturb,
)
from lightning_fire.data import ChunkedDataModule, Continual


def train(folder: Path, life: int) -> None:
    """Train in `folder`, from its last checkpoint on if it has one; leave the weights there."""
    methods = [
        FIRECallback(),
        PlasticityCallback(ShrinkAndPerturb(strength=0.1), when=EveryNSteps(7), log=Log(curvature=False)),
        PlasticityCallback(OptimizerReset()),
        PlasticityCallback(ContinualBackprop(replacement_rate=0.3, maturity=2)),
    ]
    save = ModelCheckpoint(folder / "checkpoints", "{step}", every_n_train_steps=1, save_last=True)
    logger = TensorBoardLogger(folder, name="tensorboard", version=f"life{life}")
    torch.manual_seed(0)
    module = PlainModule()
    data = ChunkedDataModule(dataset(48), dataset(6), Continual(num_chunks=3, epochs=2), batch_size=6)
    trainer(*methods, save, logger=logger, limit_val_batches=0, log_every_n_steps=50).fit(
        module, data, ckpt_path="last"
    )
    torch.save(module.state_dict(), folder / "weights.pt")


def counts_in(checkpoint: Path) -> dict[str, int]:
    """Return the events or resets that each method had counted itself, by its class."""
    states = torch.load(checkpoint, weights_only=True)["callbacks"] if checkpoint.is_file() else {}
    numbers = {key: state.get("method", {}).get("num_reset", state.get("num_events")) for key, state in states.items()}
    return {key.partition("(")[0]: number for key, number in numbers.items() if number is not None}


def unreadable(folder: Path) -> list[str]:
    """Return what is wrong with the checkpoints of a folder."""
    found = []
    for file in folder.glob("*.ckpt"):
        try:
            torch.load(file, weights_only=True)
        except Exception as error:
            found.append(f"{file.name}: {error}")
    return found


def main(folder: Path, kills: int) -> None:
    """Train once undisturbed, then with so many kills in all; print a line of JSON for each life."""
    draw, life, trainings, code = random.Random(0), 0, ["whole"], 0
    while (kills or life) and code in (0, KILLED):
        place = folder / trainings[-1]
        death = random_death(draw, seconds=1.0, operations=250) if kills and place.name != "whole" else {}
        code = lived(partial(train, place, life), **death)
        checkpoints = place / "checkpoints"
        broken = unreadable(checkpoints)
        counts = {} if broken else counts_in(checkpoints / "last.ckpt")
        told = {"training": place.name, "code": code, "unreadable": broken, "counts": counts}
        print(json.dumps(told), flush=True)
        if code == KILLED:
            kills, life = kills - 1, life + 1
        else:
            life = 0
            trainings.append(f"killed{len(trainings)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
