"""A text of random tokens, and the language models that are timed on it."""

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import nn

from lightning_fire.data import TextDataModule
from lightning_fire.data.token_source import Tokens, TokenSource
from lightning_fire.nets import GPT

VOCAB_SIZE = 256
# from `vocab_size` and `block_size` to a network
LANGUAGE_MODELS: dict[str, Callable[..., nn.Module]] = {
    "gpt-2": GPT,  # 124M parameters
    "small": partial(GPT, depth=2, heads=3, dim=96),  # the recipe's for two cores, of bytes
}


def random_tokens() -> np.ndarray:
    """Return the text, uint16 `(1,000,000,)`: the same at each call."""
    return np.random.default_rng(0).integers(0, VOCAB_SIZE, 1_000_000).astype(np.uint16)


class RandomText(TextDataModule):
    """Phases of one random text, in memory."""

    def __init__(self, epochs: list[int], steps: int, batch: int, block: int):
        phases = [{"text": 1.0}] * len(epochs)
        super().__init__({"text": ""}, phases, epochs, steps, batch, block, val_blocks=1, vocab_size=VOCAB_SIZE)

    def load(self) -> dict[str, TokenSource]:
        tokens = random_tokens()
        return {"text": TokenSource(Tokens(tokens), Tokens(tokens[:5000]), VOCAB_SIZE)}
