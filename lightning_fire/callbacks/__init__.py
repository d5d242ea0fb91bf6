"""Methods as Lightning callbacks: a function (`functional`) on a selection (`where`) at a schedule (`when`)."""

from lightning_fire.callbacks.base.event import EventCallback, announce_new_data
from lightning_fire.callbacks.base.event_log import Log
from lightning_fire.callbacks.base.method import MethodCallback
from lightning_fire.callbacks.chunk_progress_bar import ChunkProgressBar
from lightning_fire.callbacks.continual_backprop import ContinualBackprop
from lightning_fire.callbacks.dash import DASH
from lightning_fire.callbacks.feature_rank import FeatureRank
from lightning_fire.callbacks.fire import FIRECallback
from lightning_fire.callbacks.full_reset import FullReset
from lightning_fire.callbacks.hare_and_tortoise import HareAndTortoise
from lightning_fire.callbacks.isometry_decay import IsometryDecay
from lightning_fire.callbacks.l2_init import L2Init
from lightning_fire.callbacks.optimizer_reset import OptimizerReset
from lightning_fire.callbacks.parseval import Parseval
from lightning_fire.callbacks.plasticity_injection import PlasticityInjection
from lightning_fire.callbacks.plasticity_monitor import PlasticityMonitor
from lightning_fire.callbacks.probing.curvature import module_curvature
from lightning_fire.callbacks.redo import ReDo
from lightning_fire.callbacks.restart_schedulers import RestartSchedulers
from lightning_fire.callbacks.self_normalized_reset import SelfNormalizedReset
from lightning_fire.callbacks.shrink_and_perturb import ShrinkAndPerturb
from lightning_fire.callbacks.spectral_regularization import SpectralRegularization
from lightning_fire.callbacks.use_muon import UseMuon
from lightning_fire.callbacks.weight_projection import WeightProjection

__all__ = [
    "DASH",
    "ChunkProgressBar",
    "ContinualBackprop",
    "EventCallback",
    "FIRECallback",
    "FeatureRank",
    "FullReset",
    "HareAndTortoise",
    "IsometryDecay",
    "L2Init",
    "Log",
    "MethodCallback",
    "OptimizerReset",
    "Parseval",
    "PlasticityInjection",
    "PlasticityMonitor",
    "ReDo",
    "RestartSchedulers",
    "SelfNormalizedReset",
    "ShrinkAndPerturb",
    "SpectralRegularization",
    "UseMuon",
    "WeightProjection",
    "announce_new_data",
    "module_curvature",
]
