"""WHERE a method acts: from any `nn.Module` to named weight matrices. Imports torch only."""

from lightning_fire.where.candidates import weight_layers
from lightning_fire.where.hidden_matrices import HiddenMatrices
from lightning_fire.where.parameters import Parameters
from lightning_fire.where.selection import Selection
from lightning_fire.where.sharded import gathered, is_sharded, local, put, reshard
from lightning_fire.where.units import HiddenUnits, UnitLayer
from lightning_fire.where.views import WeightView
from lightning_fire.where.weights import Weights

__all__ = [
    "HiddenMatrices",
    "HiddenUnits",
    "Parameters",
    "Selection",
    "UnitLayer",
    "WeightView",
    "Weights",
    "gathered",
    "is_sharded",
    "local",
    "put",
    "reshard",
    "weight_layers",
]
