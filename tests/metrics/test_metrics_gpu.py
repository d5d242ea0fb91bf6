"""On a GPU each metric gives what it gives on the CPU."""

import pytest
import torch
from metric_cases import CASES, batches

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_same_as_on_the_cpu(case):
    metric = case.build().to("cuda")
    with torch.autocast("cuda", torch.float16):
        for batch in batches(case.inputs, (6, 10, 8)):
            metric.update(*(tensor.float().cuda() for tensor in batch))
    found = metric.compute()
    assert found.device.type == "cuda"
    expected = case.expected(*(tensor.float().double() for tensor in case.inputs)).double()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(metric.cpu().compute(), expected, rtol=1e-9, atol=1e-9)
