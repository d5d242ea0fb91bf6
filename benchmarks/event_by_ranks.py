"""Cost of an event by the number of ranks, to which its matrices are assigned, on the CPU with gloo.

    python benchmarks/event_by_ranks.py [--ranks 1 2] [--rounds 3] [--model gpt-2] [--sharded] [--json FILE]

Each rank has one thread. The same event is timed in turn with each number of ranks, each time in new processes, from a
barrier until the last rank has all new weights: FIRE of 10 steps on matrices of the model's shapes, the metrics it
logs included. `--sharded`: the weights are sharded by rows (DTensor, as FSDP2 has them); otherwise each
rank holds them all, as under DDP. A ratio is the time of the first number of ranks by that of another, of medians over
the repetitions; in brackets the smallest and largest of a repetition.
"""

import socket
import statistics
import time
from functools import partial

import torch
from machine import parser_of, publish
from paired import in_turn, ratio
from projection_cost import MODELS
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lightning_fire.functional import fire
from lightning_fire.methods.base.change import change_weights
from lightning_fire.where import WeightView


def event(rank: int, ranks: int, port: int, model: str, sharded: bool, seconds) -> None:
    """Time one event, in each process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    weights = [torch.randn(shape) for shape in MODELS[model].elements()]
    if sharded:
        mesh = init_device_mesh("cpu", (ranks,))
        weights = [distribute_tensor(weight, mesh, [Shard(0)]) for weight in weights]
    views = [WeightView(str(index), nn.Parameter(weight)) for index, weight in enumerate(weights)]
    warm_up = [WeightView("small", nn.Parameter(torch.randn(128, 128)))]
    for several in (warm_up, views):
        distributed.barrier()
        start = time.perf_counter()
        change_weights(several, lambda views, old: map(fire, old), share_work=True).make()
        distributed.barrier()
        seconds.value = time.perf_counter() - start
    distributed.destroy_process_group()


def measured(ranks: int, model: str, sharded: bool) -> float:
    """Seconds of one event in new processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seconds = multiprocessing.get_context("spawn").Value("d", 0.0)
    multiprocessing.spawn(event, (ranks, port, model, sharded, seconds), nprocs=ranks)
    return seconds.value


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", choices=MODELS, default="gpt-2")
    parser.add_argument("--sharded", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = {f"{ranks} ranks": partial(measured, ranks, options.model, options.sharded) for ranks in options.ranks}
    times = in_turn(ways, options.rounds)
    first = times[f"{options.ranks[0]} ranks"]
    rows = {}
    for ranks, each in times.items():
        middle, least, most = ratio(first, each)
        rows[ranks] = {"seconds": round(statistics.median(each), 3), "ratio": round(middle, 2)}
        print(f"{ranks:>8s}  {rows[ranks]['seconds']:8.3f} s  × {middle:.2f} ({least:.2f} – {most:.2f})", flush=True)
    publish({"ranks": rows}, options.json)


if __name__ == "__main__":
    main()
