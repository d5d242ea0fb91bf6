"""Choice of texts and blocks for a batch: a pure function of the seed and the batch number.

A *micro-batch* comes from one text, drawn with given probabilities. Within a text, blocks are drawn without
replacement: a *pass* cuts the text into blocks from a new offset and visits them in a new order. Micro-batches are
numbered over all ranks and have different blocks, so that ranks see disjoint data within a pass.
"""

from collections.abc import Sequence

import numpy as np


class BlockOrder:
    """Order of the blocks of one text of `num_tokens` tokens, more than `block_size` = T.

    Block b of a pass with offset o has its inputs at tokens `o + b·T … o + (b + 1)·T − 1`, its targets one token later.
    A pass has `blocks` blocks: all of the text except fewer than 2·T tokens at the ends.
    """

    def __init__(self, num_tokens: int, block_size: int, seed: Sequence[int]):
        self.block_size, self.seed = block_size, tuple(seed)
        self.blocks = max(1, (num_tokens - 1) // block_size - 1)
        self._last_offset = min(block_size - 1, num_tokens - 1 - self.blocks * block_size)
        self._pass: tuple[int, int, np.ndarray] | None = None  # number, offset, order

    def starts(self, first: int, count: int) -> np.ndarray:
        """Return the start of each block, int64 `(count,)`; `first` is the number of the first block."""
        numbers = np.arange(first, first + count)
        passes, within = numbers // self.blocks, numbers % self.blocks
        return np.concatenate([self._of_pass(number, within[passes == number]) for number in np.unique(passes)])

    def _of_pass(self, number: int, within: np.ndarray) -> np.ndarray:
        if self._pass is None or self._pass[0] != number:
            generator = np.random.default_rng([*self.seed, int(number)])
            offset = int(generator.integers(self._last_offset + 1))
            self._pass = number, offset, generator.permutation(self.blocks)
        _, offset, order = self._pass
        return offset + order[within] * self.block_size


class Mixture:
    """The micro-batches of a phase of training, `batch_size` blocks each, by number.

    Texts have probabilities in proportion to their `weights`; `seed` distinguishes this phase from others.

    Example:
        >>> mixture = Mixture([9, 1], num_tokens=[1001, 501], block_size=100, batch_size=2, seed=[0])
        >>> [mixture.source_of(number) for number in range(12)]
        [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
        >>> source, starts = mixture.batch(0)
        >>> source, starts.tolist()
        (0, [552, 152])
    """

    def __init__(
        self, weights: Sequence[float], num_tokens: Sequence[int], block_size: int, batch_size: int, seed: Sequence[int]
    ):
        self.batch_size = batch_size
        self._ends = np.cumsum(np.asarray(weights, dtype=float) / sum(weights))
        self._seed = tuple(seed)
        self._orders = [BlockOrder(n, block_size, [*seed, 1 + number]) for number, n in enumerate(num_tokens)]
        self._sources = np.zeros(0, dtype=np.int64)
        self._earlier = np.zeros(0, dtype=np.int64)  # number of micro-batches of the same text before each

    def source_of(self, number: int) -> int:
        """Return the text of a micro-batch; both are counted from 0."""
        self._draw(number)
        return int(self._sources[number])

    def batch(self, number: int) -> tuple[int, np.ndarray]:
        """Return the text of a micro-batch and the starts of its blocks in it, int64 `(batch_size,)`.

        Micro-batches are counted from 0 over all ranks since the start of the phase.
        """
        source = self.source_of(number)
        first = int(self._earlier[number]) * self.batch_size
        return source, self._orders[source].starts(first, self.batch_size)

    def _draw(self, number: int) -> None:
        """Draw the texts of all micro-batches up to a number; longer draws extend shorter ones."""
        if number < len(self._sources):
            return
        size = 1 << max(10, int(number).bit_length())
        draws = np.random.default_rng(self._seed).random(size)
        self._sources = np.minimum(np.searchsorted(self._ends, draws, side="right"), len(self._ends) - 1)
        self._earlier = np.empty(size, dtype=np.int64)
        for source in range(len(self._ends)):
            of_source = self._sources == source
            self._earlier[of_source] = np.arange(of_source.sum())
