"""Two small texts in phases, in memory."""

import numpy as np

from lightning_fire.data import TextDataModule
from lightning_fire.data.token_source import Tokens, TokenSource


class TwoTexts(TextDataModule):
    """Words of `a` are rising, those of `b` falling; 16 tokens."""

    def load(self):
        rising = np.tile(np.arange(16, dtype=np.uint16), 60)
        texts = {"a": rising, "b": rising[::-1].copy()}
        return {
            name: TokenSource(Tokens(text), Tokens(text[:100]), 16)
            for name, text in texts.items()
            if name in self.protocol.names
        }


def data(phases=({"a": 1.0}, {"b": 3.0, "a": 1.0}), epochs=2, **options):
    settings = {"steps_per_epoch": 6, "batch_size": 4, "block_size": 8, **options}
    return TwoTexts({"a": "", "b": ""}, list(phases), epochs, **settings)
