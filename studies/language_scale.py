"""Scale of FIRE between two texts, by initial weights, length of both phases, and network: two GPTs, five seeds.

python -m studies.language_scale --root data   # it holds text/kjv.txt; table, results.csv, language_scale.png

Phase 1 is 4 kB of the King James Bible, phase 2 Python's standard library with a little of the Bible, as in the recipe
king_james_python_small_gpt. FIRE, five steps, acts between them on every Linear weight. Phase 1 is trained once for
all scales.
"""

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import exp, log
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from lightning_fire.data import KingJamesAndPythonDataModule
from lightning_fire.data.mixture import Mixture
from lightning_fire.data.text import MixedBatches, ValidationBatches
from lightning_fire.data.token_source import TokenSource
from lightning_fire.experiments.tables import difference_cell, with_spread
from lightning_fire.methods import FIRE, Loop
from lightning_fire.nets import GPT, causal_lm
from lightning_fire.where import Weights
from studies.runs import arguments, finish, markdown, run

BLOCK, BATCH, VAL_BLOCKS = 64, 4, 128  # tokens in a block, blocks in a batch, blocks of each text to validate on
BYTES = 4_000  # of the Bible: 960 steps are 61 passes
PHASES = ({"kjv": 1.0}, {"python": 9.0, "kjv": 0.1})
USUAL_STD = 0.02  # of both networks
SIZES = {"vocab_size": 256, "n_positions": BLOCK, "n_layer": 2, "n_head": 2, "n_embd": 32}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NETS = {
    "GPT": lambda: GPT(256, BLOCK, depth=2, heads=2, dim=32),
    "transformers": lambda: causal_lm("gpt2", {**SIZES, **NO_DROPOUT, "bos_token_id": None, "eos_token_id": None}),
}
NETS_IN_WORDS = {"GPT": "`GPT`", "transformers": "GPT-2 of transformers"}
STDS, FIRST = (USUAL_STD, 0.1), (120, 960)  # standard deviations of initial weights, steps of phase 1
USUAL_RATE, USUAL_SECOND = 3e-3, 160  # highest learning rate, steps of phase 2
OTHER_RATE, OTHER_SECOND = 1e-3, 640  # tried with one network
NAMES = {"paper": "the paper's", "none": "none", "procrustes": "Procrustes'"}
SCALES = tuple(NAMES)  # `auto` is the paper's for every weight of these networks
METHODS = ("vanilla", *SCALES)
OTHER_METHODS = ("vanilla", "paper", "procrustes")
WHERE = Weights(preset="gpt")


@dataclass(frozen=True)
class Setting:
    """One run.

    Attributes:
        net: Name of the network.
        std: Standard deviation of its initial weights.
        rate: Highest learning rate.
        first: Steps of phase 1.
        second: Steps of phase 2.
        method: `vanilla`, or the scale of FIRE.
        seed: Of initial weights and data.
        root: Folder with `text/kjv.txt`.
    """

    net: str
    std: float
    rate: float
    first: int
    second: int
    method: str
    seed: int
    root: str = field(compare=False, repr=False)

    @property
    def shape(self) -> tuple[object, ...]:
        """Common settings of the members of one batch."""
        return self.net, self.std, self.rate, self.first, self.second


def settings(seeds: range, root: str) -> tuple[list[Setting], list[Setting]]:
    """Return the settings of the study, and those with another learning rate or another length of phase 2."""
    usual = [(net, std, USUAL_RATE, first, USUAL_SECOND) for net in NETS for std in STDS for first in FIRST]
    others = [("transformers", USUAL_STD, USUAL_RATE, first, OTHER_SECOND) for first in FIRST]
    others += [("transformers", std, OTHER_RATE, first, USUAL_SECOND) for std in STDS for first in FIRST]
    return tuple(
        [Setting(*case, method, seed, root) for case in cases for method in methods for seed in seeds]
        for cases, methods in ((usual, METHODS), (others, OTHER_METHODS))
    )


@cache
def texts(root: str) -> dict[str, TokenSource]:
    """Return both texts by name."""
    return KingJamesAndPythonDataModule(root, kjv_bytes=BYTES).load()


def initial_net(name: str, std: float, seed: int) -> nn.Module:
    """Make an untrained network; all initial matrices and embeddings of the usual one are multiplied by std / 0.02."""
    torch.manual_seed(seed)
    net = NETS[name]()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(std / USUAL_STD)
    return net


