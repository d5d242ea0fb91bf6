"""Accuracy right after an event, and remedies for its drop: python examples/after_an_event.py (a minute or two).

A small CNN, with and without BatchNorm, is trained on 3,000 images of Fashion-MNIST. Then a method changes its weights,
and it trains on 6,000 images. Printed is the mean test accuracy over the seeds, in %.
"""

import argparse
import copy
from functools import partial

import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from lightning_fire import Weights, fire_, fresh_values, shrink_and_perturb_
from lightning_fire.data import SmallFashionMNISTDataModule

METHODS = {
    "no event": lambda model: None,
    "FIRE": fire_,
    "FIRE, all but the last layer": partial(fire_, where=Weights(exclude=[r"^last\."])),
    'FIRE, scale="procrustes"': partial(fire_, scale="procrustes"),
    "shrink and perturb 0.8": lambda model: shrink_and_perturb_(model, fresh_values(model, seed=1)),
}


def network(batch_norm: bool) -> nn.Sequential:
    """Two convolutions and two Linear layers."""
    model = nn.Sequential()
    for index, (channels, features) in enumerate([(1, 16), (16, 32)]):
        model.add_module(f"conv{index}", nn.Conv2d(channels, features, 3, 2, 1))
        if batch_norm:
            model.add_module(f"norm{index}", nn.BatchNorm2d(features))
        model.add_module(f"relu{index}", nn.ReLU())
    model.extend([nn.Flatten(), nn.Linear(1568, 64), nn.ReLU()])
    model.add_module("last", nn.Linear(64, 10))
    return model


def trained(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, seed: int, steps: int) -> nn.Module:
    """Train with a new Adam, on batches of 50, in an order drawn from the seed."""
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters())
    model.train()
    while steps > 0:
        for batch in torch.randperm(len(labels), generator=generator).split(50)[:steps]:
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
        steps -= len(labels) // 50
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1200, help="of training before the event")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = SmallFashionMNISTDataModule()
    (images, labels), (test_images, test_labels) = (part[:] for part in data.load())
    images, test_images = images / 255, test_images / 255

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        return 100 * float((model.eval()(test_images).argmax(1) == test_labels).float().mean())

    print("| network | event | right after | BatchNorm re-estimated | after 10 steps | after 120 steps |")
    print("|---|---|--:|--:|--:|--:|")
    for batch_norm in (True, False):
        rows: dict[str, list[list[float]]] = {name: [] for name in METHODS}
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            model = trained(network(batch_norm), images[:3000], labels[:3000], seed, options.steps)
            for name, method in METHODS.items():
                changed = copy.deepcopy(model)
                method(changed)
                estimated = copy.deepcopy(changed)
                update_bn(images[:1000].split(100), estimated)
                later = [trained(copy.deepcopy(changed), images[:6000], labels[:6000], 99, n) for n in (10, 120)]
                rows[name].append([accuracy(each) for each in (changed, estimated, *later)])
        for name, values in rows.items():
            means = [f"{sum(column) / len(column):.0f}" for column in zip(*values, strict=True)]
            means[1] = means[1] if batch_norm else ""
            print(f"| {'with' if batch_norm else 'without'} BatchNorm | {name} | {' | '.join(means)} |", flush=True)


if __name__ == "__main__":
    main()
