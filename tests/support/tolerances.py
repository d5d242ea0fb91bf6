"""Tolerances to a float64 reference by dtype of the input: half-precision results are rounded once."""

import torch

RELATIVE = {torch.float64: 1e-12, torch.float32: 3e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def assert_near(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare ‖result − expected‖_F with ‖expected‖_F under the tolerance of the result's dtype."""
    bound = RELATIVE[dtype or result.dtype]
    error = (result.double() - expected.double()).norm()
    scale = expected.double().norm().clamp_min(1e-30)
    assert error <= bound * scale, f"relative error {error / scale:.2e} is above {bound:.0e}"
