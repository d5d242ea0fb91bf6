"""Reinforcement learning after too much fine-tuning: does a pull to the base model help, or a reset of neurons?

python -m studies.rejuvenation   # a table; results.csv, rejuvenation.csv and rejuvenation.png in runs/rejuvenation

A GPT of 0.3M parameters writes four digits as an answer to four digits. The base model has learned eight operations,
of which it cannot know the one that is asked for; the rare one, sorting, is 2 % of its data. It is fine-tuned on 128
demonstrations of sorting, 40 % of them with digits at random, for a few epochs or too many. Then REINFORCE: a program
checks whether the answer is sorted. Arms of one seed share the base, the fine-tuning, and the prompts.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_fire.experiments.statistics import difference, holm_levels, p_value
from lightning_fire.experiments.tables import with_spread
from lightning_fire.methods import confident_logits, fire_, initial_values, rejuvenate_
from lightning_fire.nets import GPT
from studies.runs import Row, arguments, finish, markdown, run

DIGITS, LENGTH = 10, 4  # the eleventh token separates prompt and answer
OPERATIONS: tuple[Callable[[Tensor], Tensor], ...] = (  # of prompts (samples, LENGTH)
    lambda x: x.sort(-1).values,
    lambda x: x.flip(-1),
    lambda x: x,
    lambda x: x.sort(-1, descending=True).values,
    lambda x: x.roll(1, -1),
    lambda x: x.roll(2, -1),
    lambda x: (x + 1) % DIGITS,
    lambda x: DIGITS - 1 - x,
)
SHARES = (0.02, *[0.14] * 7)  # of the operations in the data of the base model
BASE_STEPS, BASE_BATCH, BASE_RATE = 800, 128, 1e-3
DEMONSTRATIONS, WRONG, RATE, EPOCHS = 128, 0.4, 1e-3, {"moderate": 5, "over": 200}
STEPS, PROMPTS, ANSWERS, RL_RATE = 120, 8, 8, 3e-4  # REINFORCE: answers to each prompt of a step
TESTED, TRIES = 128, 8  # prompts after training, answers to each: pass@8
CALIBRATION, POSITIONS = 32, 2  # demonstrations for attributions, and tokens of each
REFERENCE = "over"
PARTS = (
    ("over", "moderate"),
    ("pull 0.5 + reset 1 %", "over"),
    ("pull 0.5", "over"),
    ("pull 0.5 + reset 1 %", "pull 0.5"),
    ("pull 0.5 + reset 10 %", "pull 0.5"),
    ("reset 10 %", "reset 10 %, at random"),
)
Act = Callable[[nn.Module, Mapping[str, Tensor], Tensor], object]  # of the model, the base and the demonstrations


def rejuvenate(model: nn.Module, base: Mapping[str, Tensor], demonstrations: Tensor, **options: object) -> None:
    """Call `rejuvenate_`, with attributions of the logits of demonstrations."""
    reference = copy.deepcopy(model)
    reference.load_state_dict(base, strict=False)

    def logits_of() -> object:
        for example in demonstrations[:CALIBRATION, None]:
            with torch.no_grad():
                of_base = answers_of(reference, example)
            yield confident_logits(answers_of(model, example), of_base, example[:, LENGTH + 1 :], POSITIONS)

    rejuvenate_(model, base, logits_of, **options)  # type: ignore[arg-type]


def pull(strength: float, fraction: float = 0.0, score: str = "attribution") -> Act:
    """Return a rejuvenation with these numbers."""
    return partial(rejuvenate, strength=strength, fraction=fraction, score=score)


def nothing(model: nn.Module, base: Mapping[str, Tensor], demonstrations: Tensor) -> None:
    """Leave the model as it is."""


ARMS: Mapping[str, tuple[str, Act]] = {  # the checkpoint from which reinforcement learning starts, and what is done
    "base": ("base", nothing),
    "moderate": ("moderate", nothing),
    "over": ("over", nothing),
    "pull 0.5": ("over", pull(0.5)),
    "pull 0.8": ("over", pull(0.8)),
    "reset 1 %": ("over", pull(0.0, 0.01)),
    "reset 10 %": ("over", pull(0.0, 0.1)),
    "reset 10 %, by drift": ("over", pull(0.0, 0.1, "drift")),
    "reset 10 %, at random": ("over", pull(0.0, 0.1, "random")),
    "pull 0.5 + reset 1 %": ("over", pull(0.5, 0.01)),
    "pull 0.5 + reset 10 %": ("over", pull(0.5, 0.1)),
    "FIRE": ("over", lambda model, *_: fire_(model, steps=5)),
    "FIRE, Procrustes": ("over", lambda model, *_: fire_(model, steps=5, scale="procrustes")),
}


@dataclass(frozen=True)
class Setting:
    """One run: an arm and a seed."""

    method: str
    seed: int

    @property
    def shape(self) -> int:
        """The seed, whose arms share base and fine-tuning."""
        return self.seed


def prompts(count: int, generator: Generator) -> Tensor:
    """Return random digits, `(count, LENGTH)`."""
    return torch.randint(DIGITS, (count, LENGTH), generator=generator)


def written(asked: Tensor, answers: Tensor) -> Tensor:
    """Return sequences `(count, 2 · LENGTH + 1)` of prompts, the separator and answers, which may be shorter."""
    return torch.cat([asked, torch.full((len(asked), 1), DIGITS), answers], 1)


def answers_of(model: nn.Module, sequences: Tensor) -> Tensor:
    """Return the logits of the answers, `(count, LENGTH, DIGITS + 1)`."""
    return model(sequences[:, :-1])[:, LENGTH:]


def log_probabilities(model: nn.Module, sequences: Tensor) -> Tensor:
    """Return the log-probability of each digit of the answers, `(count, LENGTH)`."""
    logits = answers_of(model, sequences)
    return -cross_entropy(logits.mT, sequences[:, LENGTH + 1 :], reduction="none")


@torch.no_grad()
def sample(model: nn.Module, asked: Tensor, answers: int, generator: Generator) -> Tensor:
    """Return sequences with answers drawn from the model, digits alone: so many to each prompt, one after another."""
    sequences = written(asked, asked[:, :0])
    for position in range(LENGTH):
        probabilities, count = model(sequences)[:, -1, :DIGITS].softmax(-1), 1 if position else answers
        drawn = torch.multinomial(probabilities, count, replacement=True, generator=generator)
        sequences = torch.cat([sequences.repeat_interleave(count, 0), drawn.view(-1, 1)], 1)
    return sequences


def reward(sequences: Tensor) -> Tensor:
    """Return 1 for each answer that is the sorted prompt, else 0, `(count,)`."""
    return (sequences[:, LENGTH + 1 :] == sequences[:, :LENGTH].sort(-1).values).all(1).float()


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Make an optimizer step, with gradients clipped to norm 1."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()


def base_of(seed: int) -> nn.Module:
    """Train a base model on all operations."""
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    model = GPT(DIGITS + 1, 2 * LENGTH + 1, depth=4, heads=4, dim=80)
    optimizer = torch.optim.Adam(model.parameters(), BASE_RATE)
    for _ in range(BASE_STEPS):
        asked = prompts(BASE_BATCH, generator)
        every = torch.stack([operation(asked) for operation in OPERATIONS])
        which = torch.multinomial(torch.tensor(SHARES), len(asked), replacement=True, generator=generator)
        step(optimizer, -log_probabilities(model, written(asked, every[which, torch.arange(len(asked))])).mean())
    return model


def demonstrations_of(seed: int) -> Tensor:
    """Return the sequences for fine-tuning, some of them wrong."""
    generator = Generator().manual_seed(1000 + seed)
    asked = prompts(DEMONSTRATIONS, generator)
    wrong = torch.rand(len(asked), 1, generator=generator) < WRONG
    return written(asked, torch.where(wrong, prompts(len(asked), generator), asked.sort(-1).values))


def fine_tuned(base: nn.Module, demonstrations: Tensor, seed: int) -> dict[str, nn.Module]:
    """Fine-tune a copy of the base; return copies after the numbers of `EPOCHS`."""
    model, generator = copy.deepcopy(base), Generator().manual_seed(2000 + seed)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    found: dict[str, nn.Module] = {}
    for epoch in range(1, max(EPOCHS.values()) + 1):
        for chosen in torch.randperm(len(demonstrations), generator=generator).split(32):
            step(optimizer, -log_probabilities(model, demonstrations[chosen]).mean())
        found |= {name: copy.deepcopy(model) for name, epochs in EPOCHS.items() if epochs == epoch}
    return found


def reinforce(model: nn.Module, seed: int) -> list[float]:
    """Train by REINFORCE, with the mean reward of the answers to a prompt as baseline; return the reward of each step.

    The prompts are the same for each arm of a seed.
    """
    asking, drawing = Generator().manual_seed(3000 + seed), Generator().manual_seed(4000 + seed)
    optimizer = torch.optim.Adam(model.parameters(), RL_RATE)
    rewards = []
    for _ in range(STEPS):
        sequences = sample(model, prompts(PROMPTS, asking), ANSWERS, drawing)
        earned = reward(sequences).view(PROMPTS, ANSWERS)
        advantage = (earned - earned.mean(1, keepdim=True)).flatten()
        if (counts := advantage != 0).any():  # the others have no gradient
            gains = advantage[counts] * log_probabilities(model, sequences[counts]).sum(1)
            step(optimizer, -gains.sum() / len(advantage))
        rewards.append(float(earned.mean()))
    return rewards


@torch.no_grad()
def tested(model: nn.Module, when: str) -> Row:
    """Return pass@1, pass@8 and the mean entropy of a digit, in nats, on prompts that all runs share."""
    generator = Generator().manual_seed(5000)
    sequences = sample(model, prompts(TESTED, generator), TRIES, generator)
    right = reward(sequences).view(TESTED, TRIES)
    entropy = torch.special.entr(answers_of(model, sequences).softmax(-1)).sum(-1).mean()
    values = {"pass_1": right.mean(), "pass_8": right.amax(1).mean(), "entropy": entropy}
    return {f"{name}_{when}": round(float(value), 4) for name, value in values.items()}


def run_batch(settings: Sequence[Setting]) -> list[Row]:
    """Train the arms of one seed; return a row for each."""
    torch.set_num_threads(1)
    seed, rows = settings[0].seed, []
    base, demonstrations = base_of(seed), demonstrations_of(seed)
    models, start = {"base": base, **fine_tuned(base, demonstrations, seed)}, initial_values(base)
    for setting in settings:
        checkpoint, act = ARMS[setting.method]
        model = copy.deepcopy(models[checkpoint])
        act(model, start, demonstrations)
        before, began = tested(model, "before"), time.process_time()
        rewards = json.dumps([round(value, 3) for value in reinforce(model, seed)])
        after, seconds = tested(model, "after"), round(time.process_time() - began, 1)
        rows.append({"method": setting.method, "seed": seed, **before, **after, "seconds": seconds, "rewards": rewards})
    return rows


def differences(runs: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return for each pair of arms their difference in pass@1, paired by seed, with an interval at Holm's level of 5 %.

    In points, of at least two seeds.
    """
    after = {arm: dict(zip(own.seed, 100 * own.pass_1_after, strict=True)) for arm, own in runs.groupby("method")}
    values = [(after[one], after[other]) for one, other in pairs]
    levels = holm_levels([p_value(np.array([one[seed] - other[seed] for seed in one])) for one, other in values])
    found = [difference(one, other, level) for (one, other), level in zip(values, levels, strict=True)]
    return [f"{middle:+.1f} ({low:+.1f} to {high:+.1f})" for middle, low, high in found]


