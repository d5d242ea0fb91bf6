"""Seeded random draws that restore the states of the generators."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch


@contextmanager
def seeded(seed: int, devices: Collection[torch.device]) -> Iterator[None]:
    """Context manager: seed the random generators of the CPU and of devices, then restore their states.

    Unlike `torch.manual_seed`, leaves the generators of other devices alone.
    """
    cpu = torch.default_generator.get_state()
    with ExitStack() as others:
        for device in {device for device in devices if device.type not in ("cpu", "meta")}:
            others.enter_context(_seeded_device(seed, device))
        torch.default_generator.manual_seed(int(seed))
        try:
            yield
        finally:
            torch.default_generator.set_state(cpu)


@contextmanager
def _seeded_device(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random generator of one device that is not the CPU, then restore its state."""
    kind = torch.get_device_module(device)
    index = () if device.index is None or device.type == "mps" else (device.index,)  # MPS has one device
    state = kind.get_rng_state(*index)
    with kind.device(*index) if index else nullcontext():
        kind.manual_seed(int(seed))  # of the current device
    try:
        yield
    finally:
        kind.set_rng_state(state, *index)
