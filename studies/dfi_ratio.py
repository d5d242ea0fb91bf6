"""The ratio that `lightning-fire diagnose` prints, in networks that have lost nothing.

python -m studies.dfi_ratio   # a table by initial scale and length of training; 20 networks of 26,000 weights

Each network learns from a stream of samples of one distribution, each seen once. To continue is to train a new network
for longer, so nothing is lost; the accuracy on held-out samples shows that it still rises.
"""

import argparse
from collections.abc import Iterator, Sequence
from math import exp, log

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_fire.checkpoints.diagnosis import diagnosis_of, mean_ratio

INPUTS, CLASSES, BATCH = 64, 10, 100
FACTORS, STEPS = (0.25, 0.5, 1.0, 2.0), (100, 1000, 4000)


def network(width: int, factor: float = 1.0, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a new MLP with two hidden layers, PyTorch's initial weights times a factor."""
    hidden = [nn.Linear(INPUTS, width), activation(), nn.Linear(width, width), activation()]
    net = nn.Sequential(*hidden, nn.Linear(width, CLASSES))
    for layer in net[::2]:
        layer.weight.data.mul_(factor)
    return net


def accuracy(net: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Return the accuracy in percent."""
    return 100 * (net(inputs).argmax(1) == labels).double().mean().item()


def ratio(net: nn.Sequential) -> float:
    """Return the geometric mean of DfI divided by that of new weights, as `diagnose` does."""
    return mean_ratio(diagnosis_of(layer.weight).dfi_ratio for layer in net[::2])


def measure(factor: float, seed: int, steps: Sequence[int]) -> Iterator[dict[str, float]]:
    """Yield ratio and accuracy of one network after each number of steps of Adam (rate 1e-3, batches of 100)."""
    torch.manual_seed(seed)
    teacher, net = network(128, activation=nn.Tanh).requires_grad_(False), network(128, factor)
    held_out = torch.randn(2000, INPUTS)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(1, max(steps) + 1):
        inputs = torch.randn(BATCH, INPUTS)
        optimizer.zero_grad()
        cross_entropy(net(inputs), teacher(inputs).argmax(1)).backward()
        optimizer.step()
        if step in steps:
            correct = accuracy(net, held_out, teacher(held_out).argmax(1))
            yield {"factor": factor, "steps": step, "log_ratio": log(ratio(net)), "accuracy": correct}


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="when to measure")
    options = parser.parse_args()
    rows = [row for factor in FACTORS for seed in range(options.seeds) for row in measure(factor, seed, options.steps)]
    means = pd.DataFrame(rows).groupby(["factor", "steps"]).mean()
    print("| initial weights | " + " | ".join(f"{steps:,} steps" for steps in options.steps) + " |")
    print("|---|" + "--:|" * len(options.steps))
    for factor in FACTORS:
        found = [means.loc[(factor, steps)] for steps in options.steps]
        cells = [f"× {exp(each.log_ratio):.2f} ({each.accuracy:.0f} %)" for each in found]
        print(f"| × {factor:g} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
