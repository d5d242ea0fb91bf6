"""Selection of tensors of a file, of any shape."""

from collections.abc import Sequence

from lightning_fire.checkpoints.stored import DTYPES, FLOATING, Stored
from lightning_fire.where.selection import ByName

_STATISTICS = ("running_mean", "running_var")


class StoredTensors(ByName):
    """Selects tensors of a file: weights, biases, norm scales and all others; a tied one once.

    Example:
        >>> tensors = [Stored("fc.weight", (4, 4), "F32"), Stored("bn.running_mean", (4,), "F32")]
        >>> StoredTensors(buffers=False).select(tensors)
        ['fc.weight']
    """

    def __init__(self, include: list[str] | None = None, exclude: list[str] | None = None, buffers: bool = True):
        super().__init__(include, exclude)
        self.buffers = buffers

    def select(self, tensors: Sequence[Stored]) -> list[str]:
        """Apply the selection to the tensors of a file, and return the names of those that are taken."""
        self.check([name for stored in tensors for name in stored.names], "tensor")
        names = []
        for stored in tensors:
            if not self._takes(stored):
                continue
            if stored.reason or stored.dtype not in DTYPES:
                reason = stored.reason or f"of type {stored.dtype}"
                raise ValueError(f"{stored.name} cannot be replaced, it is {reason}: leave it out with --exclude")
            names.append(stored.name)
        if not names:
            raise ValueError(f"no tensor of the {len(tensors)} in the file is taken by {self}")
        return names

    def _takes(self, stored: Stored) -> bool:
        parameter = stored.dtype in FLOATING and not stored.name.endswith(_STATISTICS)
        return (self.buffers or parameter) and not self.reason(*stored.names)
