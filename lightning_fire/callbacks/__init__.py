"""Lightning callbacks: `PlasticityCallback` applies any method; others monitor or prepare a training."""

from lightning_fire.callbacks.base.log_options import Log
from lightning_fire.callbacks.chunk_progress_bar import ChunkProgressBar
from lightning_fire.callbacks.feature_rank import FeatureRank
from lightning_fire.callbacks.fire import FIRECallback
from lightning_fire.callbacks.hare_and_tortoise import HareAndTortoise
from lightning_fire.callbacks.new_data import announce_new_data
from lightning_fire.callbacks.plasticity_callback import PlasticityCallback
from lightning_fire.callbacks.plasticity_monitor import PlasticityMonitor
from lightning_fire.callbacks.plasticity_probe import PlasticityProbe
from lightning_fire.callbacks.probing.curvature import module_curvature
from lightning_fire.callbacks.restart_schedulers import RestartSchedulers
from lightning_fire.callbacks.steps_of_logs import continue_steps
from lightning_fire.callbacks.use_muon import UseMuon

__all__ = [
    "ChunkProgressBar",
    "FIRECallback",
    "FeatureRank",
    "HareAndTortoise",
    "Log",
    "PlasticityCallback",
    "PlasticityMonitor",
    "PlasticityProbe",
    "RestartSchedulers",
    "UseMuon",
    "announce_new_data",
    "continue_steps",
    "module_curvature",
]
