"""Lightning callbacks: `PlasticityCallback` applies any method; others monitor or prepare a training."""

from lightning_fire.callbacks.chunk_progress_bar import ChunkProgressBar
from lightning_fire.callbacks.feature_rank import FeatureRank
from lightning_fire.callbacks.fire import FIRECallback
from lightning_fire.callbacks.followers import DEFAULT_FOLLOWERS, Follower, forget_best
from lightning_fire.callbacks.hare_and_tortoise import HareAndTortoise
from lightning_fire.callbacks.log import Log
from lightning_fire.callbacks.new_data import announce_new_data
from lightning_fire.callbacks.observers import Observer, lambda_max, singular_values, validation
from lightning_fire.callbacks.plasticity_callback import PlasticityCallback
from lightning_fire.callbacks.plasticity_monitor import PlasticityMonitor
from lightning_fire.callbacks.plasticity_probe import PlasticityProbe
from lightning_fire.callbacks.probing.curvature import module_curvature
from lightning_fire.callbacks.restart_schedulers import RestartSchedulers
from lightning_fire.callbacks.steps_of_logs import continue_steps
from lightning_fire.callbacks.use_muon import UseMuon

__all__ = [
    "DEFAULT_FOLLOWERS",
    "ChunkProgressBar",
    "FIRECallback",
    "FeatureRank",
    "Follower",
    "HareAndTortoise",
    "Log",
    "Observer",
    "PlasticityCallback",
    "PlasticityMonitor",
    "PlasticityProbe",
    "RestartSchedulers",
    "UseMuon",
    "announce_new_data",
    "continue_steps",
    "forget_best",
    "lambda_max",
    "module_curvature",
    "singular_values",
    "validation",
]
