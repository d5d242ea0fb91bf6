"""Speed of a language model under Lightning as a fraction of a bare loop's, side by side in one run.

    python benchmarks/language_speed.py [--only gpt-2 small] [--rounds 3] [--steps 20] [--json FILE]
    python benchmarks/language_speed.py --only gpt-2 --batch 12 --block 1024 --precision bf16-mixed

The loop trains as nanoGPT's `train.py` does: blocks read from a memory-mapped or in-memory array, micro-batches
accumulated, gradients clipped at 1, AdamW with decay on matrices alone, a learning rate set for each step. Against it a
Trainer with our `LanguageModel` and `TextDataModule`: alone; as in the recipes, with an idle `FIRECallback`,
`OptimizerReset`, a TensorBoard logger, the monitor of the learning rate and the progress bar; and with an event of FIRE
at the start of the timed epoch, five steps, λ_max not counted. Left out are validation and checkpoints. That all but
the last end with the same weights, but for rounding, is checked in each repetition.

An epoch warms up, the next is timed. A fraction is the time of the loop by that of another, of medians over the
repetitions; in brackets the smallest and largest.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor
from machine import parser_of, refuse, wait_for_device
from paired import in_turn, publish_each, share_of_loop
from random_text import LANGUAGE_MODELS, RandomText, random_tokens
from timed_fit import timed_fit
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_fire import AtEpochs, FIRECallback, Log, OptimizerReset, PlasticityCallback
from lightning_fire.callbacks import ChunkProgressBar
from lightning_fire.modules import LanguageModel
from lightning_fire.modules.chunk_schedule import learning_rate_factors

RATE, LEAST, WARMUP, CLIP = 6e-4, 6e-5, 0.1, 1.0
BOUNDS = {"32-true": 1e-5, "bf16-mixed": 1e-2}  # Adam makes a step of a gradient that is only rounding error


class Setting(NamedTuple):
    """Blocks of a micro-batch, tokens of a block, micro-batches of a step, steps of an epoch, and the precision."""

    net: str
    batch: int
    block: int
    accumulate: int
    steps: int
    precision: str = "32-true"


SETTINGS = {"gpt-2": Setting("gpt-2", 1, 128, 2, 2), "small": Setting("small", 8, 128, 1, 100)}
Trained = tuple[float, dict[str, Tensor]]  # seconds of an epoch, and the state of the network


def data_of(setting: Setting) -> RandomText:
    return RandomText([2], setting.steps, setting.batch, setting.block)


def net_of(setting: Setting) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 256} if setting.net == "small" else {}
    return LANGUAGE_MODELS[setting.net](block_size=setting.block, **sizes)


def loop(setting: Setting) -> Trained:
    """Train without Lightning."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net, data = net_of(setting).to(device), data_of(setting)
    data.setup()
    tokens, mixture = random_tokens(), data.train_dataloader().dataset.mixture
    groups = [
        {"params": [p for p in net.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)
    factor = learning_rate_factors([2 * setting.steps], [WARMUP], "linear", LEAST / RATE)
    for step in range(2 * setting.steps):
        if step == setting.steps:
            wait_for_device()
            start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = RATE * factor(step)
        for micro in range(setting.accumulate):
            _, starts = mixture.batch(step * setting.accumulate + micro)
            blocks = [torch.from_numpy(tokens[s : s + setting.block + 1].astype("int64")) for s in starts]
            blocks = torch.stack(blocks).to(device)
            with torch.autocast(device, torch.bfloat16, enabled=setting.precision == "bf16-mixed"):
                logits = net(blocks[:, :-1])
                loss = cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten())
            (loss / setting.accumulate).backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    wait_for_device()
    return time.perf_counter() - start, net.state_dict()


def lightning(setting: Setting, callbacks: Callable[[], list[Callback]]) -> Trained:
    """Train with Lightning."""
    module = LanguageModel(net_of(setting), RATE, LEAST, warmup=WARMUP)
    options = {"gradient_clip_val": CLIP, "accumulate_grad_batches": setting.accumulate}
    options["precision"] = setting.precision
    (seconds,) = timed_fit(module, data_of(setting), callbacks(), 2, **options)
    return seconds, module.net.state_dict()


WAYS: dict[str, Callable[[Setting], Trained]] = {
    "loop": loop,
    "Lightning": partial(lightning, callbacks=list),
    "as the recipes": partial(
        lightning,
        callbacks=lambda: [
            PlasticityCallback(OptimizerReset()),
            FIRECallback(),
            LearningRateMonitor(),
            ChunkProgressBar(),
        ],
    ),
    "with an event": partial(
        lightning, callbacks=lambda: [FIRECallback(AtEpochs([1]), steps=5, log=Log(curvature=False))]
    ),
}


def table(setting: Setting, rounds: int) -> dict[str, dict]:
    """Measure one network; print and return a row for each way."""
    found = in_turn({name: partial(way, setting) for name, way in WAYS.items()}, rounds)
    expected = found["loop"][0][1]
    tokens, rows = setting.batch * setting.block * setting.accumulate * setting.steps, {}
    for name, trainings in found.items():
        for _, state in trainings:
            worst = max((value.cpu() - expected[key].cpu()).abs().max().item() for key, value in state.items())
            if worst > BOUNDS[setting.precision] and name != "with an event":
                refuse(f"{name!r} ends {worst:.1g} away from the weights of the loop: it is not the same work")
        row, share = share_of_loop([t for t, _ in found["loop"]], [t for t, _ in trainings])
        speed = tokens / statistics.median(t for t, _ in trainings)
        rows[name] = {"tokens_a_second": round(speed, 1), **row}
        print(f"{setting.net:8s} {name:16s} {speed:12.1f} tokens a second   {share}", flush=True)
    return rows


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=SETTINGS, nargs="+", default=list(SETTINGS), metavar="NET")
    parser.add_argument("--rounds", type=int, default=3, help="trainings timed of each way, in turn")
    for name in ("batch", "block", "accumulate", "steps"):
        parser.add_argument(f"--{name}", type=int, help="instead of the setting's")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), help="of the computations")
    publish_each(table, SETTINGS, parser.parse_args())


if __name__ == "__main__":
    main()
