"""Selections of the weights, parameters or units of an `nn.Module` that a method acts on. Imports torch only."""

from lightning_fire.where.hidden_matrices import HiddenMatrices
from lightning_fire.where.hidden_units import HiddenUnits
from lightning_fire.where.normalized import normalized_weights
from lightning_fire.where.parameters import Parameters
from lightning_fire.where.readers import READERS, Reader
from lightning_fire.where.selection import Selection
from lightning_fire.where.unit_layer import UnitLayer
from lightning_fire.where.weight_layers import weight_layers
from lightning_fire.where.weight_view import WeightView
from lightning_fire.where.weights import Weights

__all__ = [
    "READERS",
    "HiddenMatrices",
    "HiddenUnits",
    "Parameters",
    "Reader",
    "Selection",
    "UnitLayer",
    "WeightView",
    "Weights",
    "normalized_weights",
    "weight_layers",
]
