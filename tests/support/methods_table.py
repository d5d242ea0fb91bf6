"""How tests make each method, so that one test serves them all."""

from dataclasses import replace
from typing import Any

from lightning.pytorch import Callback

from lightning_fire import (
    DASH,
    FIRE,
    METHODS,
    ContinualBackprop,
    EveryNEpochs,
    FeatureRank,
    FullReset,
    HareAndTortoise,
    IsometryDecay,
    L2Init,
    OptimizerReset,
    Parseval,
    PlasticityCallback,
    PlasticityInjection,
    ReDo,
    Schedule,
    SelectiveWeightReinit,
    SelfNormalizedReset,
    ShrinkAndPerturb,
    SoftWeightRescaling,
    SpectralRegularization,
    WeightClipping,
    WeightProjection,
)
from lightning_fire.methods import EventMethod, Method


def made(kind: type[Method], head: str = "net.5", target: str | None = None) -> Method:
    """Make a method of a class that acts within a few steps, on a network with a head, maybe copied to a target."""
    options: dict[type[Method], dict[str, Any]] = {
        ShrinkAndPerturb: {"strength": 0.5},
        DASH: {"num_batches": 2},
        ReDo: {"threshold": 0.7},
        PlasticityInjection: {"head": head, "target": target},
        ContinualBackprop: {"replacement_rate": 0.2, "maturity": 2},
        SelfNormalizedReset: {"rejection": 0.9, "refresh_every": 2, "max_silence": 20},
        SelectiveWeightReinit: {"factor": 0.3, "every": 3},
        SoftWeightRescaling: {"strength": 0.2},
        WeightClipping: {"bound": 0.5},
        **{kind: {"strength": 0.1} for kind in (L2Init, Parseval, SpectralRegularization, IsometryDecay)},
    }
    return kind(**options.get(kind, {}))


MADE: dict[str, Method] = {
    **{kind.name: made(kind) for kind in METHODS},
    "shrink_and_perturb_fresh": ShrinkAndPerturb(strength=0.5, fresh_seed=0),
    "full_reset_fresh": FullReset(fresh_seed=0),
    "selective_weight_reinit_magnitude": SelectiveWeightReinit(
        0.1, 2, "magnitude", "proportional", "mean", optimizer_state="touched"
    ),
    "redo_gradient": ReDo(threshold=0.7, score="gradient"),
    **{
        f"{kind.name}_pre_activation": replace(made(kind), score="pre_activation")
        for kind in (ReDo, ContinualBackprop, SelfNormalizedReset)
    },
}
"""Methods of a `PlainModule` by name, all of `METHODS` and variants, strong enough to change its training."""

KEYS = {  # one that it logs; those of a change of weights are the same
    OptimizerReset: "optimizer_reset/event",
    ReDo: "redo/dormant_fraction",
    PlasticityInjection: "plasticity_injection/frozen_parameters",
    ContinualBackprop: "continual_backprop/units",
    SelfNormalizedReset: "snr/threshold",
    SelectiveWeightReinit: "selective_weight_reinit/weights",
    **{kind: None for kind in (WeightProjection, WeightClipping, SoftWeightRescaling)},
    **{kind: f"{kind.name}/penalty" for kind in (L2Init, Parseval, SpectralRegularization, IsometryDecay)},
    **{kind: f"{kind.name}/sfe" for kind in (FIRE, ShrinkAndPerturb, FullReset, DASH)},
}

EVENTS = {name: method for name, method in MADE.items() if isinstance(method, EventMethod)}
STEPS = {name: method for name, method in MADE.items() if name not in EVENTS}

OWN = {
    "feature_rank": lambda: FeatureRank(0.1),
    "hare_and_tortoise": lambda: HareAndTortoise(EveryNEpochs(2), momentum=0.7),
}
"""Methods that have a callback of their own."""

ALL = [*MADE, *OWN]


def callback_of(name: str, when: Schedule | None = None) -> Callback:
    """Make the callback of a method, one with events with a schedule or else with its default."""
    return OWN[name]() if name in OWN else PlasticityCallback(MADE[name], when if name in EVENTS else None)
