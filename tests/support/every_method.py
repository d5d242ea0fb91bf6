"""How each method of `METHODS` is made for a small network, so that it acts within a few steps."""

from lightning_fire.methods import (
    DASH,
    FIRE,
    METHODS,
    ContinualBackprop,
    FullReset,
    IsometryDecay,
    L2Init,
    OptimizerReset,
    Parseval,
    PlasticityInjection,
    ReDo,
    SelfNormalizedReset,
    ShrinkAndPerturb,
    SpectralRegularization,
    WeightProjection,
)


def made(kind, head="head", target=None):
    """Return a method of a class; `head` is the name of a head of the network, `target` of its copy."""
    return {
        FIRE: lambda: FIRE(steps=5),
        ShrinkAndPerturb: ShrinkAndPerturb,
        FullReset: FullReset,
        DASH: lambda: DASH(num_batches=2),
        ReDo: lambda: ReDo(threshold=0.5, num_batches=2),
        PlasticityInjection: lambda: PlasticityInjection(head, target),
        OptimizerReset: OptimizerReset,
        ContinualBackprop: lambda: ContinualBackprop(replacement_rate=0.1, maturity=1),
        SelfNormalizedReset: lambda: SelfNormalizedReset(rejection=0.5, refresh_every=2, max_silence=8),
        L2Init: lambda: L2Init(0.1),
        Parseval: lambda: Parseval(0.1),
        SpectralRegularization: lambda: SpectralRegularization(0.1),
        IsometryDecay: lambda: IsometryDecay(0.1),
        WeightProjection: WeightProjection,
    }[kind]()


KEYS = {  # one that it logs; those of a change of weights are the same
    OptimizerReset: "optimizer_reset/event",
    ReDo: "redo/dormant_fraction",
    PlasticityInjection: "plasticity_injection/frozen_parameters",
    ContinualBackprop: "continual_backprop/units",
    SelfNormalizedReset: "snr/threshold",
    L2Init: "l2_init/penalty",
    Parseval: "parseval/penalty",
    SpectralRegularization: "spectral/penalty",
    IsometryDecay: "isometry_decay/penalty",
    WeightProjection: None,
    **{kind: f"{kind.name}/sfe" for kind in (FIRE, ShrinkAndPerturb, FullReset, DASH)},
}
assert set(KEYS) == set(METHODS)
