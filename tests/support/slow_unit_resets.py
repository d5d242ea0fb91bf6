"""Training over `GrowingData` in a plain loop, in which a rule resets units one by one."""

from collections.abc import Callable

import torch
from small_training import GrowingData, PlainModule, trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

STRIDE = 1_000_003  # between the seeds of two resets

Rule = Callable[[int, list[nn.Linear], list[Tensor], list[Tensor]], list[list[int]]]


class WithMomentum(PlainModule):
    """Adam would amplify the rounding of a zero gradient, that of the bias before the BatchNorm."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def built() -> WithMomentum:
    torch.manual_seed(0)
    return WithMomentum()


def built_with_shift(norm: bool) -> WithMomentum:
    """The output of unit 2 of the first layer is below 0, until a BatchNorm, if there is one, takes the shift away."""
    module = built()
    nn.init.constant_(module.net[0].bias[2:3], -5.0)
    if not norm:
        module.net[1] = nn.Identity()
    return module


def slow_training(
    rule: Rule,
    start_epoch: int = 0,
    seed: int = 0,
    score: str = "activation",
    build: Callable[[], WithMomentum] = built,
) -> tuple[WithMomentum, int]:
    """Return the trained module, and how many units were reset.

    Args:
        rule: From the size of the batch, the layers after the units, the outputs of the units that are scored, and
            those after norm and nonlinearity, all by layer, to the units to reset in each layer.
        start_epoch: First epoch in which it is asked.
        seed: Seed of the new draws.
        score: Whether outputs after norm and nonlinearity are scored, or `"pre_activation"`, before both.
        build: Makes the module.
    """
    module, number = build(), 0
    net, optimizer = module.net, module.configure_optimizers()
    layers = [
        (net[0], net[1] if isinstance(net[1], nn.BatchNorm1d) else None, net[3]),
        (net[3], None, net[5]),
    ]  # layer, its norm, the layer after it
    data = GrowingData()
    data.trainer = trainer()
    for epoch in range(6):
        data.trainer.fit_loop.epoch_progress.current.completed = epoch
        for x, y in DataLoader(data.train_dataloader().dataset, batch_size=6):
            before_first = net[0](x)
            first = net[1:3](before_first)
            before_second = net[3](first)
            second = net[4](before_second)
            scored = [first, second] if score == "activation" else [before_first, before_second]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net[5](second), y).backward()
            optimizer.step()
            if epoch < start_epoch:
                continue
            with torch.no_grad():
                chosen = rule(len(x), [after for _, _, after in layers], scored, [first, second])
                for index, ((layer, norm, _), units) in enumerate(zip(layers, chosen, strict=True)):
                    if not units:
                        continue
                    index -= sum(not units for units in chosen[:index])  # the number of the draw
                    torch.manual_seed(seed + STRIDE * (number + 1) + index)
                    fresh = nn.Linear(layer.in_features, layer.out_features).weight
                    for unit in units:
                        zeroed = [(layer.bias, unit)]
                        layer.weight[unit] = fresh[unit]
                        layer.bias[unit] = 0.0
                        if norm is not None:
                            norm.weight[unit], norm.bias[unit] = 1.0, 0.0
                            norm.running_mean[unit], norm.running_var[unit] = 0.0, 1.0
                            zeroed += [(norm.weight, unit), (norm.bias, unit)]
                        for parameter, where in [(layer.weight, unit), *zeroed]:
                            optimizer.state[parameter]["momentum_buffer"][where] = 0.0
                for (_, _, after), units in zip(layers, chosen, strict=True):
                    for unit in units:
                        after.weight[:, unit] = 0.0
                        optimizer.state[after.weight]["momentum_buffer"][:, unit] = 0.0
                number += sum(map(len, chosen))
    return module, number
