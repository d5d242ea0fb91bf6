"""One event of FIRE on a model of the shapes of Llama 2 7B, with as many blocks as the memory holds.

    python benchmarks/large_event.py [--blocks N] [--width 4096] [--steps 5] [--json FILE]

Weights are in bfloat16 and random. `fire_` keeps a copy of all new weights until all are computed, so that a failure
changes nothing, and of all old ones until the event is complete: with the weights 6 bytes a parameter, and some copies
of one matrix in float32. Prints the parameters, the seconds of an
event, the memory beyond the weights at the peak, and the operations a second of the iteration alone, 4·m·n·min(m, n)
a step. On the GPU, if there is one.
"""

import math
import warnings

import torch
from machine import parser_of, publish
from paired import seconds
from torch import nn

from lightning_fire import fire_
from lightning_fire.methods.base.change import cost

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHARE = 0.8  # of the free memory, for weights, new weights and old ones


def block(width: int) -> list[tuple[int, int]]:
    """Return the shapes (out, in) of a block: queries, keys, values, output, and the three of the MLP."""
    hidden = width * 43 // 16  # 11008 at 4096
    return [(width, width)] * 4 + [(hidden, width)] * 2 + [(width, hidden)]


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--blocks", type=int, help="default: as many as the GPU's memory holds, 1 on a CPU")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    of_block = sum(map(math.prod, block(options.width)))
    room = SHARE * torch.cuda.mem_get_info()[0] if DEVICE == "cuda" else 6 * of_block
    shapes = block(options.width) * (options.blocks or int(room / (6 * of_block)))
    model = nn.Sequential(*(nn.Linear(n, m, bias=False, device="meta", dtype=torch.bfloat16) for m, n in shapes))
    model.to_empty(device=DEVICE)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    warnings.simplefilter("ignore")
    fire_(model[:2], steps=options.steps)  # loads kernels
    held = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = seconds(lambda: fire_(model, steps=options.steps))
    row = {"parameters": len(shapes) // 7 * of_block, "seconds": round(taken, 3)}
    if DEVICE == "cuda":
        row["bytes"] = torch.cuda.max_memory_allocated() - held
    row["operations_a_second"] = 4 * options.steps * sum(map(cost, shapes)) / taken
    name = f"{len(shapes) // 7} blocks"
    print(f"{name}  {', '.join(f'{key} {value:.4g}' for key, value in row.items())}")
    publish({"rows": {name: row}}, options.json)


if __name__ == "__main__":
    main()
