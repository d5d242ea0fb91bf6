"""One case for each metric: how it is built, its inputs, and the pure function of all of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_fire import functional as F
from lightning_fire import metrics as M

SIZE = 24
"""Entries of the first dimension of all inputs, which may be cut into any batches."""


class Case(NamedTuple):
    """A metric, its inputs (each of `SIZE` entries, float64), and the function of all of them that it must equal."""

    build: Callable[..., Metric]
    inputs: tuple[Tensor, ...]
    expected: Callable[..., Tensor]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(SIZE, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WEIGHTS = random(5, 4), random(5, 4, seed=1)
FEATURES = random(8) * 0.5 ** torch.arange(8) @ torch.linalg.qr(random(8, seed=1)[:8])[0]
OTHER_FEATURES = FEATURES[:, :3].tanh() + 0.1
ACTIVATION = random(2, 3, 10).relu() * torch.tensor([0, 0.01, 0.1, 1, 1, 1, 2, 2, 3, 4])  # two positions by three

CASES = {
    "DeviationFromIsometry": Case(M.DeviationFromIsometry, WEIGHTS[:1], lambda w: F.dfi(w).mean()),
    "NormalizedDeviationFromIsometry": Case(
        M.NormalizedDeviationFromIsometry, WEIGHTS[:1], lambda w: F.dfi_normalized(w).mean()
    ),
    "SquaredFrobeniusError": Case(M.SquaredFrobeniusError, WEIGHTS, lambda before, after: F.sfe(before, after).sum()),
    "NormalizedSquaredFrobeniusError": Case(
        M.NormalizedSquaredFrobeniusError,
        WEIGHTS,
        lambda before, after: F.sfe_normalized(before.flatten(0, 1), after.flatten(0, 1)),
    ),
    "SRank": Case(partial(M.SRank, 8, delta=0.1), (FEATURES,), lambda features: F.srank(features, 0.1)),
    "StableRank": Case(partial(M.StableRank, 8), (FEATURES,), F.stable_rank),
    "EntropyRank": Case(partial(M.EntropyRank, 8), (FEATURES,), F.entropy_rank),
    "DormantFraction": Case(
        partial(M.DormantFraction, 10, threshold=0.02),
        (ACTIVATION,),
        lambda h: F.dormant_fraction(h.abs().flatten(0, -2).mean(0), 0.02),
    ),
    "OptimizationReadiness": Case(
        partial(M.OptimizationReadiness, 8), (FEATURES + 1,), lambda gradients: F.optimization_readiness(gradients)
    ),
    "FeatureCovarianceShift": Case(
        partial(M.FeatureCovarianceShift, 8, 3), (FEATURES, OTHER_FEATURES), F.feature_covariance_shift
    ),
}


def batches(inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Cut all inputs alike into batches of these sizes, which add up to `SIZE`."""
    return list(zip(*(tensor.split(list(sizes)) for tensor in inputs), strict=True))
