"""Cost of FIRE's projection, against the published loop, side by side in one process.

    python benchmarks/projection_cost.py [--threads 1] [--rounds 5] [--steps 10] [--only vgg-16 …] [--json FILE]
    python benchmarks/projection_cost.py --ways paper exact svd
    python benchmarks/projection_cost.py --memory

The published loop takes one `out × in` slice at a time, the tall way round, divides it by its Frobenius norm and takes
N = 10 steps X ← 1.5X − 0.5X(XᵀX) in float32. Against it: `fire` with as many steps (paper mode) and `fire` with
`steps="exact"`; with `--ways` also exact mode by singular value decompositions alone (`svd`). Weights have random
singular vectors and singular values in log steps from 1 to 1 / 1.6e4, about those of trained networks. Each distinct
shape of a model is measured, all in turn, and counts as often as it occurs.

A ratio is the time of the loop by that of `fire`, of the sums over a model: of medians over the repetitions; in
brackets the smallest and largest. Errors are the worst over the shapes, of one slice each: of paper mode, relative in
the Frobenius norm, against the recursion in float64; of the others, the residual ‖QᵀQ − I‖_F / √r.

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
from lightning_fire.functional.orthogonal import fire_of_finite
from lightning_fire.functional.products import by_svd
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


WAYS = {
    "loop": published,
    "paper": fire,
    "exact": lambda weight, steps: fire(weight, "exact"),
    "svd": lambda weight, steps: fire_of_finite([weight], "exact", "cubic", ["paper"], project=by_svd)[0],
}


def trained_like(shape: tuple[int, ...], condition: float = 1.6e4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random weight of `(out, in, *kernel)` whose slices have singular values from 1 to 1 / condition, in log steps."""
    rows, columns, *kernel = shape
    short = min(rows, columns)
    sigma = torch.logspace(0, -math.log10(condition), short, dtype=dtype)
    slices = [
        (torch.linalg.qr(torch.randn(rows, short, dtype=dtype))[0] * sigma)
        @ torch.linalg.qr(torch.randn(columns, short, dtype=dtype))[0].T
        for _ in range(math.prod(kernel))
    ]
    return torch.stack(slices, -1).view(shape)


def error_of(way: str, weight: Tensor, steps: int) -> float:
    """The error of paper mode, the residual of the others, of the first slice."""
    tall = weight.shape[0] >= weight.shape[1]
    found, x = (as_matrices(each)[0, 0].double() for each in (WAYS[way](weight, steps), weight))
    found, x = (y if tall else y.T for y in (found, x))
    if way != "paper":
        found = found / (found.norm() / math.sqrt(x.shape[1]))
        return float((found.T @ found - torch.eye(x.shape[1]).to(found)).norm() / math.sqrt(x.shape[1]))
    squares, vectors = torch.linalg.eigh(x.T @ x / x.square().sum())
    sigma = first = squares.clamp(min=1e-30).sqrt()
    for _ in range(steps):
        sigma = 1.5 * sigma - 0.5 * sigma**3
    expected = (x / x.norm()) @ (vectors * (sigma / first)) @ vectors.T
    expected *= math.sqrt(weight.shape[0] / weight.shape[1]) / math.prod(weight.shape[2:])
    return float((found - expected).norm() / expected.norm())


def measured(shape: tuple[int, ...], ways: list[str], steps: int, rounds: int) -> dict:
    """Times of the ways, in turn, and errors. Small weights are repeated within a repetition."""
    torch.manual_seed(0)
    weight = trained_like(shape).to(DEVICE)
    repeats = max(1, round(0.02 / seconds(published, weight, steps)))
    for way in ways:
        WAYS[way](weight, steps)

    def time_of(way: str) -> float:
        return sum(seconds(WAYS[way], weight, steps) for _ in range(repeats)) / repeats

    times = in_turn({way: partial(time_of, way) for way in ("loop", *ways)}, rounds)
    return {"times": times, "errors": {way: error_of(way, weight, steps) for way in ways}}


def table(models: list[str], ways: list[str], steps: int, rounds: int) -> dict[str, dict]:
    """Measure; print and return a row for each model."""
    found: dict[tuple, dict] = {}
    result: dict[str, dict] = {}
    for name in models:
        for shape in MODELS[name]:
            found[shape] = found.get(shape) or measured(shape, ways, steps, rounds)
        shapes = MODELS[name].items()

        def total(way, pick, shapes=shapes):
            return sum(count * pick(found[shape]["times"][way]) for shape, count in shapes)

        loop = total("loop", statistics.median)
        row, words = {"loop_seconds": round(loop, 4)}, [f"{name:12s} loop {loop:8.4f} s"]
        for way in ways:
            each = [total("loop", lambda t, i=i: t[i]) / total(way, lambda t, i=i: t[i]) for i in range(rounds)]
            row[way] = round(loop / total(way, statistics.median), 2)
            row[f"{way}_range"] = [round(min(each), 2), round(max(each), 2)]
            error = "paper_error" if way == "paper" else f"{way}_residual"
            row[error] = max(found[shape]["errors"][way] for shape, _ in shapes)
            span, kind = f"{min(each):.2f} – {max(each):.2f}", error.removeprefix(f"{way}_")
            words.append(f"{way} × {row[way]:.2f} ({span}), {kind} {row[error]:.1e}")
        if "paper" in ways:
            ratios = {
                shape: statistics.median(found[shape]["times"]["loop"])
                / statistics.median(found[shape]["times"]["paper"])
                for shape, _ in shapes
            }
            slowest = min(ratios, key=ratios.__getitem__)
            row["paper_least"] = [round(ratios[slowest], 2), list(slowest)]
            words.append(f"least × {ratios[slowest]:.2f} at {slowest}")
        result[name] = row
        print("   ".join(words), flush=True)
    return result


def peak(way: str, steps: int) -> float:
    """MiB beyond the weights of VGG-16, at the peak of replacing each in place."""
    weights = [trained_like(shape) for shape in MODELS["vgg-16"].elements()]
    function = WAYS[way]
    function(trained_like((128, 128)), steps)  # what libraries allocate once
    status, worst = Path("/proc/self/status"), 0.0
    for weight in weights:
        Path("/proc/self/clear_refs").write_text("5")
        before = int(status.read_text().split("VmRSS:")[1].split()[0])
        weight.copy_(function(weight, steps))
        worst = max(worst, (int(status.read_text().split("VmHWM:")[1].split()[0]) - before) / 1024)
    return worst


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS)[1:], default=["paper", "exact"], metavar="WAY")
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
    publish({"models": table(options.only, options.ways, options.steps, options.rounds)}, options.json)


if __name__ == "__main__":
    main()
