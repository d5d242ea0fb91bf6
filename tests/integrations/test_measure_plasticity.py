"""Readiness and critical sharpness of `MeasurePlasticity` in a loop of one's own."""

import pytest
import reference
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_fire.functional import entropy_rank, srank
from lightning_fire.integrations.measure_plasticity import MeasurePlasticity
from lightning_fire.methods import Loop


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_they_equal_slow_versions_and_leave_no_trace():
    net, x, y = network(), torch.randn(40, 6), torch.randint(0, 3, (40,))
    batches = list(zip(x.split(8), y.split(8), strict=True))
    loop = Loop(losses=lambda: (cross_entropy(net(a), b) for a, b in batches))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    measuring = MeasurePlasticity().attach(net, loop)
    random = torch.get_rng_state()
    found = measuring.metrics()
    assert torch.equal(torch.get_rng_state(), random)
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    exact = network().double().eval()
    exact.load_state_dict(state)
    parameters = list(exact.parameters())
    rows = [torch.autograd.grad(cross_entropy(exact(a.double()), b), parameters) for a, b in batches[:4]]
    flat = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    assert found["readiness"] == pytest.approx(reference.optimization_readiness(flat), rel=1e-4)
    start = nn.utils.parameters_to_vector(parameters).detach()

    @torch.no_grad()
    def loss(step):
        nn.utils.vector_to_parameters(start - step * flat[0], parameters)
        return float(cross_entropy(exact(batches[0][0].double()), batches[0][1]))

    assert found["critical_sharpness"] == pytest.approx(reference.critical_sharpness(loss, 0.1), rel=0.05)


def test_the_reason_is_told_once_without_losses(caplog):
    net, x = network(), torch.randn(8, 6)
    with caplog.at_level("INFO"):
        measuring = MeasurePlasticity().attach(net, Loop(forward=lambda: net(x)))
        found = [measuring.metrics() for _ in range(2)][-1]
    assert "dormant_fraction" in found
    assert not {"readiness", "critical_sharpness"} & found.keys()
    for name in ("readiness", "critical_sharpness"):
        assert caplog.text.count(f"plasticity/{name} is not logged: this") == 1


def test_ranks_are_measured_where_no_hidden_units_are_found():
    """As of GPT-2, whose output layer shares its weight."""
    net, x = nn.Sequential(nn.Linear(6, 4)), torch.randn(20, 6)
    found = MeasurePlasticity().attach(net, Loop(forward=lambda: net(x))).metrics()
    assert "dormant_fraction" not in found
    assert found["srank"] == int(srank(x)) and found["entropy_rank"] == pytest.approx(float(entropy_rank(x)), rel=1e-4)
    assert not {"srank", "entropy_rank"} & MeasurePlasticity().attach(net, Loop()).metrics().keys()
