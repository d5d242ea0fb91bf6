"""Twelve months of Fashion-MNIST: each month more images, new classes, another camera, and a new process.

python examples/twelve_months.py runs/twelve_months                 # 5 methods, 5 seeds; see docs/monthly_retraining.md

Each month has 750 new images. Month 0 has 4 classes, each of the next 6 months brings another. The camera changes with
the month: rotation, contrast and noise. A month is a process of its own: it loads the best weights of last month,
trains on all images so far with one-cycle learning rates, an average of weights and early stopping, and is judged on
the images of the *next* month, which it has not seen.
"""

import argparse
import json
import logging
import math
import multiprocessing
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms.functional import rotate

from lightning_fire import AtNewData, FIRECallback, Log, PlasticityCallback, ShrinkAndPerturb
from lightning_fire.data import SmallFashionMNISTDataModule

METHODS = ("going_on", "from_scratch", "fire", "fire_procrustes", "shrink_and_perturb")
TRAIN, HELD_OUT = 600, 150  # new images a month
EPOCHS, PATIENCE = 15, 4


def seen_by_the_camera(images: torch.Tensor, month: int, generator: torch.Generator) -> torch.Tensor:
    """Rotate, fade and add noise to images (n, 1, 28, 28), uint8, as the camera of a month does; return float32."""
    phase = 2 * math.pi * month / 12
    images = rotate(images, 20 * math.sin(phase)).float() / 255
    contrast, noise = 0.7 + 0.3 * math.cos(phase), 0.15 * (1 - math.cos(phase))
    return contrast * images + noise * torch.randn(images.shape, generator=generator)


def months_of(seed: int, last: int) -> list[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Return the `train`, `held_out` and `arriving` images and labels of months 0 to `last`."""
    generator, months = torch.Generator().manual_seed(seed), []
    data = SmallFashionMNISTDataModule()
    (images, labels), (test_images, test_labels) = (part[:] for part in data.load())
    order = torch.randperm(10, generator=generator)  # in which the classes come
    unused = torch.randperm(len(labels), generator=generator)
    for month in range(last + 1):
        classes = order[: min(10, 4 + month)]
        new = unused[torch.isin(labels[unused], classes)][: TRAIN + HELD_OUT]
        unused = unused[~torch.isin(unused, new)]
        arriving = torch.isin(test_labels, classes)
        parts = {"train": new[:TRAIN], "held_out": new[TRAIN:]}
        seen = {name: (seen_by_the_camera(images[i], month, generator), labels[i]) for name, i in parts.items()}
        seen["arriving"] = seen_by_the_camera(test_images[arriving], month, generator), test_labels[arriving]
        months.append(seen)
    return months


class Images(LightningDataModule):
    """All training images up to a month, and its held-out ones."""

    def __init__(self, months: list[dict[str, tuple[torch.Tensor, torch.Tensor]]]):
        super().__init__()
        parts = zip(*(month["train"] for month in months), strict=True)
        self.train = TensorDataset(*(torch.cat(part) for part in parts))
        self.held_out = TensorDataset(*months[-1]["held_out"])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=50, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.held_out, batch_size=200)


class Network(LightningModule):
    """Two convolutions with BatchNorm and two Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
        convolutions += [nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()]
        self.net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.01)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def callback_of(method: str, month: int) -> list[Callback]:
    """Return the one line that the methods differ in. Month 0 begins with new weights: there is nothing to change."""
    if month == 0 or method in ("going_on", "from_scratch"):
        return []
    log = Log(name="event", curvature=False, validation_batches=1)  # a batch has all images held out of a month
    when = AtNewData(skip_first=False)
    if method == "shrink_and_perturb":
        return [PlasticityCallback(ShrinkAndPerturb(fresh_seed=month), when, log=log)]
    return [FIRECallback(when, scale="procrustes" if method == "fire_procrustes" else "paper", log=log)]


def fit(model: Network, images: Images, folder: Path, callbacks: Sequence[Callback] = ()) -> tuple[Network, Trainer]:
    """Train on one core without output; return the network of the best weights, which `best.ckpt` keeps."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning_fire"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    best = ModelCheckpoint(folder, "best", monitor="accuracy", mode="max", enable_version_counter=False)
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[
            *callbacks,
            EMAWeightAveraging(decay=0.95),
            EarlyStopping("accuracy", mode="max", patience=PATIENCE),
            best,
        ],
    )
    trainer.fit(model, images)
    return Network.load_from_checkpoint(best.best_model_path, map_location="cpu").eval(), trainer


@torch.no_grad()
def accuracy(model: Network, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the fraction of images that are classified correctly."""
    return float((model.net(images).argmax(1) == labels).float().mean())


