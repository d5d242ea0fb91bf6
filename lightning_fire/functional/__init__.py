"""Pure functions on tensors, which return new tensors. Imports torch only."""

from lightning_fire.functional.critical_sharpness import CriticalSharpness, critical_sharpness
from lightning_fire.functional.curvature import Eigenvalue, hessian_product, largest_eigenvalue, loss_curvature
from lightning_fire.functional.features import (
    feature_covariance_shift,
    feature_covariance_shift_of,
)
from lightning_fire.functional.metrics import dfi, dfi_normalized, sfe, sfe_normalized
from lightning_fire.functional.muon import muon_direction
from lightning_fire.functional.orthogonal import as_matrices, fire, orthogonalize, polar
from lightning_fire.functional.penalties import (
    bias_gradient,
    bias_penalty,
    l2_init_gradient,
    l2_init_penalty,
    parseval_gradient,
    parseval_penalty,
    power_iteration,
    spectral_gradient,
    spectral_penalty,
    unit_scale_gradient,
    unit_scale_penalty,
)
from lightning_fire.functional.projection import project_to_norm, soft_rescaling
from lightning_fire.functional.ranks import (
    entropy_rank,
    entropy_rank_gradient,
    entropy_rank_of,
    singular_values,
    singular_values_of_gram,
    srank,
    srank_of,
    stable_rank,
    stable_rank_of,
)
from lightning_fire.functional.readiness import optimization_readiness, optimization_readiness_of
from lightning_fire.functional.reinit import dash, shrink_and_perturb
from lightning_fire.functional.theorems import (
    activity_score_bounds,
    dfi_without_dormancy,
    feature_covariance_bound,
    hessian_bound,
    relu_hessian_bound,
    srank_bound,
)
from lightning_fire.functional.units import (
    NEVER,
    contribution_utility,
    dormancy_score,
    dormant,
    dormant_fraction,
    inter_firing_threshold,
    least_useful,
)
from lightning_fire.functional.weight_utility import below_mean, gradient_utility, lowest

__all__ = [
    "NEVER",
    "CriticalSharpness",
    "Eigenvalue",
    "activity_score_bounds",
    "as_matrices",
    "below_mean",
    "bias_gradient",
    "bias_penalty",
    "contribution_utility",
    "critical_sharpness",
    "dash",
    "dfi",
    "dfi_normalized",
    "dfi_without_dormancy",
    "dormancy_score",
    "dormant",
    "dormant_fraction",
    "entropy_rank",
    "entropy_rank_gradient",
    "entropy_rank_of",
    "feature_covariance_bound",
    "feature_covariance_shift",
    "feature_covariance_shift_of",
    "fire",
    "gradient_utility",
    "hessian_bound",
    "hessian_product",
    "inter_firing_threshold",
    "l2_init_gradient",
    "l2_init_penalty",
    "largest_eigenvalue",
    "least_useful",
    "loss_curvature",
    "lowest",
    "muon_direction",
    "optimization_readiness",
    "optimization_readiness_of",
    "orthogonalize",
    "parseval_gradient",
    "parseval_penalty",
    "polar",
    "power_iteration",
    "project_to_norm",
    "relu_hessian_bound",
    "sfe",
    "sfe_normalized",
    "shrink_and_perturb",
    "singular_values",
    "singular_values_of_gram",
    "soft_rescaling",
    "spectral_gradient",
    "spectral_penalty",
    "srank",
    "srank_bound",
    "srank_of",
    "stable_rank",
    "stable_rank_of",
    "unit_scale_gradient",
    "unit_scale_penalty",
]
