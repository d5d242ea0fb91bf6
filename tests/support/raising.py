"""Errors and interrupts instead of one operation on tensors."""

from torch.utils._python_dispatch import TorchDispatchMode


class RaisesAt(TorchDispatchMode):
    """Counts the operations on tensors, allocations and writes among them, and raises an error instead of one."""

    def __init__(self, number=None, error=MemoryError):
        super().__init__()
        self.number, self.error, self.count = number, error, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        if self.count == self.number:
            raise self.error(f"instead of {func}")
        return func(*args, **(kwargs or {}))


def spread(count, most):
    """At most about `most` of the numbers from 1 to `count`, with the last ones, at which values are written."""
    return sorted({*range(1, count + 1, max(1, count // (most // 2))), *range(max(1, count - most // 2), count + 1)})
