"""Argument `optimizer` of the modules."""

from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import Optimizer

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]  # from the parameters
