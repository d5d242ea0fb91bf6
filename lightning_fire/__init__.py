"""Keep networks able to learn when their data grows or changes.

A method is *what* (a pure function on tensors, `lightning_fire.functional`) applied *where* (a selection of weights)
and *when* (a schedule); a callback joins the three. Data in chunks is in `lightning_fire.data`, the paper's networks
and LightningModules in `lightning_fire.nets` and `lightning_fire.modules`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_fire import functional
    from lightning_fire.callbacks import (
        DASH,
        ContinualBackprop,
        EventCallback,
        FIRECallback,
        FullReset,
        L2Init,
        OptimizerReset,
        Parseval,
        PlasticityInjection,
        PlasticityMonitor,
        ReDo,
        SelfNormalizedReset,
        ShrinkAndPerturb,
        UseMuon,
        announce_new_data,
        module_curvature,
        wrap_heads,
    )
    from lightning_fire.optim import Muon, muon_groups
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

__all__ = [
    "DASH",
    "AnyOf",
    "AtEpochs",
    "AtFraction",
    "AtNewData",
    "ContinualBackprop",
    "EventCallback",
    "EveryNEpochs",
    "EveryNSteps",
    "FIRECallback",
    "FullReset",
    "HiddenMatrices",
    "HiddenUnits",
    "L2Init",
    "Muon",
    "OptimizerReset",
    "Parameters",
    "Parseval",
    "PlasticityInjection",
    "PlasticityMonitor",
    "ReDo",
    "Schedule",
    "SelfNormalizedReset",
    "ShrinkAndPerturb",
    "UseMuon",
    "Weights",
    "WhenMetric",
    "announce_new_data",
    "functional",
    "module_curvature",
    "muon_groups",
    "wrap_heads",
]

# Imported when first used, so that `lightning_fire.functional` needs torch alone.
_HOMES = ("lightning_fire.when", "lightning_fire.where", "lightning_fire.optim", "lightning_fire.callbacks")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lightning_fire' has no attribute {name!r}")
    if name == "functional":
        return importlib.import_module("lightning_fire.functional")
    for home in _HOMES:
        try:
            module = importlib.import_module(home)
        except RuntimeError as error:  # torch operators that torchvision expects are missing: no ImportError
            raise ImportError(
                f"lightning cannot be imported: {error}. torch and torchvision are of different builds; install both"
                " anew, from one place, into a fresh environment. lightning_fire.functional works without them."
            ) from error
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is in __all__ and nowhere else")


def __dir__() -> list[str]:
    return sorted(__all__)
