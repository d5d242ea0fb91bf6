"""WHAT a method does: pure functions, tensors in, new tensors out. Imports torch only."""

from lightning_fire.functional.curvature import Eigenvalue, hessian_product, largest_eigenvalue, loss_curvature
from lightning_fire.functional.measures import dfi, dfi_normalized, sfe, sfe_normalized
from lightning_fire.functional.muon import muon_direction
from lightning_fire.functional.orthogonal import as_matrices, fire, orthogonalize, polar
from lightning_fire.functional.penalties import (
    l2_init_gradient,
    l2_init_penalty,
    parseval_gradient,
    parseval_penalty,
    unit_scale_gradient,
    unit_scale_penalty,
)
from lightning_fire.functional.reinit import dash, shrink_and_perturb
from lightning_fire.functional.units import (
    NEVER,
    contribution_utility,
    dormancy_score,
    least_useful,
    silence_threshold,
)

__all__ = [
    "NEVER",
    "Eigenvalue",
    "as_matrices",
    "contribution_utility",
    "dash",
    "dfi",
    "dfi_normalized",
    "dormancy_score",
    "fire",
    "hessian_product",
    "l2_init_gradient",
    "l2_init_penalty",
    "largest_eigenvalue",
    "least_useful",
    "loss_curvature",
    "muon_direction",
    "orthogonalize",
    "parseval_gradient",
    "parseval_penalty",
    "polar",
    "sfe",
    "sfe_normalized",
    "shrink_and_perturb",
    "silence_threshold",
    "unit_scale_gradient",
    "unit_scale_penalty",
]
