"""Polar factors by matrix products against the singular value decomposition: errors, operations, seconds, misses.

    python benchmarks/exact_cost.py [--shapes 512x512 …] [--rounds 3] [--matrices 10000] [--json FILE]

For each shape and spectrum (condition 10; 1.6e4, about that of trained networks; 1e8; half of the rank) and dtype, both
in turn on the same matrix: the error ‖Q − Q*‖_F / ‖Q*‖_F against the factor in float64 (where that is unique), the
residual ‖QᵀQ − I‖_F / √r, the seconds, and the operations of the products. On the GPU, if there is one.

`--matrices` counts how many of so many matrices the products miss, which are then left to the decomposition: random
ones, with dead rows, columns or both, of low rank, with spectra of 1e1 to 1e9, and those of a network trained here.
"""

import math
import statistics
from collections.abc import Iterator

import torch
from machine import parser_of, publish
from paired import in_turn, seconds
from projection_cost import trained_like
from torch import Tensor, nn

from lightning_fire.functional.products import FINISH, REPEATS, by_products, by_svd, is_missed
from lightning_fire.nets import MLP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = ("64x64", "512x512", "768x768", "3072x768", "2048x2048")
CONDITIONS = {"10": 10.0, "1.6e4": 1.6e4, "1e8": 1e8, "half the rank": None}


def matrix_of(shape: tuple[int, int], condition: float | None) -> Tensor:
    """Return a matrix in float64, of half the rank where no condition is given."""
    if condition is not None:
        return trained_like(shape, condition, torch.float64)
    rank = min(shape) // 2
    return torch.randn(shape[0], rank, dtype=torch.float64) @ torch.randn(rank, shape[1], dtype=torch.float64)


def operations(shape: tuple[int, int], dtype: torch.dtype) -> float:
    """Return the multiplications and additions of the products; a symmetric one counts whole."""
    long, short = max(shape), min(shape)
    steps = REPEATS[dtype] + len(FINISH)
    return steps * (4 * long * short**2 + 2 * short**3)


def residual(q: Tensor) -> float:
    q = (q if q.shape[0] >= q.shape[1] else q.T).double()
    return float((q.T @ q - torch.eye(q.shape[1]).to(q)).norm()) / math.sqrt(q.shape[1])


def measured(shape: tuple[int, int], condition: float | None, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Return a row of the table."""
    torch.manual_seed(0)
    matrix = matrix_of(shape, condition).to(dtype).to(DEVICE)
    ways = {"products": by_products, "svd": by_svd}
    found = {name: way(matrix) for name, way in ways.items()}
    times = in_turn({name: lambda way=way: seconds(way, matrix) for name, way in ways.items()}, rounds)
    row: dict[str, float] = {}
    exact = by_svd(matrix.double())
    for name, q in found.items():
        if condition is not None and not (name == "svd" and dtype == torch.float64):  # which is the reference
            row[f"{name}_error"] = float((q.double() - exact).norm() / exact.norm())
        row[f"{name}_residual"] = residual(q)
        row[f"{name}_ms"] = 1e3 * statistics.median(times[name])
    row["products_GFLOP"] = operations(shape, dtype) / 1e9
    return row


def many(number: int) -> Iterator[tuple[str, Tensor]]:
    """Yield batches of matrices in float32, `number` in all or some more, with what they are."""
    torch.manual_seed(0)
    each = -(-number // 10)

    def random(rows: int, columns: int) -> Tensor:
        return torch.randn(each, rows, columns)

    yield "random", random(64, 64)
    yield "random, wide", random(24, 96)
    dead = random(64, 48)
    dead[:, :, ::5] = 0
    yield "dead columns", dead
    dead = random(48, 64) * (torch.rand(each, 48, 1) > 0.2) * (torch.rand(each, 1, 64) > 0.2)
    yield "dead rows and columns", dead
    yield "rank one", random(64, 1) @ random(1, 64)
    yield "half the rank", random(64, 32) @ random(32, 64)
    yield "decayed rows", random(64, 64) * torch.logspace(0, -30, 64).view(-1, 1)
    spectra = torch.logspace(0, -1, 48) ** (1 + 8 * torch.rand(each, 1, 1))
    yield "condition 10 to 1e9", torch.linalg.qr(random(64, 48))[0] * spectra @ torch.linalg.qr(random(48, 48))[0]
    trained = list(trained_matrices(each))
    yield "trained", torch.stack(trained)
    yield "trained, in bfloat16", torch.stack(trained).bfloat16().float()


def trained_matrices(number: int) -> Iterator[Tensor]:
    """Yield weights (32, 32) of small networks that are trained on random labels, all at different steps."""
    while number > 0:
        net = MLP(32, 10, [32] * 9)
        optimizer = torch.optim.Adam(net.parameters(), 3e-3)
        x, y = torch.randn(64, 32), torch.randint(10, (64,))
        for step in range(200):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            if step % 10 == 9:
                for weight in [p.detach().clone() for p in net.parameters() if p.shape == (32, 32)][:number]:
                    yield weight
                    number -= 1


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="rows x columns, default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--matrices", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    by_products(torch.eye(2, device=DEVICE))
    rows: dict[str, dict] = {}
    for dtype in (torch.float32, torch.float64):
        for name in options.shapes:
            for condition, value in CONDITIONS.items():
                kind = f"{name.replace('x', ' × ')}, {condition}, {str(dtype).removeprefix('torch.')}"
                shape = tuple(map(int, name.split("x")))
                rows[kind] = measured(shape, value, dtype, options.rounds)
                print(f"{kind}  ", ", ".join(f"{key} {value:.3g}" for key, value in rows[kind].items()), flush=True)
    misses: dict[str, list[int]] = {}
    for kind, matrices in many(options.matrices):
        zero = ~matrices.flatten(1).any(1)
        missed = is_missed(by_products(matrices.to(DEVICE))).cpu() & ~zero
        misses[kind] = [int(missed.sum()), len(matrices)]
        print(f"{kind}: {misses[kind][0]} of {misses[kind][1]} missed", flush=True)
    publish({"rows": rows, "misses": misses}, options.json)


if __name__ == "__main__":
    main()
