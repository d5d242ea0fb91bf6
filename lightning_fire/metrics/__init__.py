"""Metrics of plasticity and stability as torchmetrics classes: updated in batches, summed over processes.

All take the keyword arguments of `torchmetrics.Metric` too.
"""

from lightning_fire.metrics.deviation_from_isometry import DeviationFromIsometry, NormalizedDeviationFromIsometry
from lightning_fire.metrics.dormant_fraction import DormantFraction
from lightning_fire.metrics.feature_covariance_shift import FeatureCovarianceShift
from lightning_fire.metrics.online_accuracy import OnlineAccuracy
from lightning_fire.metrics.optimization_readiness import OptimizationReadiness
from lightning_fire.metrics.ranks import EntropyRank, SRank, StableRank
from lightning_fire.metrics.squared_frobenius_error import NormalizedSquaredFrobeniusError, SquaredFrobeniusError

__all__ = [
    "DeviationFromIsometry",
    "DormantFraction",
    "EntropyRank",
    "FeatureCovarianceShift",
    "NormalizedDeviationFromIsometry",
    "NormalizedSquaredFrobeniusError",
    "OnlineAccuracy",
    "OptimizationReadiness",
    "SRank",
    "SquaredFrobeniusError",
    "StableRank",
]
