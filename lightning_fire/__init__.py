"""Keep networks able to learn when their data grows or changes.

A method is a pure function on tensors (`lightning_fire.functional`) applied to a selection of weights
(`lightning_fire.where`): together a value, such as `FIRE(steps=5)` (`lightning_fire.methods`). `PlasticityCallback`
adds a schedule (`lightning_fire.when`). Data in chunks is in `lightning_fire.data`, the paper's networks and
LightningModules in `lightning_fire.nets` and `lightning_fire.modules`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_fire import functional, methods
    from lightning_fire.callbacks import (
        FeatureRank,
        FIRECallback,
        HareAndTortoise,
        Log,
        PlasticityCallback,
        PlasticityMonitor,
        PlasticityProbe,
        RestartSchedulers,
        UseMuon,
        announce_new_data,
        continue_steps,
        module_curvature,
    )
    from lightning_fire.experiments.decide import decide
    from lightning_fire.methods import (
        DASH,
        FIRE,
        METHODS,
        Attached,
        Change,
        ContinualBackprop,
        EventMethod,
        FullReset,
        IsometryDecay,
        L2Init,
        Loop,
        OptimizerReset,
        Parseval,
        PlasticityInjection,
        ReDo,
        Report,
        SelectiveWeightReinit,
        SelfNormalizedReset,
        ShrinkAndPerturb,
        SoftWeightRescaling,
        SpectralRegularization,
        StepMethod,
        WeightClipping,
        WeightProjection,
        dash_,
        fire_,
        fresh_values,
        full_reset_,
        initial_values,
        shrink_and_perturb_,
        wrap_heads,
    )
    from lightning_fire.optim import UPGD, Muon, muon_groups
    from lightning_fire.when import (
        AnyOf,
        AtEpochs,
        AtFraction,
        AtNewData,
        EveryNEpochs,
        EveryNSteps,
        Schedule,
        WhenMetric,
    )
    from lightning_fire.where import HiddenMatrices, HiddenUnits, Parameters, Weights

    __version__: str

__all__ = [
    "DASH",
    "FIRE",
    "METHODS",
    "UPGD",
    "AnyOf",
    "AtEpochs",
    "AtFraction",
    "AtNewData",
    "Attached",
    "Change",
    "ContinualBackprop",
    "EventMethod",
    "EveryNEpochs",
    "EveryNSteps",
    "FIRECallback",
    "FeatureRank",
    "FullReset",
    "HareAndTortoise",
    "HiddenMatrices",
    "HiddenUnits",
    "IsometryDecay",
    "L2Init",
    "Log",
    "Loop",
    "Muon",
    "OptimizerReset",
    "Parameters",
    "Parseval",
    "PlasticityCallback",
    "PlasticityInjection",
    "PlasticityMonitor",
    "PlasticityProbe",
    "ReDo",
    "Report",
    "RestartSchedulers",
    "Schedule",
    "SelectiveWeightReinit",
    "SelfNormalizedReset",
    "ShrinkAndPerturb",
    "SoftWeightRescaling",
    "SpectralRegularization",
    "StepMethod",
    "UseMuon",
    "WeightClipping",
    "WeightProjection",
    "Weights",
    "WhenMetric",
    "announce_new_data",
    "continue_steps",
    "dash_",
    "decide",
    "fire_",
    "fresh_values",
    "full_reset_",
    "functional",
    "initial_values",
    "methods",
    "module_curvature",
    "muon_groups",
    "shrink_and_perturb_",
    "wrap_heads",
]

# Imported at first use and in this order, so that only names of `callbacks` import Lightning.
_HOMES = ("when", "where", "optim", "methods", "callbacks")
_ELSEWHERE = {"decide": "experiments.decide"}


def _imported(name: str) -> Any:
    if name == "__version__":  # equals pyproject.toml: a lookup takes longer than all other imports here
        from importlib import metadata

        return metadata.version("lightning-fire")
    if name not in __all__:
        from lightning_fire.elsewhere import missing_name_error

        raise missing_name_error(__name__, name)
    if name in ("functional", "methods"):
        return importlib.import_module(f"lightning_fire.{name}")
    for home in [_ELSEWHERE[name]] if name in _ELSEWHERE else _HOMES:
        try:
            module = importlib.import_module(f"lightning_fire.{home}")
        except RuntimeError as error:  # torch operators that torchvision expects are missing: no ImportError
            raise ImportError(
                f"lightning cannot be imported: {error}. torch and torchvision are of different builds; install both"
                " again, from one source, into a fresh environment. `lightning_fire.methods` works without them."
            ) from error
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is in __all__ and nowhere else")


if not TYPE_CHECKING:  # a type checker would accept any name, misspelt ones too
    __getattr__ = _imported


def __dir__() -> list[str]:
    return sorted(__all__)
