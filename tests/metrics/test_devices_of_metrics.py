"""Every metric on a pretended GPU: the values of the CPU, and no wait for the device in `update`."""

import pytest
import torch
from metric_cases import CASES, batches
from pretended import Pretended

from lightning_fire.metrics import OnlineAccuracy


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_metrics_have_on_a_gpu_the_values_of_the_cpu(case):
    with Pretended() as pretended:
        metric = case.build().to("cuda")
        for batch in batches([tensor.to("cuda") for tensor in case.inputs], (6, 10, 8)):
            pretended.forget()
            metric.update(*batch)
            assert pretended.count == 0
        found = metric.compute()
        assert found.device.type == "cuda"
        assert pretended.count <= 2  # whether features are finite, or gradients enough
        torch.testing.assert_close(found.cpu().double(), case.expected(*case.inputs).double(), rtol=1e-9, atol=1e-9)
        metric.reset()
        metric.update(*(tensor.to("cuda") for tensor in case.inputs))
        torch.testing.assert_close(metric.compute().cpu(), found.cpu())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_updates_run_on_meta(case):
    metric = case.build().to("meta")
    metric.update(*(tensor.to("meta") for tensor in case.inputs))
    assert all(getattr(metric, name).is_meta for name in metric._defaults)


def test_the_online_accuracy_does_not_wait():
    with Pretended() as pretended:
        metric = OnlineAccuracy().to("cuda")
        outputs, labels = torch.randn(8, 3, device="cuda"), torch.arange(8, device="cuda") % 3
        pretended.forget()
        metric.update(outputs, labels)
        assert pretended.count == 0
        expected = (outputs.cpu().argmax(-1) == labels.cpu()).float().mean()
        assert float(metric.compute()) == pytest.approx(float(expected))
