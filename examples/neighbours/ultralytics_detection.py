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
def week(number):
    draw, root = np.random.default_rng(number), Path(f"data{number}").resolve()
    for kind in ("images", "labels"):
        (root / kind).mkdir(parents=True)
    for index in range(16):
        image, (x, y) = draw.integers(0, 60, (64, 64, 3), np.uint8), draw.integers(4, 36, 2)
        image[y : y + 20, x : x + 20] = 255
        cv2.imwrite(str(root / f"images/{index}.png"), image)
        (root / f"labels/{index}.txt").write_text(f"0 {(x + 10) / 64} {(y + 10) / 64} {20 / 64} {20 / 64}")
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images\nval: images\nnames: [square]\n")
    return str(root / "data.yaml")


# stand-in for your folder and options
os.chdir(tempfile.mkdtemp())
options = {"epochs": 2, "imgsz": 64, "batch": 8, "device": "cpu", "workers": 0, "plots": False}
options |= {"nbs": 8, "warmup_epochs": 0, "project": f"{os.getcwd()}/runs"}

YOLO("yolo11n.yaml").train(data=week(1), name="week1", **options)


def act(trainer):
    if trainer.start_epoch == 0:  # an interrupted training that is resumed has acted before
        print(fire_(trainer.model, optimizers=trainer.optimizer, averages=trainer.ema))
        assert all(map(torch.equal, trainer.ema.ema.parameters(), trainer.model.parameters()))


yolo = YOLO("runs/week1/weights/last.pt")
yolo.add_callback("on_train_start", act)
yolo.train(data=week(2), name="week2", **options)
model = yolo.trainer.model
for saved, trained in zip(YOLO("runs/week2/weights/last.pt").model.parameters(), model.parameters(), strict=True):
    assert torch.allclose(saved, trained, atol=0.01)  # saved is the average, in half precision
