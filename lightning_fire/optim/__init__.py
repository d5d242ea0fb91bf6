"""Optimizers: Muon with its AdamW part, and UPGD."""

from lightning_fire.optim.muon import Muon, muon_groups
from lightning_fire.optim.upgd import UPGD

__all__ = ["UPGD", "Muon", "muon_groups"]
