"""WHAT a method does: pure functions, tensors in, new tensors out. Imports torch only."""

from lightning_fire.functional.measures import dfi, dfi_normalized, sfe, sfe_normalized
from lightning_fire.functional.orthogonal import as_matrices, fire, orthogonalize, polar

__all__ = ["as_matrices", "dfi", "dfi_normalized", "fire", "orthogonalize", "polar", "sfe", "sfe_normalized"]
