"""The projection in TF32 (products of inputs with 10 bits of mantissa), emulated on a CPU."""

import pytest
import torch

from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz, unit_norm


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Round float32 to the nearest number of 10 bits of mantissa."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("steps, error", [(5, 8e-6), (20, 3.3e-4)])
def test_the_projection_in_tf32(steps, error):
    torch.manual_seed(0)
    x = y = unit_norm(torch.randn(768, 768))
    exact = newton_schulz(x.double(), steps, COEFFICIENTS["cubic"])
    for _ in range(steps):
        gram = rounded(y.mT) @ rounded(y)
        y = 1.5 * y - 0.5 * rounded(y) @ rounded(gram)
    assert (y - exact).norm() / exact.norm() == pytest.approx(error, rel=0.1)
    plain = newton_schulz(x, steps, COEFFICIENTS["cubic"])
    assert (plain - exact).norm() / exact.norm() < 1e-6
