"""The paper's theorems on networks: by the printed formulas, on random networks, and where assumptions fail."""

import itertools
import math

import pytest
import slow_bounds as slow
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from lightning_fire.functional import dfi, feature_covariance_bound, hessian_bound, polar, relu_hessian_bound

seeds = st.integers(0, 2**16)
ACTIVATIONS = {"relu": (torch.relu, 1.0), "tanh": (torch.tanh, 1.0), "steep": (lambda x: 3 * torch.relu(x), 3.0)}


def random_weights(sizes: list[int], seed: int, scale: float) -> list[torch.Tensor]:
    """Isometries with noise on them."""
    generator = torch.Generator().manual_seed(seed)
    noise = [torch.randn(m, n, generator=generator, dtype=torch.float64) for n, m in itertools.pairwise(sizes)]
    return [polar(matrix) + scale * matrix.flip(0) for matrix in noise]


def distance(before, after, inputs, activations) -> tuple[float, float]:
    """‖C − C̃‖_F and the smaller feature norm."""
    values = [slow.features(weights, inputs, activations) for weights in (before, after)]
    turned = slow.normalized_covariance(values[0]) - slow.normalized_covariance(values[1])
    return float(turned.norm()), float(min(value.norm() for value in values))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.integers(1, 5),
    seeds,
    st.sampled_from([1e-4, 0.1, 1.0]),
    st.sampled_from(sorted(ACTIVATIONS)),
)
def test_feature_covariance_shift_is_at_most_the_bound(sizes, samples, seed, change, activation):
    """Also at most the bound divided by 2√2."""
    before = random_weights(sizes, seed, 0.3)
    after = [old + change * noise for old, noise in zip(before, random_weights(sizes, seed + 1, 1.0), strict=True)]
    inputs = torch.randn(samples, sizes[0], generator=torch.Generator().manual_seed(seed + 2), dtype=torch.float64)
    function, constant = ACTIVATIONS[activation]
    turned, norm = distance(before, after, inputs, [function] * len(before))
    assume(norm > 1e-6)
    arguments = (before, after, float(inputs.norm()), norm, [constant] * len(before))
    bound = float(feature_covariance_bound(*arguments))
    assert bound == pytest.approx(slow.feature_covariance_bound(*arguments), rel=1e-10)
    assert turned <= bound / (2 * 2**0.5) + 1e-12


def test_feature_bound_by_hand():
    """One row turned by an angle: ‖C − C̃‖ = √2 sin(angle), ‖W − W̃‖ = 2 sin(angle/2); 4 times too much at the limit."""
    angle = 0.01
    before = [torch.tensor([[1.0, 0.0]]).double()]
    after = [torch.tensor([[math.cos(angle), math.sin(angle)]]).double()]
    turned, norm = distance(before, after, torch.eye(2).double(), [torch.relu])
    assert turned == pytest.approx(2**0.5 * math.sin(angle))
    bound = float(feature_covariance_bound(before, after, input_norm=2**0.5, feature_norm=norm))
    assert bound == pytest.approx(8 * 2**0.5 * math.sin(angle / 2))
    assert bound / turned == pytest.approx(4, rel=1e-4)


def test_feature_bound_of_a_removed_layer_is_a_number():
    zero = [torch.zeros(2, 2), torch.eye(2)]
    assert feature_covariance_bound(zero, zero, 1.0, 1.0) == 0
    assert feature_covariance_bound(zero, [torch.zeros(2, 2), 2 * torch.eye(2)], 1.0, 1.0) == 4 * 2 * 2**0.5


def sigmoid_networks() -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """1 input, 256 hidden units, 1 output: the weights are ±1, those of the output all moved by 0.01."""
    sign = torch.ones(1, 256, dtype=torch.float64)
    sign[:, 128:] = -1
    inputs = torch.tensor([[0.01], [-0.01]], dtype=torch.float64)
    return [sign.T, sign - 0.005], [sign.T, sign + 0.005], inputs


def test_feature_bound_breaks_with_the_sigmoid():
    """σ(0) is not 0: the hidden features do not shrink with the inputs, as ‖H‖ ≤ ‖Z‖ΠL‖W‖ requires."""
    before, after, inputs = sigmoid_networks()
    turned, norm = distance(before, after, inputs, [torch.sigmoid] * 2)
    bound = float(feature_covariance_bound(before, after, float(inputs.norm()), norm, [0.25, 0.25]))
    assert turned == pytest.approx(0.2228, abs=1e-4)
    assert bound == pytest.approx(0.0235, abs=1e-4)
    hidden = torch.sigmoid(inputs @ before[0].T)
    assert hidden.norm() > 100 * inputs.norm() * 0.25 * before[0].norm()
    centred = [lambda x: torch.sigmoid(x) - 0.5] * 2
    turned, norm = distance(before, after, inputs, centred)
    assert turned <= float(feature_covariance_bound(before, after, float(inputs.norm()), norm, [0.25, 0.25]))


