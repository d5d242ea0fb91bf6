"""How tests make each method, so that one test serves them all."""

from lightning.pytorch import Callback

from lightning_fire import (
    DASH,
    FIRE,
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
    SelfNormalizedReset,
    ShrinkAndPerturb,
    SpectralRegularization,
    WeightProjection,
)
from lightning_fire.methods import EventMethod, Method

MADE: dict[str, Method] = {
    "fire": FIRE(),
    "shrink_and_perturb": ShrinkAndPerturb(strength=0.5),
    "shrink_and_perturb_fresh": ShrinkAndPerturb(strength=0.5, fresh_seed=0),
    "full_reset": FullReset(),
    "full_reset_fresh": FullReset(fresh_seed=0),
    "dash": DASH(num_batches=2),
    "redo": ReDo(threshold=0.7),
    "redo_gradient": ReDo(threshold=0.7, score="gradient"),
    "redo_pre_activation": ReDo(threshold=0.7, score="pre_activation"),
    "plasticity_injection": PlasticityInjection("net.5"),
    "optimizer_reset": OptimizerReset(),
    "continual_backprop": ContinualBackprop(0.2, maturity=2),
    "continual_backprop_pre_activation": ContinualBackprop(0.2, maturity=2, score="pre_activation"),
    "snr": SelfNormalizedReset(0.9, refresh_every=2, max_silence=20),
    "snr_pre_activation": SelfNormalizedReset(0.9, refresh_every=2, max_silence=20, score="pre_activation"),
    "l2_init": L2Init(0.1),
    "parseval": Parseval(0.1),
    "spectral": SpectralRegularization(0.1),
    "isometry_decay": IsometryDecay(0.1),
    "weight_projection": WeightProjection(),
}
"""Methods of a `PlainModule` by name, at least one of each class, strong enough to change its training."""

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
