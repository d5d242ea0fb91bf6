"""Resets of the units of convolutions, with a BatchNorm and flattened positions, equal a slow loop after each step."""

import copy
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lightning_fire.methods import ContinualBackprop, Loop, ReDo, SelfNormalizedReset

STRIDE = 1_000_003  # between the seeds of two draws


class Units(NamedTuple):
    """A layer of `network`, the modules after it, and the inputs of each of its units to the next layer."""

    layer: int
    norm: int | None
    nonlinearity: int
    following: int
    block: int


LAYERS = [Units(0, 1, 2, 3, 1), Units(3, None, 4, 6, 4), Units(6, None, 7, 8, 1)]
SIZES = (4, 3, 5)


def network() -> nn.Sequential:
    """Two convolutions, with 3 × 3 and 2 × 2 positions, and two Linear layers."""
    first = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
    return nn.Sequential(
        *first, nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)
    )


class Outputs:
    """Keeps what each module has last returned."""

    def __init__(self, net: nn.Sequential):
        self.of: dict[int, Tensor] = {}
        for index, module in enumerate(net):
            module.register_forward_hook(lambda module, args, output, index=index: self.of.update({index: output}))
        net.register_forward_pre_hook(lambda module, args: setattr(self, "input", args[0]))

    def unit(self, module: int, unit: int) -> list[float]:
        """Outputs of one unit, of all samples and positions."""
        return self.of[module].detach()[:, unit].flatten().tolist()


def reset(
    net: nn.Sequential, momenta: dict[str, Tensor], chosen: list[list[int]], seed: int, keep_outgoing: bool
) -> None:
    """Re-initialize units one by one."""
    drawn = 0
    for units, own in zip(chosen, LAYERS, strict=True):
        if units:
            torch.manual_seed(seed + drawn)
            fresh = copy.deepcopy(net[own.layer])
            fresh.reset_parameters()
            drawn += 1
        for unit in units:
            net[own.layer].weight[unit] = fresh.weight[unit]
            values = {f"{own.layer}.weight": None, f"{own.layer}.bias": 0.0}
            if own.norm is not None:
                values |= {f"{own.norm}.{name}": 0.0 for name in ("bias", "running_mean")}
                values |= {f"{own.norm}.{name}": 1.0 for name in ("weight", "running_var")}
            for name, value in values.items():
                if value is not None:
                    net.state_dict()[name][unit] = value
                if name in momenta:
                    momenta[name][unit] = 0.0
    for units, own in zip(chosen, LAYERS, strict=True):
        for unit in units:
            for column in () if keep_outgoing else range(unit * own.block, (unit + 1) * own.block):
                net[own.following].weight[:, column] = 0.0
                momenta[f"{own.following}.weight"][:, column] = 0.0


def outgoing(net: nn.Sequential, own: Units, unit: int) -> Tensor:
    """Weights from a unit to each unit of the next layer, shape (out, inputs and kernel)."""
    return torch.cat(
        [net[own.following].weight[:, unit * own.block + i].flatten(1) if net[own.following].weight.ndim > 2
         else net[own.following].weight[:, unit * own.block + i : unit * own.block + i + 1] for i in range(own.block)],
        dim=1,
    )  # fmt: skip


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


Rule = Callable[[nn.Sequential, Outputs, int], list[list[int]]]


def continual_backprop(rate: float, maturity: int, decay: float, scored: str, compensate: bool = True) -> Rule:
    utility, output, age = ([[0.0] * size for size in SIZES] for _ in range(3))
    owed = [0.0] * len(SIZES)

    def rule(net: nn.Sequential, outputs: Outputs, batch_size: int) -> list[list[int]]:
        chosen = []
        for i, own in enumerate(LAYERS):
            for unit in range(SIZES[i]):
                seen = outputs.unit(own.layer if scored == "pre_activation" else own.nonlinearity, unit)
                score = mean([abs(value) for value in seen]) * float(outgoing(net, own, unit).abs().sum())
                utility[i][unit] = decay * utility[i][unit] + (1 - decay) * score
                output[i][unit] *= decay
                output[i][unit] += (1 - decay) * mean(outputs.unit(own.nonlinearity, unit))
                age[i][unit] += 1
            old = [unit for unit in range(SIZES[i]) if age[i][unit] > maturity]
            owed[i] += rate * len(old)
            number = int(owed[i])
            owed[i] -= number
            old.sort(key=lambda unit, i=i: utility[i][unit] / (1 - decay ** age[i][unit]))
            chosen.append(old[:number])
        lost = [
            (net[own.following].bias, outgoing(net, own, unit).sum(1) * output[i][unit] / (1 - decay ** age[i][unit]))
            for i, own in enumerate(LAYERS)
            for unit in chosen[i]
            if compensate
        ]
        for bias, value in lost:
            bias += value
        for i, units in enumerate(chosen):
            for unit in units:
                utility[i][unit] = output[i][unit] = age[i][unit] = 0.0
        return chosen

    return rule


