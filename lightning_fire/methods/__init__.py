"""Methods on any `nn.Module`, for any training loop. Imports torch only.

A function changes a model at once: `fire_(model, optimizers=optimizer)`. An object has a `step()`, to be called after
each optimizer step, or `add_gradients()` or `decay()`, to be called before it; one that has a state has `state_dict()`.
"""

from lightning_fire.methods.base.optimizer_state import reset_optimizer_state
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.continual_backprop import ContinualBackprop
from lightning_fire.methods.dash import dash_
from lightning_fire.methods.feature_rank import FeatureRank
from lightning_fire.methods.fire import fire_
from lightning_fire.methods.full_reset import full_reset_, isometric_values
from lightning_fire.methods.hare_and_tortoise import HareAndTortoise
from lightning_fire.methods.initial_values import fresh_values, initial_values
from lightning_fire.methods.isometry_decay import IsometryDecay
from lightning_fire.methods.l2_init import L2Init
from lightning_fire.methods.parseval import Parseval
from lightning_fire.methods.plasticity_injection import InjectedHead, inject_plasticity_, wrap_heads
from lightning_fire.methods.redo import ReDo
from lightning_fire.methods.self_normalized_reset import SelfNormalizedReset
from lightning_fire.methods.shrink_and_perturb import shrink_and_perturb_
from lightning_fire.methods.spectral_regularization import SpectralRegularization
from lightning_fire.methods.weight_projection import WeightProjection

__all__ = [
    "ContinualBackprop",
    "FeatureRank",
    "HareAndTortoise",
    "InjectedHead",
    "IsometryDecay",
    "L2Init",
    "Parseval",
    "ReDo",
    "Report",
    "SelfNormalizedReset",
    "SpectralRegularization",
    "WeightProjection",
    "dash_",
    "fire_",
    "fresh_values",
    "full_reset_",
    "initial_values",
    "inject_plasticity_",
    "isometric_values",
    "reset_optimizer_state",
    "shrink_and_perturb_",
    "wrap_heads",
]
