"""Results on a GPU equal those on the CPU."""

import pytest
import torch
from tolerances import assert_near

from lightning_fire.functional import dfi_normalized, fire, orthogonalize, polar

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("function", [orthogonalize, polar, fire])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_as_on_the_cpu(function, dtype):
    weight = torch.randn(64, 32, 3, 3).to(dtype) if function is fire else torch.randn(5, 64, 32).to(dtype)
    result = function(weight.cuda())
    assert result.device.type == "cuda"
    assert_near(result.cpu(), function(weight))
    torch.testing.assert_close(dfi_normalized(weight.cuda().flatten(2)).cpu(), dfi_normalized(weight.flatten(2)))