def table(runs: pd.DataFrame) -> str:
    """Return the table of the arms: before and after reinforcement learning, and the difference to `over`."""
    methods, rows = list(dict.fromkeys(runs.method)), []
    others = [method for method in methods if method != REFERENCE]
    pairs = [(method, REFERENCE) for method in others]
    minus = dict(zip(others, differences(runs, pairs), strict=True))
    for method in methods:
        own = runs[runs.method == method]
        means = [f"{100 * own.pass_1_before.mean():.1f}", f"{own.entropy_before.mean():.2f}"]
        after = [with_spread(list(100 * own.pass_1_after), digits=1), f"{100 * own.pass_8_after.mean():.1f}"]
        rows.append([method, *means, *after, minus.get(method, "–")])
    head = ["arm", "pass@1 before", "entropy before", "pass@1 after", "pass@8 after", f"pass@1 minus `{REFERENCE}`"]
    return markdown(head, rows)


def table_of_parts(runs: pd.DataFrame) -> str:
    """Return the table that tells the pull from the reset, and chosen neurons from others."""
    pairs = [pair for pair in PARTS if set(pair) <= set(runs.method)]
    rows = [[f"{one} minus {other}", cell] for (one, other), cell in zip(pairs, differences(runs, pairs), strict=True)]
    return markdown(["pass@1 after, in points", "difference"], rows)


