"""Work on many small tensors: each on one thread, where PyTorch would put all threads on each in turn."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor


def one_thread_each(function: Callable[[Tensor], None], tensors: Sequence[Tensor]) -> None:
    """Call a function for each tensor, on as many threads as PyTorch has, with kernels of one thread.

    Eigendecompositions gain next to nothing from threads of their own. What a call computes does not depend on the
    number of threads. A single tensor is left to PyTorch's threads.

    Args:
        function: Works on a tensor in place.
        tensors: Any number, without common memory.

    Raises:
        Exception: Whatever `function` raises.

    Example:
        >>> import torch
        >>> rows = torch.ones(2, 3)
        >>> one_thread_each(lambda row: row.mul_(2), rows.unbind())
        >>> rows
        tensor([[2., 2., 2.],
                [2., 2., 2.]])
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if min(threads, len(tensors)) <= 1:
        for tensor in tensors:
            function(tensor)
        return

    def in_the_mode_of_the_caller(tensor: Tensor) -> None:
        with torch.inference_mode(inference):
            function(tensor)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(in_the_mode_of_the_caller, tensors))
    finally:
        torch.set_num_threads(threads)  # of MKL it is one number for all threads
