"""Callbacks for other training libraries: Hugging Face `Trainer`, Stable-Baselines3."""

from typing import TYPE_CHECKING

from lightning_fire.elsewhere import missing_name_error

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name):
        raise missing_name_error(__name__, name)