def draw(runs: pd.DataFrame, path: Path) -> None:
    """Draw the mean reward of each arm along the steps of reinforcement learning, in means of ten steps."""
    figure, axes = plt.subplots(figsize=(8, 4))
    width = min(10, min(len(json.loads(rewards)) for rewards in runs.rewards))
    for number, method in enumerate(dict.fromkeys(runs.method)):
        mean = np.mean([json.loads(rewards) for rewards in runs[runs.method == method].rewards], 0)
        mean = mean[: len(mean) // width * width].reshape(-1, width).mean(1)
        style = "--" if ARMS[method][0] != "over" else "-"
        axes.plot((np.arange(len(mean)) + 0.5) * width, mean, style, color=plt.get_cmap("tab20")(number), label=method)
    axes.set(xlabel="step of reinforcement learning", ylabel="reward")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this study."""
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "rejuvenation", more), time.perf_counter()
    settings = [Setting(arm, seed) for arm in options.arms for seed in options.seed_range]
    runs = run(settings, options.folder, options.jobs, run_batch)
    print(f"\n{table(runs)}\n\n{table_of_parts(runs)}")
    runs.drop(columns="setting").to_csv(options.folder / "rejuvenation.csv", index=False)
    draw(runs, options.folder / "rejuvenation.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
