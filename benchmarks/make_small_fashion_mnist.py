"""Rebuild lightning_fire/data/fashion_mnist_small.npz from the original files: class-balanced, seeded, in mixed order.

python benchmarks/make_small_fashion_mnist.py --root DIR   # with DIR/FashionMNIST/raw/ as torchvision leaves it
"""

import argparse

import numpy as np
import torch
from torchvision.datasets import FashionMNIST

SEED = 0
OUT = "lightning_fire/data/fashion_mnist_small.npz"


def draw(root: str, train: bool, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `per_class` images of each class in a seeded permutation, and their labels."""
    full = FashionMNIST(root, train=train)
    order = torch.randperm(len(full), generator=torch.Generator().manual_seed(SEED))
    rank_in_class = torch.nn.functional.one_hot(full.targets[order], 10).cumsum(0).gather(1, full.targets[order, None])
    chosen = order[rank_in_class.squeeze(1) <= per_class]
    return full.data[chosen].numpy(), full.targets[chosen].numpy().astype(np.uint8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds FashionMNIST/raw/")
    root = parser.parse_args().root
    (train_images, train_labels), (test_images, test_labels) = draw(root, True, 1000), draw(root, False, 200)
    arrays = {"train_images": train_images, "train_labels": train_labels}
    np.savez_compressed(OUT, **arrays, test_images=test_images, test_labels=test_labels)
