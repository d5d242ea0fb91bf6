"""Cost of FIRE's projection, against the published loop, side by side in one process.

    python benchmarks/projection_cost.py [--threads 1] [--rounds 5] [--steps 10] [--only vgg-16 …] [--json FILE]
    python benchmarks/projection_cost.py --memory

The published loop takes one `out × in` slice at a time, the tall way round, divides it by its Frobenius norm and takes
N = 10 steps X ← 1.5X − 0.5X(XᵀX) in float32. Against it: `fire` with as many steps (paper mode) and `fire` with
`steps="exact"`. Weights have random singular vectors and singular values in log steps from 1 to 1 / 1.6e4, about those
of trained networks. Each distinct shape of a model is measured, the three in turn, and counts as often as it occurs.

A ratio is the time of the loop by that of `fire`, of the sums over a model: of medians over the repetitions; in
brackets the smallest and largest. Errors are the worst over the shapes, of one slice each: of paper mode, relative in
the Frobenius norm, against the recursion in float64; of exact mode, the residual ‖QᵀQ − I‖_F / √r.

On the GPU, if there is one. `--memory` prints what each takes beyond the weights of VGG-16 at its peak, weight by
weight in place (Linux, on the CPU).
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from machine import parser_of, publish
from paired import in_turn, seconds
from torch import Tensor, nn

from lightning_fire.functional import as_matrices, fire
from lightning_fire.nets import VGG, ResNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPT2_BLOCK = {(768, 768): 4, (3072, 768): 1, (768, 3072): 1}  # q, k, v and projection; the two of the MLP


def shapes_of(model: nn.Module) -> Counter:
    return Counter(tuple(p.shape) for name, p in model.named_parameters() if p.ndim > 1)


MODELS = {
    "dqn": Counter({(32, 4, 8, 8): 1, (64, 32, 4, 4): 1, (64, 64, 3, 3): 1}),  # its Linear layers are reset
    "resnet-20": Counter(
        {(16, 3, 3, 3): 1, (16, 16, 3, 3): 6, (32, 16, 3, 3): 1, (32, 32, 3, 3): 5, (64, 32, 3, 3): 1}
        | {(64, 64, 3, 3): 5, (10, 64): 1}
    ),
    "resnet-18": shapes_of(ResNet()),
    "vgg-16": shapes_of(VGG()),
    "vit-tiny qk": Counter({(192, 192): 24}),
    "gpt-2 qk": Counter({(768, 768): 24}),
    "gpt-2": Counter({shape: 12 * count for shape, count in GPT2_BLOCK.items()} | {(50257, 768): 1}),
}


def published(weight: Tensor, steps: int) -> Tensor:
    """FIRE as published, written from its description."""
    rows, columns, *kernel = weight.shape
    slices = weight.view(rows, columns, -1)
    new = torch.empty_like(slices)
    for tap in range(slices.shape[-1]):
        x = slices[..., tap]
        x = x.T if rows < columns else x
        x = x / x.norm()
        for _ in range(steps):
            gram = x.T @ x
            x = 1.5 * x - 0.5 * (x @ gram)
        x = x.T if rows < columns else x
        new[..., tap] = x * (math.sqrt(rows / columns) / math.prod(kernel))
    return new.view(weight.shape)


def trained_like(shape: tuple[int, ...], condition: float = 1.6e4) -> Tensor:
    """Random weight of `(out, in, *kernel)` whose slices have singular values from 1 to 1 / condition, in log steps."""
    rows, columns, *kernel = shape
    short = min(rows, columns)
    sigma = torch.logspace(0, -math.log10(condition), short)
    slices = [
        (torch.linalg.qr(torch.randn(rows, short))[0] * sigma) @ torch.linalg.qr(torch.randn(columns, short))[0].T
        for _ in range(math.prod(kernel))
    ]
    return torch.stack(slices, -1).view(shape)


def errors(weight: Tensor, steps: int) -> tuple[float, float]:
    """The error of paper mode and the residual of exact mode, of the first slice."""
    x = as_matrices(weight)[0, 0].double()
    x = x if x.shape[0] >= x.shape[1] else x.T
    squares, vectors = torch.linalg.eigh(x.T @ x / x.square().sum())
    sigma = first = squares.clamp(min=1e-30).sqrt()
    for _ in range(steps):
        sigma = 1.5 * sigma - 0.5 * sigma**3
    expected = (x / x.norm()) @ (vectors * (sigma / first)) @ vectors.T
    tall = weight.shape[0] >= weight.shape[1]
    paper, exact = (as_matrices(fire(weight, n, scale="none"))[0, 0].double() for n in (steps, "exact"))
    paper, exact = (y if tall else y.T for y in (paper, exact))
    residual = (exact.T @ exact - torch.eye(x.shape[1]).to(exact)).norm() / math.sqrt(x.shape[1])
    return float((paper - expected).norm() / expected.norm()), float(residual)


def measured(shape: tuple[int, ...], steps: int, rounds: int) -> dict:
    """Times of the three, in turn, and errors. Small weights are repeated within a repetition."""
    torch.manual_seed(0)
    weight = trained_like(shape).to(DEVICE)
    ways = {"loop": (published, steps), "paper": (fire, steps), "exact": (fire, "exact")}
    repeats = max(1, round(0.02 / seconds(published, weight, steps)))
    for function, n in ways.values():
        function(weight, n)

    def time_of(function, n) -> float:
        return sum(seconds(function, weight, n) for _ in range(repeats)) / repeats

    times = in_turn({name: partial(time_of, *way) for name, way in ways.items()}, rounds)
    return {"times": times, "errors": errors(weight, steps)}


def table(models: list[str], steps: int, rounds: int) -> dict[str, dict]:
    found, result = {}, {}
    for name in models:
        for shape in MODELS[name]:
            found[shape] = found.get(shape) or measured(shape, steps, rounds)
        shapes = MODELS[name].items()

        def total(way, pick, shapes=shapes):
            return sum(count * pick(found[shape]["times"][way]) for shape, count in shapes)

        medians = {way: total(way, statistics.median) for way in ("loop", "paper", "exact")}
        row = {"loop_seconds": round(medians["loop"], 4)}
        for index, way in enumerate(("paper", "exact")):
            each = [total("loop", lambda t, i=i: t[i]) / total(way, lambda t, i=i: t[i]) for i in range(rounds)]
            row[way] = round(medians["loop"] / medians[way], 2)
            row[f"{way}_range"] = [round(min(each), 2), round(max(each), 2)]
            row[("paper_error", "exact_residual")[index]] = max(found[shape]["errors"][index] for shape, _ in shapes)
        slowest = min(
            (
                statistics.median(found[shape]["times"]["loop"]) / statistics.median(found[shape]["times"]["paper"]),
                shape,
            )
            for shape, _ in shapes
        )
        row["paper_least"] = [round(slowest[0], 2), list(slowest[1])]
        result[name] = row
        print(
            f"{name:12s} loop {row['loop_seconds']:8.4f} s"
            f"   paper × {row['paper']:.2f} ({row['paper_range'][0]} – {row['paper_range'][1]}),"
            f" error {row['paper_error']:.1e}, least × {slowest[0]:.2f} at {slowest[1]}"
            f"   exact × {row['exact']:.2f} ({row['exact_range'][0]} – {row['exact_range'][1]}),"
            f" residual {row['exact_residual']:.1e}",
            flush=True,
        )
    return result


def peak(way: str, steps: int) -> float:
    """MiB beyond the weights of VGG-16, at the peak of replacing each in place."""
    weights = [trained_like(shape) for shape in MODELS["vgg-16"].elements()]
    function, n = {"loop": (published, steps), "paper": (fire, steps), "exact": (fire, "exact")}[way]
    function(trained_like((128, 128)), n)  # what libraries allocate once
    status, worst = Path("/proc/self/status"), 0.0
    for weight in weights:
        Path("/proc/self/clear_refs").write_text("5")
        before = int(status.read_text().split("VmRSS:")[1].split()[0])
        weight.copy_(function(weight, n))
        worst = max(worst, (int(status.read_text().split("VmHWM:")[1].split()[0]) - before) / 1024)
    return worst


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak(options.peak, options.steps))
        return
    if options.memory:
        environment = os.environ | {
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "MALLOC_TRIM_THRESHOLD_": "65536",
        }  # free at once
        for way in ("loop", "paper", "exact"):
            words = [sys.executable, __file__, "--peak", way, "--threads", str(options.threads)]
            run = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
            print(f"{way:6s} {float(run.stdout):6.1f} MiB")
        return
    publish({"models": table(options.only, options.steps, options.rounds)}, options.json)


if __name__ == "__main__":
    main()
