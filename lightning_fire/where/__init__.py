"""Selections of the weights, parameters or units of an `nn.Module` that a method acts on. Imports torch only."""

from lightning_fire.where.hidden_matrices import HiddenMatrices
from lightning_fire.where.hidden_units import HiddenUnits, UnitLayer
from lightning_fire.where.normalized import normalized_weights
from lightning_fire.where.parameters import Parameters
from lightning_fire.where.selection import Selection
from lightning_fire.where.weight_layers import weight_layers
from lightning_fire.where.weight_view import WeightView
from lightning_fire.where.weights import Weights

__all__ = [
    "HiddenMatrices",
    "HiddenUnits",
    "Parameters",
    "Selection",
    "UnitLayer",
    "WeightView",
    "Weights",
    "normalized_weights",
    "weight_layers",
]
