"""WHAT a method does: pure functions, tensors in, new tensors out. Imports torch only."""

from lightning_fire.functional.measures import dfi, dfi_normalized, sfe, sfe_normalized
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

__all__ = [
    "as_matrices",
    "dash",
    "dfi",
    "dfi_normalized",
    "fire",
    "l2_init_gradient",
    "l2_init_penalty",
    "orthogonalize",
    "parseval_gradient",
    "parseval_penalty",
    "polar",
    "sfe",
    "sfe_normalized",
    "shrink_and_perturb",
    "unit_scale_gradient",
    "unit_scale_penalty",
]
