"""Measures of plasticity and stability as torchmetrics classes: fed in batches, summed over processes."""

from lightning_fire.metrics.deviation_from_isometry import DeviationFromIsometry
from lightning_fire.metrics.dormant_fraction import DormantFraction
from lightning_fire.metrics.entropy_rank import EntropyRank
from lightning_fire.metrics.feature_covariance_shift import FeatureCovarianceShift
from lightning_fire.metrics.loss_curvature import LossCurvature
from lightning_fire.metrics.normalized_deviation_from_isometry import NormalizedDeviationFromIsometry
from lightning_fire.metrics.normalized_squared_frobenius_error import NormalizedSquaredFrobeniusError
from lightning_fire.metrics.online_accuracy import OnlineAccuracy
from lightning_fire.metrics.squared_frobenius_error import SquaredFrobeniusError
from lightning_fire.metrics.srank import SRank
from lightning_fire.metrics.stable_rank import StableRank

__all__ = [
    "DeviationFromIsometry",
    "DormantFraction",
    "EntropyRank",
    "FeatureCovarianceShift",
    "LossCurvature",
    "NormalizedDeviationFromIsometry",
    "NormalizedSquaredFrobeniusError",
    "OnlineAccuracy",
    "SRank",
    "SquaredFrobeniusError",
    "StableRank",
]
