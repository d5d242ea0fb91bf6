"""The network that makes targets, against its definition: one sample and one unit at a time."""

import pytest
import torch

from lightning_fire.data.streams import ThresholdNetwork


def slow(network: ThresholdNetwork, sample: list[float]) -> float:
    """Output by the definition of Dohare et al. and the threshold of their code."""
    weights, biases, output_weights, output_bias, beta = network
    total = float(output_bias)
    for unit, bias, out in zip(weights.tolist(), biases.tolist(), output_weights.tolist(), strict=True):
        negative = sum(weight == -1 for weight in unit)
        threshold = beta * (len(sample) + 1) - negative - bias / 2
        total += out * (sum(w * x for w, x in zip(unit, sample, strict=True)) + bias > threshold)
    return total


@pytest.mark.parametrize("beta", [0.3, 0.7, 0.75])
def test_targets_equal_the_slow_version(beta):
    generator = torch.Generator().manual_seed(3)
    network = ThresholdNetwork.draw(9, 40, beta, generator)
    inputs = torch.randint(2, (200, 9), generator=generator).float()
    targets = network(inputs)
    assert targets.shape == (200, 1)
    assert targets.flatten().tolist() == [slow(network, sample) for sample in inputs.tolist()]
    assert targets.unique().numel() > 2


def test_weights_and_biases_are_drawn_from_both_signs():
    network = ThresholdNetwork.draw(20, 100, 0.7, torch.Generator().manual_seed(0))
    for drawn in network[:3]:
        assert drawn.unique().tolist() == [-1, 1]
        assert 0.3 < (drawn > 0).float().mean() < 0.7
    biases = {float(ThresholdNetwork.draw(1, 1, 0.7, torch.Generator().manual_seed(i)).output_bias) for i in range(9)}
    assert biases == {-1, 1}
