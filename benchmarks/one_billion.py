"""Estimate memory and seconds, by component, of a GPT of a billion parameters under FSDP2 on several GPUs.

    python benchmarks/one_billion.py [--ranks 8] [--bfloat16 TFLOP/S] [--float32 TFLOP/S] [--bandwidth GB/S]

`LanguageModel` in `bf16-mixed`, sharded by block; FIRE by the preset `gpt`, 5 steps. Sizes are those of the network on
the meta device. Measured: what autograd keeps of a block (a small GPT in bfloat16, scaled by width and tokens), FLOPs
of a projection with its metrics, and the TFLOP/s of this device where none are given. P are the parameters, B those in
blocks, E = P - B, S those that FIRE selects, R the ranks, N the tokens of a micro-batch on one GPU, d the width.

    parameters, gradients   4 P / R each                 AdamW        8 P / R
    gathered                8 E + 4 B / blocks           logits       10 N · vocabulary
    activations             a block's · blocks; checkpointed: 2 N d · blocks + one block's
    event, memory           8 S / R + 12 · largest matrix, beside parameters and AdamW
    step, compute           FLOPs per token (PaLM, appendix B); checkpointed: at most a third more for the blocks
    step, communication     8 P (R - 1) / R a micro-batch: gathered twice in bfloat16, reduced once in float32
    event, compute          FLOPs of the rank with most work (`assign`)
    event, communication    4 (R - 1) / R · (2 parameters + weight) of each weight: gathered before and after, sent once
"""

import math

import torch
from machine import parser_of, publish
from paired import seconds
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from lightning_fire import Weights
from lightning_fire.distributed import assign
from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz
from lightning_fire.methods.base.change import cost
from lightning_fire.methods.base.report import differences
from lightning_fire.modules.network_blocks import blocks_of
from lightning_fire.nets import GPT


def kept_bytes(depth: int, dim: int, block: int = 64) -> float:
    """Measure the memory that autograd keeps of a GPT in bfloat16 beside its weights: bytes for each token."""
    net, kept = GPT(64, block, depth, 4, dim).bfloat16(), {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = net(torch.zeros(2, block, dtype=torch.int64))
    for parameter in net.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / output[..., 0].numel()


def flops_by_cost(dim: int = 64) -> float:
    """Count the FLOPs of a projection and of its metrics, divided by `cost`, the multiplications of a Gram matrix."""
    weight = torch.randn(2 * dim, dim) / dim
    with FlopCounterMode(display=False) as counted:
        differences([weight], [newton_schulz(weight, 5, COEFFICIENTS["cubic"])], 1)
    return counted.get_total_flops() / cost(weight.shape)


def achieved(dim: int, dtype: torch.dtype) -> float:
    """TFLOP/s of a square matrix product on this device."""
    matrix = torch.ones(dim, dim, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")
    torch.mm(matrix, matrix)
    return 2 * dim**3 / seconds(torch.mm, matrix, matrix) / 1e12


def memory(net: GPT, ranks: int, tokens: int) -> dict[str, float]:
    """Return the bytes of each component on one GPU."""
    blocks = blocks_of(net)
    every, inside = (sum(p.numel() for m in of for p in m.parameters()) for of in ((net,), blocks))
    selected = Weights("gpt").select(net)
    of_block = tokens * net.dim / 256 * (kept_bytes(2, 256) - kept_bytes(1, 256))
    found = {"parameters": 4 * every / ranks, "gradients": 4 * every / ranks, "AdamW": 8 * every / ranks}
    found["gathered"] = 8 * (every - inside) + 4 * inside / len(blocks)
    found["logits"] = 10 * tokens * net.vocab_size
    whole = {"": of_block * len(blocks), ", checkpointed": 2 * tokens * net.dim * len(blocks) + of_block}
    fixed = sum(found.values())
    for how, activations in whole.items():
        found |= {f"activations{how}": activations, f"total{how}": fixed + activations}
    sizes = [view.parameter.numel() for view in selected]
    return found | {"event, memory": 8 * sum(math.prod(view.shape) for view in selected) / ranks + 12 * max(sizes)}


def times(net: GPT, ranks: int, tokens: int, micro: int, bfloat16: float, float32: float, bandwidth: float) -> dict:
    """Return the seconds of each component, from FLOP/s and bytes/s."""
    every, selected = sum(p.numel() for p in net.parameters()), Weights("gpt").select(net)
    elsewhere, tokens = (ranks - 1) / ranks, tokens * micro
    compute, head = (tokens * n / bfloat16 for n in (net.flops_per_token(net.block_size), 6 * net.vocab_size * net.dim))
    costs, load = [cost(view.shape) for view in selected], [0] * ranks
    for each, owner in zip(costs, assign(costs, ranks), strict=True):
        load[owner] += each
    sent = sum(4 * (2 * view.parameter.numel() + math.prod(view.shape)) for view in selected)
    return {
        "step, compute": compute,
        "step, checkpointed": (4 * compute - head) / 3,  # the head is not in a block
        "step, communication": micro * 8 * every * elsewhere / bandwidth,
        "event, compute": flops_by_cost() * max(load) / float32,
        "event, communication": sent * elsewhere / bandwidth,
    }


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    sizes = {"depth": 18, "dim": 2048, "heads": 16, "block": 1024, "vocabulary": 50304}
    for name, value in {**sizes, "ranks": 8, "batch": 12, "accumulate": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default %(default)s")
    for name, value in {"bfloat16": None, "float32": None, "bandwidth": 180.0}.items():
        parser.add_argument(f"--{name}", type=float, default=value, help="of a GPU; default %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.device("meta"):
        net = GPT(options.vocabulary, options.block, options.depth, options.heads, options.dim)
    given = {torch.bfloat16: options.bfloat16, torch.float32: options.float32}
    speeds = [1e12 * (speed or achieved(options.dim, dtype)) for dtype, speed in given.items()]
    tokens = options.batch * options.block
    of_memory = memory(net, options.ranks, tokens)
    of_time = times(net, options.ranks, tokens, options.accumulate, *speeds, options.bandwidth * 1e9)
    rows = {name: {"GB": value / 1e9} for name, value in of_memory.items()}
    rows |= {name: {"seconds": value} for name, value in of_time.items()}
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters on {options.ranks} ranks")
    for name, row in rows.items():
        print(f"{name:26s}" + "".join(f"  {value:9.3g} {unit}" for unit, value in row.items()))
    publish({"components": rows, "flops_per_second": speeds}, options.json)


if __name__ == "__main__":
    main()