class Batch:
    """Networks of one kind, trained side by side as one: faster than one by one.

    Args:
        nets: Their values are copied; `write` copies them back.
    """

    def __init__(self, nets: Sequence[nn.Module]):
        self.nets, self._one = nets, copy.deepcopy(nets[0])
        self.parameters, self._buffers = stack_module_state(list(nets))

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of each network, in nats per token; both `(networks, batch, length)`."""

        def logits(parameters: dict[str, Tensor], buffers: dict[str, Tensor], tokens: Tensor) -> Tensor:
            output = functional_call(self._one, (parameters, buffers), (tokens,))
            return output if isinstance(output, Tensor) else output.logits

        with sdpa_kernel(SDPBackend.MATH):  # the others are not batched over networks
            predicted = torch.vmap(logits, randomness="different")(self.parameters, self._buffers, tokens)
        losses = cross_entropy(predicted.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(len(tokens), -1).mean(1)

    def step(self, optimizer: Optimizer, tokens: Tensor, targets: Tensor) -> None:
        """Take a step of each network; the norm of its gradient is clipped at 1."""
        self.losses(tokens, targets).sum().backward()
        gradients = [parameter.grad for parameter in self.parameters.values()]
        norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
        for gradient in gradients:
            gradient.mul_((1 / (norms + 1e-6)).clamp(max=1).view(-1, *[1] * (gradient.ndim - 1)))
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def write(self) -> None:
        """Copy the values into the networks."""
        for index, net in enumerate(self.nets):
            for name, parameter in net.named_parameters():
                parameter.copy_(self.parameters[name][index])


def train(nets: Sequence[nn.Module], settings: Sequence[Setting], phase: int) -> None:
    """Train networks on a phase with a new AdamW; the rate rises for a tenth of the steps, then falls to a tenth."""
    one, batch, weights = settings[0], Batch(nets), PHASES[phase]
    steps, warmup = (one.first, one.second)[phase], max(1, (one.first, one.second)[phase] // 10)
    of_phase = [texts(one.root)[name].train for name in weights]
    data = {}
    for seed in {setting.seed for setting in settings}:
        mixture = Mixture(list(weights.values()), list(map(len, of_phase)), BLOCK, BATCH, [seed, phase])
        data[seed] = MixedBatches(of_phase, mixture, BLOCK, steps)
    decayed = {True: 0.1, False: 0.0}  # matrices and embeddings, as in nanoGPT
    groups = [
        {"params": [p for p in batch.parameters.values() if (p.ndim > 2) == matrices], "weight_decay": decay}
        for matrices, decay in decayed.items()
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], one.rate, (0.9, 0.95), fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            rising = (step + 1) / warmup
            group["lr"] = one.rate * (rising if step < warmup else 1 - 0.9 * (step - warmup) / (steps - warmup))
        of_seed = {seed: batches[torch.tensor(step)] for seed, batches in data.items()}
        tokens, targets = (torch.stack([of_seed[setting.seed][part] for setting in settings]) for part in (0, 1))
        batch.step(optimizer, tokens, targets)
    batch.write()


@torch.no_grad()
def validation_losses(nets: Sequence[nn.Module], root: str, phase: int) -> list[float]:
    """Return the mean loss of each network over the validation blocks of each text, weighted as in the phase."""
    batch, total, weights = Batch(nets), torch.zeros(len(nets)), PHASES[phase]
    for name, weight in weights.items():
        batches, loss, blocks = ValidationBatches({0: texts(root)[name].val}, BLOCK, BATCH, VAL_BLOCKS), 0, 0
        for number in range(len(batches)):
            tokens, targets, _ = batches[torch.tensor(number)]
            everywhere = (each.expand(len(nets), -1, -1) for each in (tokens, targets))
            loss, blocks = loss + len(tokens) * batch.losses(*everywhere), blocks + len(tokens)
        total += weight / sum(weights.values()) * loss / blocks
    return total.tolist()


def run_batch(settings: Sequence[Setting]) -> list[dict[str, object]]:
    """Train phase 1 of each seed once, then phase 2 for each setting, and return a row for each."""
    torch.set_num_threads(1)
    begin, of_seed = time.process_time(), {setting.seed: setting for setting in settings}
    trained = {seed: initial_net(setting.net, setting.std, seed) for seed, setting in of_seed.items()}
    train(list(trained.values()), list(of_seed.values()), 0)
    phase_1 = dict(zip(trained, validation_losses(list(trained.values()), settings[0].root, 0), strict=True))
    nets = [copy.deepcopy(trained[setting.seed]) for setting in settings]
    ratios = [
        [1.0] if setting.method == "vanilla" else list(act(net, setting.method).values())
        for net, setting in zip(nets, settings, strict=True)
    ]
    after = validation_losses(nets, settings[0].root, 1)
    train(nets, settings, 1)
    final = validation_losses(nets, settings[0].root, 1)
    seconds = (time.process_time() - begin) / len(settings)
    return [
        {name: value for name, value in vars(setting).items() if name != "root"}
        | {"ratio": exp(sum(map(log, ratio)) / len(ratio)), "largest_ratio": max(ratio)}
        | {"phase_1": phase_1[setting.seed], "after": early, "final": late, "cpu_seconds": seconds}
        for setting, ratio, early, late in zip(settings, ratios, after, final, strict=True)
    ]


def act(net: nn.Module, scale: str) -> dict[str, float]:
    """Replace every Linear weight by FIRE; return the Frobenius norm of each by its norm before, by name."""
    views = WHERE.select(net)
    before = {view.name: float(view.read().norm()) for view in views}
    FIRE(WHERE, steps=5, scale=scale)(net, Loop(measure=False))
    return {view.name: float(view.read().norm()) / before[view.name] for view in views}


CASE = ["net", "std", "rate", "first", "second"]


def table(runs: pd.DataFrame) -> str:
    """Return a row for each case: the final loss, paired differences, ratios of norms and losses at the event."""
    head = ["network", "initial std", "rate", "steps of phase 1", "of phase 2", "vanilla"]
    head += [f"{NAMES[scale]} minus vanilla (95 %)" for scale in SCALES]
    head += ["Procrustes' minus the paper's (95 %)"]
    head += [f"norms after / before, {NAMES[scale]}" for scale in OTHER_METHODS[1:]]
    head += [f"loss right after, {NAMES.get(method, method)}" for method in OTHER_METHODS]
    rows = []
    for (net, std, rate, first, second), own in runs.groupby(CASE, sort=False):
        of = {method: group.set_index("seed") for method, group in own.groupby("method")}
        final = {method: group.final.to_dict() for method, group in of.items()}
        pairs = [(scale, "vanilla") for scale in SCALES] + [("procrustes", "paper")]
        cells = [difference_cell(final.get(name, {}), final[reference]) for name, reference in pairs]
        cells += [f"{of[scale].ratio.mean():.2f}" for scale in OTHER_METHODS[1:]]
        cells += [f"{of[method].after.mean():.1f}" for method in OTHER_METHODS]
        case = [NETS_IN_WORDS[net], f"{std:g}", f"{rate:g}", str(first), str(second)]
        rows.append([*case, with_spread(list(final["vanilla"].values())), *cells])
    return markdown(head, rows)


def gains(runs: pd.DataFrame) -> pd.DataFrame:
    """Return by case and seed the ratio of norms of the paper's scale, and how far it ends above Procrustes'."""
    wide = runs.pivot(index=[*CASE, "seed"], columns="method", values=["final", "ratio"])
    gain = wide["final", "paper"] - wide["final", "procrustes"]
    return pd.DataFrame({"ratio": wide["ratio", "paper"], "gain": gain}).reset_index()


def draw(runs: pd.DataFrame, path: Path) -> None:
    """Draw how far the paper's scale ends above Procrustes', by the ratio of norms; points are seeds."""
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    for (net, std, rate, first, second), own in gains(runs).groupby(CASE, sort=False):
        label = f"{NETS_IN_WORDS[net].strip('`')}, std {std:g}, rate {rate:g}, {first} + {second} steps"
        axes.plot(own.ratio, own.gain, "os"[net != "GPT"], label=label, markersize=4, alpha=0.8)
    axes.axhline(0, color="grey", linewidth=1)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set(xscale="log", xlabel="norms after / before, the paper's scale", ylabel="paper's minus Procrustes', nats")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def more_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this study."""
    parser.add_argument("--root", default="data", help="folder with text/kjv.txt")
    parser.add_argument("--others", action="store_true", help="also a lower rate, and a longer phase 2")


def main() -> None:
    """Run the study."""
    options, start, parts = arguments(__doc__, "language_scale", more_arguments), time.perf_counter(), []
    usual, others = settings(options.seed_range, options.root)
    for part in (usual, others) if options.others else (usual,):
        parts.append(run(part, options.folder, options.jobs, run_batch))
        print(f"\n{table(parts[-1])}\n")
    runs = pd.concat(parts, ignore_index=True)
    means = gains(runs).groupby(CASE)[["ratio", "gain"]].mean()
    print(f"rank correlation of ratio and gain over {len(means)} cases: {means.corr('spearman').ratio.gain:.2f}")
    draw(runs, options.folder / "language_scale.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
