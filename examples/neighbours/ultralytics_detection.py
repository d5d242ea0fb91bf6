"""ultralytics: act on the network of the trainer when a training begins, and let its average follow."""

import os
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
from ultralytics import YOLO

from lightning_fire import fire_


# stand-in for your data: a bright square to find
def data(*weeks):
    root = Path("data").resolve()
    for week in weeks:
        draw = np.random.default_rng(list(week.encode()))
        for kind in ("images", "labels"):
            (root / kind / week).mkdir(parents=True, exist_ok=True)
        for index in range(16):
            image, (x, y) = draw.integers(0, 60, (64, 64, 3), np.uint8), draw.integers(4, 36, 2)
            image[y : y + 20, x : x + 20] = 255
            cv2.imwrite(str(root / f"images/{week}/{index}.png"), image)
            line = f"0 {(x + 10) / 64} {(y + 10) / 64} {20 / 64} {20 / 64}"
            (root / f"labels/{week}/{index}.txt").write_text(line)
    train = ", ".join(f"images/{week}" for week in weeks)
    (root / "data.yaml").write_text(f"path: {root}\ntrain: [{train}]\nval: images/{weeks[-1]}\nnames: [square]\n")
    return str(root / "data.yaml")


# stand-in for your folder and options
os.chdir(tempfile.mkdtemp())
options = {"epochs": 2, "imgsz": 64, "batch": 8, "device": "cpu", "workers": 0, "plots": False}
options |= {"nbs": 8, "warmup_epochs": 0}
project = f"{os.getcwd()}/runs"

YOLO("yolo11n.yaml").train(data=data("week1"), project=project, name="week1", **options)


def act(trainer):
    if trainer.start_epoch == 0:  # an interrupted training that is resumed has acted before
        print(fire_(trainer.model, optimizers=trainer.optimizer, averages=trainer.ema))
        assert all(map(torch.equal, trainer.ema.ema.parameters(), trainer.model.parameters()))


yolo = YOLO(f"{project}/week1/weights/last.pt")
yolo.add_callback("on_train_start", act)
yolo.train(data=data("week1", "week2"), project=project, name="week2", **options)
model = yolo.trainer.model
for saved, trained in zip(YOLO(f"{project}/week2/weights/last.pt").model.parameters(), model.parameters(), strict=True):
    assert torch.allclose(saved, trained, atol=0.01)  # saved is the average, in half precision