def run_month(method: str, seed: int, month: int, folder: Path) -> None:
    """Train one month from the best weights of last month and write its results."""
    own = folder / method / f"seed{seed}" / f"month{month}"
    months = months_of(seed, month + 1)
    seed_everything(1000 * seed + month, verbose=False)
    model = Network()
    if month and method != "from_scratch":
        model = Network.load_from_checkpoint(own.parent / f"month{month - 1}" / "best.ckpt", map_location="cpu")
    start = time.perf_counter()
    model, trainer = fit(model, Images(months[:-1]), own, callback_of(method, month))
    seconds = time.perf_counter() - start
    after = trainer.callback_metrics.get("event/accuracy_after")
    result = {
        "method": method,
        "seed": seed,
        "month": month,
        "next_month": accuracy(model, *months[-1]["arriving"]),
        "held_out": float(trainer.checkpoint_callback.best_model_score),
        "after_event": math.nan if after is None else float(after),
        "epochs": trainer.current_epoch,
        "seconds": seconds,
    }
    (own / "result.json").write_text(json.dumps(result))


def run_year(method: str, seed: int, months: int, folder: Path) -> None:
    """Run each month in a process of its own; months that are done are kept."""
    context = multiprocessing.get_context("forkserver")  # new processes that need not import torch again
    context.set_forkserver_preload(
        ["lightning.pytorch", "torchvision", "lightning_fire.data", "lightning_fire.callbacks"]
    )
    for month in range(months):
        if not (folder / method / f"seed{seed}" / f"month{month}" / "result.json").exists():
            process = context.Process(target=run_month, args=(method, seed, month, folder))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{method}, seed {seed}, month {month} ended with exit code {process.exitcode}")


def report(folder: Path, reference: str) -> str:
    """Return the table over months 1 and later, with differences to a method, and draw the figure of all months."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import pandas as pd

    from lightning_fire.experiments.statistics import difference

    table = pd.DataFrame([json.loads(path.read_text()) for path in sorted(folder.glob("*/*/*/result.json"))])
    table.to_csv(folder / "results.csv", index=False)
    later = table[table.month > 0]
    of_seeds = later.groupby(["method", "seed"])[["next_month", "held_out", "after_event", "epochs", "seconds"]].mean()
    of_months = list(table.pivot(index=["month", "seed"], columns="method", values="next_month").groupby("month"))
    lines = [
        f"| method | next month | minus {reference} (95 %) | this month | right after the event | epochs | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    figure, (axes, differences) = plt.subplots(1, 2, figsize=(11, 4.5))
    for method in [name for name in METHODS if name in set(table.method)]:
        own, other = of_seeds.loc[method], of_seeds.loc[reference]
        mean, low, high = (100 * x for x in difference(own.next_month.to_dict(), other.next_month.to_dict()))
        versus = "" if method == reference else f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
        after = "" if own.after_event.isna().all() else f"{100 * own.after_event.mean():.0f}"
        lines.append(
            f"| {method} | {100 * own.next_month.mean():.1f} ± {100 * own.next_month.std():.1f} | {versus} |"
            f" {100 * own.held_out.mean():.1f} | {after} | {own.epochs.mean():.1f} | {own.seconds.mean():.1f} |"
        )
        means = [100 * pivot[method].mean() for _, pivot in of_months]
        line = axes.plot(means, label=method.replace("_", " "), linewidth=2)
        by_month = [pivot[method] - pivot[reference] for _, pivot in of_months]
        points = [
            (month, 100 * each) for (month, _), column in zip(of_months, by_month, strict=True) for each in column
        ]
        differences.plot(*zip(*points, strict=True), ".", color=line[0].get_color(), markersize=4, alpha=0.4)
        differences.plot([100 * column.mean() for column in by_month], color=line[0].get_color(), linewidth=2)
    axes.set(ylabel="accuracy on the next month's images, %", title="What deployment sees")
    differences.set(ylabel=f"points above {reference.replace('_', ' ')}", title="The difference (points: seeds)")
    for each in (axes, differences):
        each.set_xlabel("month")
        each.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "twelve_months.png", dpi=110)
    plt.close(figure)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where results are kept; what is there is not run again")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--reference", choices=METHODS, default="going_on", help="what the others are compared with")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--months", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    options = parser.parse_args()
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        years = [
            (method, seed)
            for seed in range(options.seeds)
            for method in dict.fromkeys((options.reference, *options.methods))
        ]
        for future in [pool.submit(run_year, *year, options.months, options.folder) for year in years]:
            future.result()
    print(report(options.folder, options.reference))
    print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes; {options.folder / 'results.csv'} has every month")


if __name__ == "__main__":
    main()