def squared_error(outputs, targets):
    """Mean loss, β, γ."""
    residual = outputs - targets
    return residual.square().sum(1).mean() / 2, 1.0, float(residual.detach().norm(dim=1).max())


def classification(outputs, targets):
    return cross_entropy(outputs, targets.argmax(1)), 0.5, 2**0.5


def sharpness(weights, inputs, targets, activations, loss) -> tuple[float, float, float]:
    """‖∇²L‖, β and γ of a network whose last layer is linear."""

    def of_weights(weights):
        return loss(slow.features(weights, inputs, activations), targets)[0]

    _, curvature, gradient = loss(slow.features(weights, inputs, activations), targets)
    return slow.hessian_norm(weights, of_weights), curvature, gradient


networks = (
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.integers(0, 3),
    seeds,
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([squared_error, classification]),
    st.sampled_from([0.5, 1.0, 3.0]),
)


def draw(sizes, extra, seed, scale, stretch):
    """Weights, inputs with ZᵀZ/n = `stretch`² · I, targets."""
    inputs = stretch * slow.whitened_inputs(sizes[0] + extra, sizes[0], seed)
    targets = torch.randn(len(inputs), sizes[-1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return random_weights(sizes, seed, scale), inputs, targets


def deviations(weights):
    """DfI of the paper's W, that of the weight, and the smaller of both."""
    paper = torch.stack([dfi(weight.mT) for weight in weights])
    own = torch.stack([dfi(weight) for weight in weights])
    return paper, own, torch.minimum(paper, own)


@settings(max_examples=60, deadline=None)
@given(*networks)
def test_hessian_where_all_samples_use_the_same_units(sizes, extra, seed, scale, loss, stretch):
    weights, inputs, targets = draw(sizes, extra, seed, scale, stretch)
    generator = torch.Generator().manual_seed(seed)
    masks = [torch.randint(0, 2, (size,), generator=generator).double() for size in sizes[1:-1]]
    activations = [lambda x, mask=mask: x * mask for mask in masks] + [lambda x: x]
    norm, curvature, gradient = sharpness(weights, inputs, targets, activations, loss)
    paper, own, smaller = deviations(weights)
    moments = [stretch**2] * len(weights)
    assert norm <= slow.sharper_hessian_bound(smaller.tolist(), curvature, gradient, moments) * (1 + 1e-9)
    bounds = hessian_bound(torch.stack([paper, own, smaller]), curvature, gradient, stretch**2)
    assert bounds[2] <= bounds[:2].min()
    assert float(bounds[0]) == pytest.approx(slow.hessian_bound(paper.tolist(), curvature, gradient, moments))


@settings(max_examples=60, deadline=None)
@given(*networks)
def test_hessian_of_relu_networks(sizes, extra, seed, scale, loss, stretch):
    weights, inputs, targets = draw(sizes, extra, seed, scale, stretch)
    activations = [torch.relu] * (len(sizes) - 2) + [lambda x: x]
    norm, curvature, gradient = sharpness(weights, inputs, targets, activations, loss)
    paper, _, smaller = deviations(weights)
    trace = stretch**2 * sizes[0]
    moments = [stretch**2] + [trace] * (len(weights) - 1)
    assert norm <= slow.sharper_hessian_bound(smaller.tolist(), curvature, gradient, moments) * (1 + 1e-9)
    bound = float(relu_hessian_bound(paper, curvature, gradient, trace, stretch**2))
    assert bound == pytest.approx(slow.hessian_bound(paper.tolist(), curvature, gradient, moments))


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_hessian_bound_is_attained_by_layers_of_one_unit(layers):
    """u = w₁⋯w_L z at w = 1, z = ±1: the Hessian is 11ᵀ + r(11ᵀ − I), r the residual, and its norm L + r(L − 1)."""
    weights = [torch.ones(1, 1).double()] * layers
    inputs = torch.tensor([[1.0], [-1.0]]).double()
    for residual in (0.0, 0.5):
        targets = inputs * (1 - residual)
        norm, _, gradient = sharpness(weights, inputs, targets, [lambda x: x] * layers, squared_error)
        assert norm == pytest.approx(layers + residual * (layers - 1) if layers > 1 else 1)
        bound = float(hessian_bound(torch.zeros(layers), 1.0, gradient))
        assert bound == pytest.approx(layers + residual * layers * (layers - 1))


def test_printed_hessian_bound_breaks_with_2_samples_and_2_units():
    """Inputs (1, 1) and (1, −1) are whitened, the layers isometries, the residual 0; each sample has its own units."""
    inputs = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()
    weights = [torch.eye(2).double(), torch.tensor([[1.0, 0.0]]).double()]
    activations = [torch.relu, lambda x: x]
    assert torch.equal(inputs.T @ inputs / 2, torch.eye(2).double())
    targets = slow.features(weights, inputs, activations)
    norm, curvature, gradient = sharpness(weights, inputs, targets, activations, squared_error)
    values = torch.stack([dfi(weight.mT) for weight in weights])
    assert torch.equal(values, torch.zeros(2).double())
    assert norm == pytest.approx((7 + 5**0.5) / 4)
    assert norm > float(hessian_bound(values, curvature, gradient)) == 2
    assert norm <= float(relu_hessian_bound(values, curvature, gradient, input_trace=2.0)) == 3


def test_relu_raises_the_largest_moment_with_the_width():
    """ReLU of white Gaussian inputs: ½ + (d − 1)/2π, where the paper's lemma has 1. It is the Hessian's block of W₂."""
    for width in (16, 64):
        inputs = slow.whitened_inputs(4000, width, seed=width)
        hidden = torch.relu(inputs @ polar(torch.randn(width, width).double()).T)
        largest = float(torch.linalg.eigvalsh(hidden.T @ hidden / 4000)[-1])
        assert largest == pytest.approx(0.5 + (width - 1) / (2 * math.pi), rel=0.03)
        assert largest > float(hessian_bound(torch.zeros(2), 1.0, 0.0)) == 2
        assert largest <= float(relu_hessian_bound(torch.zeros(2), 1.0, 0.0, input_trace=width)) == 1 + width


def test_errors_of_the_feature_bound():
    eye, row = torch.eye(2), torch.ones(1, 2)
    cases = [
        ((([], []), 1.0, 1.0), r"at least 1 layer, got 0, 0 and 0"),
        ((([eye], [eye, eye]), 1.0, 1.0), r"at least 1 layer, got 1, 2 and 1"),
        ((([eye], [eye]), 1.0, 1.0, [1.0, 1.0]), r"at least 1 layer, got 1, 1 and 2"),
        ((([eye], [eye]), -1.0, 1.0), r"`input_norm` must be at least 0, got -1.0"),
        ((([eye], [eye]), 1.0, 0.0), r"`feature_norm` must be above 0, got 0.0"),
        ((([eye], [eye]), 1.0, 1.0, [-1.0]), r"`lipschitz` must be at least 0, got -1.0"),
        ((([torch.ones(1, 2, 3)], [eye]), 1.0, 1.0), r"must hold matrices, got one of shape \(1, 2, 3\)"),
        ((([eye], [row]), 1.0, 1.0), r"must have one shape, got \(2, 2\) and \(1, 2\)"),
    ]
    for ((before, after), *rest), message in cases:
        with pytest.raises(ValueError, match=message):
            feature_covariance_bound(before, after, *rest)


def test_errors_of_the_hessian_bounds():
    zeros = torch.zeros(2)
    for wrong in (torch.tensor(1.0), torch.tensor([1.0, -1.0]), torch.tensor([float("nan")] * 2)):
        with pytest.raises(ValueError, match=r"`dfi` must be of shape \(..., layers\) and at least 0, got"):
            hessian_bound(wrong, 1.0, 0.0)
    with pytest.raises(ValueError, match=r"`output_curvature` must be at least 0, got -1.0"):
        hessian_bound(zeros, -1.0, 0.0)
    with pytest.raises(ValueError, match=r"`output_gradient` must be at least 0, got nan"):
        hessian_bound(zeros, 1.0, float("nan"))
    with pytest.raises(ValueError, match=r"`input_eigenvalue` must be at least 0, got -2.0"):
        hessian_bound(zeros, 1.0, 0.0, input_eigenvalue=-2.0)
    with pytest.raises(ValueError, match=r"`input_trace` must be at least `input_eigenvalue` 1.0, got 0.5"):
        relu_hessian_bound(zeros, 1.0, 0.0, input_trace=0.5)
