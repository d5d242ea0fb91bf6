"""Continue, re-initialize, or train from scratch when new classes come: a tiny YOLO finds Fashion-MNIST items.

python examples/neighbours/decisions/images_every_week.py DATA FOLDER

In week 1 there are 400 canvases with items of classes 0 to 4. In week 2 come 400 with items of all ten classes. Each
choice trains on the canvases of both weeks, and is measured by mAP50 on 200 canvases of week 2 that are not trained on.
"""

import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from torchvision.datasets import FashionMNIST
from ultralytics import YOLO

from lightning_fire import FIRE, ShrinkAndPerturb, decide

DATA, FOLDER = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
NETWORK = """nc: 10
backbone: [[-1, 1, Conv, [16, 3, 2]], [-1, 1, Conv, [32, 3, 2]], [-1, 1, C2f, [32, True]], [-1, 1, Conv, [64, 3, 2]],
           [-1, 1, C2f, [64, True]]]
head: [[[4], 1, Detect, [nc]]]"""
OPTIONS = {"epochs": 10, "imgsz": 64, "batch": 32, "optimizer": "AdamW", "lr0": 2e-3, "mosaic": 0, "cache": "ram"}
OPTIONS |= {"device": "cpu", "workers": 0, "val": False, "plots": False, "exist_ok": True, "project": str(FOLDER)}


def canvases(name, number, classes, seed, train=True):  # of 64×64, with two items each
    items, draw = FashionMNIST(DATA, train), np.random.default_rng(seed)
    usable = np.flatnonzero(np.isin(items.targets, classes))
    for kind in ("images", "labels"):
        (FOLDER / kind / name).mkdir(parents=True, exist_ok=True)
    for index in range(number):
        canvas, lines = draw.integers(0, 60, (64, 64), np.uint8), []
        for half, item in enumerate(draw.choice(usable, 2, replace=False)):
            pixels = items.data[item].numpy()
            (y0, x0), (y1, x1) = np.argwhere(pixels > 30).min(0), np.argwhere(pixels > 30).max(0) + 1
            y, x = draw.integers(0, 37), 32 * half + draw.integers(0, 5)
            canvas[y : y + 28, x : x + 28] = np.maximum(canvas[y : y + 28, x : x + 28], pixels)
            box = (x + (x0 + x1) / 2, y + (y0 + y1) / 2, x1 - x0, y1 - y0)
            lines.append(f"{items.targets[item]} " + " ".join(str(edge / 64) for edge in box))
        cv2.imwrite(str(FOLDER / f"images/{name}/{index}.png"), canvas)
        (FOLDER / f"labels/{name}/{index}.txt").write_text("\n".join(lines))


def fit(weeks, seed, begin=lambda trainer: None):
    paths = f"path: {FOLDER}\ntrain: [{', '.join(f'images/{week}' for week in weeks)}]\nval: images/next\n"
    (FOLDER / "data.yaml").write_text(f"{paths}names: [{', '.join(FashionMNIST.classes)}]\n")
    yolo = YOLO(FOLDER / "tiny.yaml")
    yolo.add_callback("on_train_start", begin)
    yolo.train(data=str(FOLDER / "data.yaml"), seed=seed, **OPTIONS)
    return yolo


def train(seed, start):
    yolo = fit(["week1", "week2"], seed, lambda trainer: start(trainer.model, trainer.optimizer, averages=trainer.ema))
    return yolo.metrics.box.map50


canvases("week1", 400, range(5), seed=1)
canvases("week2", 400, range(10), seed=2)
canvases("next", 200, range(10), seed=3, train=False)
(FOLDER / "tiny.yaml").write_text(NETWORK)
torch.save(fit(["week1"], 0).model.state_dict(), FOLDER / "week1.pt")
methods = [FIRE(), ShrinkAndPerturb(0.5)]
decide(train, FOLDER / "week1.pt", methods, seeds=6, metric="mAP50", output=FOLDER / "results")
