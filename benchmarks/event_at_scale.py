"""Estimated cost of an event for large models, on 1 rank and on several, from the times of one matrix of each shape.

    python benchmarks/event_at_scale.py [--models 7b 70b] [--ranks 1 64] [--steps 5] [--shrink 1] [--json FILE]

Shapes are those of Llama 2; every Linear weight is taken, as by the preset `gpt`, the output layer among them. Each
distinct shape is timed once in float32 (twice on a GPU, the second time counts), and counts as often as it occurs. The
matrices are assigned to the ranks as in an event; the rank with most work sets the time. Sending is calculated: all
new weights in bfloat16 reach every rank once (twice where weights are sharded: gathered before, sent after), at
`--bandwidth` GB/s. The calculated operations are those of the literal iteration, 4·m·n·min(m, n) a step: divide by what
a device does in float32.

`--shrink n` times matrices of 1/n of the width and height, and multiplies their time by n³: for a quick look.
"""

import math
from collections import Counter

import torch
from machine import parser_of, publish
from paired import seconds

from lightning_fire.distributed import assign
from lightning_fire.functional import fire
from lightning_fire.methods.base.change import cost

WIDTH_7B, MLP_7B = 4096, 11008
WIDTH_70B, MLP_70B, KEYS_70B = 8192, 28672, 1024  # 8 key and value heads of 128
VOCABULARY = 32000
MODELS = {
    "7b": Counter(
        {(WIDTH_7B, WIDTH_7B): 32 * 4, (MLP_7B, WIDTH_7B): 32 * 2, (WIDTH_7B, MLP_7B): 32, (VOCABULARY, WIDTH_7B): 1}
    ),
    "70b": Counter(
        {(WIDTH_70B, WIDTH_70B): 80 * 2, (KEYS_70B, WIDTH_70B): 80 * 2, (MLP_70B, WIDTH_70B): 80 * 2}
        | {(WIDTH_70B, MLP_70B): 80, (VOCABULARY, WIDTH_70B): 1}
    ),
    "tiny": Counter({(64, 32): 8, (48, 48): 4}),  # to try the benchmark itself
}


def time_of(shape: tuple[int, int], steps: int, shrink: int) -> float:
    """Seconds of one projection."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.randn(*(max(side // shrink, 1) for side in shape), device=where)
    if where == "cuda":
        fire(weight, steps)
    return seconds(fire, weight, steps) * shrink**3


def three(number: float) -> float:
    """Three digits of a number."""
    return float(f"{number:.3g}")


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["7b", "70b"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--bandwidth", type=float, default=25.0, help="GB/s of a rank; default %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    fire(torch.randn(256, 256), options.steps)  # warm up
    rows: dict[str, dict] = {}
    for name in options.models:
        times = {shape: time_of(shape, options.steps, options.shrink) for shape in MODELS[name]}
        matrices = list(MODELS[name].elements())
        parameters = sum(map(math.prod, matrices))
        operations = 4 * options.steps * sum(map(cost, matrices))
        sent = 2 * parameters / 1e9 / options.bandwidth
        rows[name] = {"matrices": len(matrices), "parameters": parameters, "operations": operations}
        print(f"{name}: {len(matrices)} matrices, {parameters:.3g} parameters, {operations:.2g} operations on paper")
        for shape, time in times.items():
            print(f"    {shape[0]:6d} × {shape[1]:<6d} {time:9.3f} s each, {MODELS[name][shape]} of them", flush=True)
        for ranks in options.ranks:
            load = [0.0] * ranks
            for shape, owner in zip(matrices, assign([cost(shape) for shape in matrices], ranks), strict=True):
                load[owner] += times[shape]
            arrives = sent if ranks > 1 else 0.0
            rows[name][f"{ranks} ranks"] = {"compute_seconds": three(max(load)), "send_seconds": three(arrives)}
            print(f"  {ranks:3d} ranks: {max(load):10.2f} s to compute, {arrives:6.2f} s to send once", flush=True)
    publish({"models": rows}, options.json)


if __name__ == "__main__":
    main()
