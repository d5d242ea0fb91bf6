"""Training over `GrowingData` in a plain loop, in which a rule resets units one by one."""

from collections.abc import Callable

import torch
from small_training import GrowingData, PlainModule, trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

STRIDE = 1_000_003  # between the seeds of two resets

Rule = Callable[[int, list[nn.Linear], list[Tensor]], list[list[int]]]


class WithMomentum(PlainModule):
    """Adam would amplify the rounding of a zero gradient, that of the bias before the BatchNorm."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def built() -> WithMomentum:
    torch.manual_seed(0)
    return WithMomentum()


def slow_training(rule: Rule, start_epoch: int = 0, seed: int = 0) -> tuple[WithMomentum, int]:
    """Return the trained module, and how many units were reset.

    Args:
        rule: From the size of the batch, the layers after the units and the outputs of the units, both by layer, to the
            units to reset in each layer.
        start_epoch: First epoch in which it is asked.
        seed: Seed of the new draws.
    """
    module, number = built(), 0
    net, optimizer = module.net, module.configure_optimizers()
    layers = [(net[0], net[1], net[3]), (net[3], None, net[5])]  # layer, its norm, the layer after it
    data = GrowingData()
    data.trainer = trainer()
    for epoch in range(6):
        data.trainer.fit_loop.epoch_progress.current.completed = epoch
        for x, y in DataLoader(data.train_dataloader().dataset, batch_size=6):
            first = net[:3](x)
            second = net[3:5](first)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net[5](second), y).backward()
            optimizer.step()
            if epoch < start_epoch:
                continue
            with torch.no_grad():
                chosen = rule(len(x), [after for _, _, after in layers], [first.detach(), second.detach()])
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
