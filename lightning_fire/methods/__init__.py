"""Methods for any `nn.Module` and any training loop. Imports torch only.

A method is a value: `FIRE(steps=5)` holds settings, no model. An `EventMethod` changes a model when it is called:
`FIRE(steps=5)(model, Loop(optimizers=optimizer))`, or as a function `fire_(model, optimizers=optimizer, steps=5)`. A
`StepMethod` acts at each step: `L2Init(0.01).attach(model, Loop(…))` returns an object whose `before_step()` and
`after_step()` are called around each optimizer step.
"""

from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import Attached, EventMethod, Method, StepMethod
from lightning_fire.methods.base.optimizers import drop_state
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.continual_backprop import ContinualBackprop
from lightning_fire.methods.dash import DASH, dash_
from lightning_fire.methods.fire import FIRE, fire_
from lightning_fire.methods.full_reset import FullReset, full_reset_, isometric_values
from lightning_fire.methods.initial_values import fresh_values, initial_values
from lightning_fire.methods.isometry_decay import IsometryDecay
from lightning_fire.methods.l2_init import L2Init
from lightning_fire.methods.optimizer_reset import OptimizerReset
from lightning_fire.methods.parseval import Parseval
from lightning_fire.methods.plasticity_injection import InjectedHead, PlasticityInjection, wrap_heads
from lightning_fire.methods.rank_ascent import RankAscent
from lightning_fire.methods.redo import ReDo
from lightning_fire.methods.rejuvenation import confident_logits, rejuvenate_
from lightning_fire.methods.selective_weight_reinit import SelectiveWeightReinit
from lightning_fire.methods.self_normalized_reset import SelfNormalizedReset
from lightning_fire.methods.shrink_and_perturb import ShrinkAndPerturb, shrink_and_perturb_
from lightning_fire.methods.soft_weight_rescaling import SoftWeightRescaling
from lightning_fire.methods.spectral_regularization import SpectralRegularization
from lightning_fire.methods.tortoise import Tortoise
from lightning_fire.methods.weight_clipping import WeightClipping
from lightning_fire.methods.weight_projection import WeightProjection

METHODS: tuple[type[Method], ...] = (
    FIRE,
    ShrinkAndPerturb,
    FullReset,
    DASH,
    ReDo,
    PlasticityInjection,
    OptimizerReset,
    ContinualBackprop,
    SelfNormalizedReset,
    SelectiveWeightReinit,
    L2Init,
    Parseval,
    SpectralRegularization,
    IsometryDecay,
    WeightProjection,
    WeightClipping,
    SoftWeightRescaling,
)
"""All methods, from which tests, tables of the docs and the check of recipes are made."""

__all__ = [
    "DASH",
    "FIRE",
    "METHODS",
    "Attached",
    "Change",
    "ContinualBackprop",
    "EventMethod",
    "FullReset",
    "InjectedHead",
    "IsometryDecay",
    "L2Init",
    "Loop",
    "Method",
    "OptimizerReset",
    "Parseval",
    "PlasticityInjection",
    "RankAscent",
    "ReDo",
    "Report",
    "SelectiveWeightReinit",
    "SelfNormalizedReset",
    "ShrinkAndPerturb",
    "SoftWeightRescaling",
    "SpectralRegularization",
    "StepMethod",
    "Tortoise",
    "WeightClipping",
    "WeightProjection",
    "confident_logits",
    "dash_",
    "drop_state",
    "fire_",
    "fresh_values",
    "full_reset_",
    "initial_values",
    "isometric_values",
    "rejuvenate_",
    "shrink_and_perturb_",
    "wrap_heads",
]
