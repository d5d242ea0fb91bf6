"""On a GPU each metric gives what it gives on the CPU."""

import pytest
import torch
from metric_cases import CASES, batches


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_same_as_on_the_cpu(device, case):
    metric = case.build().to(device)
    with torch.autocast(device, torch.bfloat16):
        for batch in batches(case.inputs, (6, 10, 8)):
            metric.update(*(tensor.float().to(device) for tensor in batch))
    found = metric.compute()
    assert found.device.type == device
    expected = case.expected(*(tensor.float().double() for tensor in case.inputs)).double()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(metric.cpu().compute(), expected, rtol=1e-9, atol=1e-9)