def snr(rejection: float, refresh_every: int, max_silence: int, scored: str, expansion: float = 2.0) -> Rule:
    age, silences = ([[start() for _ in range(size)] for size in SIZES] for start in (int, list))
    threshold = [[max_silence // 2] * size for size in SIZES]
    steps = largest = 0

    def rule(net: nn.Sequential, outputs: Outputs, batch_size: int) -> list[list[int]]:
        nonlocal steps, largest
        steps, largest = steps + 1, max(largest, batch_size)
        chosen = [[] for _ in SIZES]
        for i, own in enumerate(LAYERS):
            for unit in range(SIZES[i]):
                if max(outputs.unit(own.layer if scored == "pre_activation" else own.nonlinearity, unit)) > 0:
                    silences[i][unit].append(age[i][unit])
                    age[i][unit] = 0
                else:
                    age[i][unit] += batch_size
                if steps % refresh_every == 0:
                    if seen := silences[i][unit]:
                        rare = next(a for a in range(10**4) if mean([s >= a for s in seen]) <= rejection + 1e-9)
                        longest = threshold[i][unit]
                        threshold[i][unit] = rare - 1 if rare - 1 <= longest else int(expansion * longest)
                    threshold[i][unit] = max(min(threshold[i][unit], max_silence), largest)
                    silences[i][unit] = []
                if age[i][unit] > max(threshold[i][unit], largest):
                    silences[i][unit].append(age[i][unit])
                    age[i][unit] = 0
                    chosen[i].append(unit)
        return chosen

    return rule


def redo(threshold: float, scored: str) -> Rule:
    def rule(net: nn.Sequential, outputs: Outputs, batch_size: int) -> list[list[int]]:
        chosen = []
        with torch.enable_grad():
            loss = net(outputs.input).square().sum()
            gradients = torch.autograd.grad(loss, [net[own.layer].weight for own in LAYERS])
        for own, size, gradient in zip(LAYERS, SIZES, gradients, strict=True):
            if scored == "gradient":
                scores = [mean(gradient[unit].abs().flatten().tolist()) for unit in range(size)]
            elif scored == "pre_activation":
                scores = [mean([max(0.0, z) for z in outputs.unit(own.layer, unit)]) for unit in range(size)]
            else:
                scores = [mean([abs(h) for h in outputs.unit(own.nonlinearity, unit)]) for unit in range(size)]
            chosen.append([unit for unit in range(size) if scores[unit] <= threshold * mean(scores)])
        return chosen

    return rule


CASES = {
    "continual_backprop": (
        lambda score: ContinualBackprop(0.1, maturity=2, decay=0.9, score=score),
        lambda score: continual_backprop(0.1, 2, 0.9, score),
    ),
    "continual_backprop, at once": (
        lambda score: ContinualBackprop(0.8, maturity=0, decay=0.5, score=score),
        lambda score: continual_backprop(0.8, 0, 0.5, score),
    ),
    "continual_backprop, without compensation": (
        lambda score: ContinualBackprop(0.2, maturity=1, decay=0.9, compensate=False, score=score, seed=7),
        lambda score: continual_backprop(0.2, 1, 0.9, score, compensate=False),
    ),
    "snr": (
        lambda score: SelfNormalizedReset(0.2, refresh_every=4, max_silence=24, score=score),
        lambda score: snr(0.2, 4, 24, score),
    ),
    "snr, growing slowly": (
        lambda score: SelfNormalizedReset(0.3, refresh_every=3, max_silence=30, expansion=1.5, score=score, seed=7),
        lambda score: snr(0.3, 3, 30, score, expansion=1.5),
    ),
    "redo": (
        lambda score: ReDo(threshold=0.5, score=score),
        lambda score: redo(0.5, score),
    ),
}


@pytest.mark.parametrize(("name", "score"), [*product(CASES, ["activation", "pre_activation"]), ("redo", "gradient")])
def test_it_equals_the_slow_loop(name, score):
    build, rule_of = CASES[name]
    net, total = network(), 0
    x = torch.randn(7, 2, 5, 5)
    method, rule = build(score), rule_of(score)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    training = Loop(optimizer, lambda: net(x), lambda: [net(x).square().sum()])
    attached = method.attach(net, training) if name != "redo" else None
    outputs = Outputs(net)
    for number in range(16):
        x = torch.randn(7 - number % 3, 2, 5, 5)
        with torch.no_grad():  # units that do not fire for a while
            net[0].bias[number % 4] = net[3].bias[number // 6] = net[6].bias[number // 4] = -5.0
            net[1].bias[number // 5] = -5.0
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        if name == "redo":
            net.eval()  # its own pass would use the statistics of the batch
            net(x)
        expected = copy.deepcopy(net)
        momenta = {key: optimizer.state[p]["momentum_buffer"].clone() for key, p in net.named_parameters()}
        with torch.no_grad():
            chosen = rule(expected, outputs, len(x))
            done = 1 + (number if name == "redo" else total)
            reset(expected, momenta, chosen, method.seed + STRIDE * done, score == "gradient")
        total += sum(map(len, chosen))
        if attached is None:
            assert method(net, training)["units"] == sum(map(len, chosen))
        else:
            attached.after_step()
            assert attached.metrics()["units"] == total
        net.train()
        for key, value in expected.state_dict().items():
            torch.testing.assert_close(net.state_dict()[key], value, rtol=1e-4, atol=1e-6, msg=f"{key}, step {number}")
        for key, parameter in net.named_parameters():
            assert torch.equal(optimizer.state[parameter]["momentum_buffer"], momenta[key]), key
    assert total >= 8
