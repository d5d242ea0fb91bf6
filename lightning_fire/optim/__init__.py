"""Optimizers: Muon with its AdamW part."""

from lightning_fire.optim.muon import Muon, muon_groups

__all__ = ["Muon", "muon_groups"]
