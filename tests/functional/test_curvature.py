"""`functional.curvature`: against exact eigenvalues and curvlinops, hand-computed cases, properties, errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from lightning_fire.functional import hessian_product, largest_eigenvalue, loss_curvature


def symmetric(eigenvalues: list[float], seed: int = 0) -> torch.Tensor:
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double())[0]
    return basis @ torch.tensor(eigenvalues).double().diag() @ basis.T


def start(size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()


def mlp(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, torch.Tensor]:
    """A network and its loss; tanh, so that all second derivatives count."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    x, y = torch.randn(20, 5, dtype=dtype), torch.randint(0, 3, (20,))
    return net, nn.functional.cross_entropy(net(x), y), x, y


def exact_hessian(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """All second derivatives, by rows, of the flat parameters."""
    names, shapes = zip(*((name, p.shape) for name, p in net.named_parameters()), strict=True)
    sizes = [shape.numel() for shape in shapes]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split(sizes)
        state = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return nn.functional.cross_entropy(functional_call(net, state, (x,)), y)

    return torch.autograd.functional.hessian(loss, nn.utils.parameters_to_vector(net.parameters()).detach())


@pytest.mark.parametrize("seed", range(3))
def test_products_and_lambda_max_of_a_network_are_those_of_its_exact_hessian(seed):
    net, loss, x, y = mlp(seed)
    hessian = exact_hessian(net, x, y)
    product = hessian_product(loss, list(net.parameters()))
    vector = start(len(hessian))
    torch.testing.assert_close(product(vector), hessian @ vector, atol=1e-12, rtol=1e-9)
    expected = torch.linalg.eigvalsh(hessian)[-1].item()
    assert loss_curvature(loss, list(net.parameters()), tolerance=1e-8).value == pytest.approx(expected, rel=1e-9)
    rough = loss_curvature(loss, list(net.parameters()))  # the default tolerance: 1 % of residual
    assert rough.value == pytest.approx(expected, rel=1e-3)
    assert rough.products <= 12
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of what curvlinops imports
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lambda_max_of_a_conv_net_is_that_of_curvlinops():
    curvlinops = pytest.importorskip("curvlinops", reason="curvlinops is not installed")
    from scipy.sparse.linalg import eigsh

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    x, y = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))
    parameters = list(net.parameters())
    operator = curvlinops.HessianLinearOperator(net, nn.CrossEntropyLoss(), parameters, [(x, y)])
    expected = eigsh(operator.to_scipy(), k=1, which="LA", ncv=10, return_eigenvectors=False)[0]
    ours = loss_curvature(nn.functional.cross_entropy(net(x), y), parameters)
    assert ours.value == pytest.approx(float(expected), rel=2e-3)
    assert ours.residual <= 0.01 * ours.value
    assert ours.products <= 20


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.integers(0, 99))
def test_the_largest_eigenvalue_not_the_largest_in_size(eigenvalues, seed):
    matrix = symmetric(eigenvalues, seed)
    found = largest_eigenvalue(lambda vector: matrix @ vector, start(len(eigenvalues), seed), tolerance=1e-10)
    scale = max(1e-30, max(map(abs, eigenvalues)))
    assert abs(found.value - max(eigenvalues)) <= 1e-7 * scale
    assert found.products <= len(eigenvalues)


def test_some_eigenvalue_lies_within_the_residual_after_any_number_of_products():
    eigenvalues = [float(v) for v in range(-20, 41)]
    matrix = symmetric(eigenvalues)
    for products in (1, 2, 5, 10):
        found = largest_eigenvalue(lambda v: matrix @ v, start(61), tolerance=1e-12, max_products=products)
        assert found.products == products
        assert min(abs(found.value - value) for value in eigenvalues) <= found.residual + 1e-9
        assert found.value <= 40 + 1e-9  # a Ritz value is never beyond the spectrum


def test_it_stops_when_the_residual_is_within_the_tolerance():
    matrix = symmetric([100.0, *(float(v) for v in range(60))])
    counts = [largest_eigenvalue(lambda v: matrix @ v, start(61), tolerance=t).products for t in (0.1, 0.01, 1e-4)]
    assert counts[0] < counts[1] < counts[2] < 25


def test_it_starts_near_the_gradient():
    """Of a million parameters, a random vector has very little of the direction of largest curvature."""
    x = torch.zeros(1_000_000).index_fill(0, torch.arange(1000), 1.0).requires_grad_()
    loss = 1.5e-3 * x[:1000].sum() ** 2 + (torch.linspace(-0.5, 0.5, len(x)) * x**2).sum()  # 3 - 1, above -1 … 1
    found = loss_curvature(loss, [x], tolerance=0.01)
    random = torch.randn(len(x), generator=torch.Generator().manual_seed(0))
    other = largest_eigenvalue(hessian_product(loss, [x]), random, tolerance=0.01)
    assert found.value == pytest.approx(other.value, rel=1e-3) == pytest.approx(2.0, rel=0.01)
    assert found.products <= 5 < 8 <= other.products
    flat = torch.zeros(3, requires_grad=True)  # without a gradient
    assert loss_curvature((flat**2).sum(), [flat]).value == pytest.approx(2.0)


def test_results_of_a_product_are_not_modified():
    matrix, returned = symmetric([1.0, 2.0, 3.0, 4.0]), []

    def product(vector):
        returned.append((matrix @ vector, matrix @ vector))
        return returned[-1][0]

    assert largest_eigenvalue(product, start(4), tolerance=1e-9).value == pytest.approx(4.0)
    assert all(torch.equal(given, copy) for given, copy in returned)


def test_hand_computed():
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    flat = torch.tensor([3.0], requires_grad=True)
    product = hessian_product(x[0] ** 2 * x[1] + 5 * flat.sum(), [x, flat])  # Hessian [[2·x1, 2·x0], [2·x0, 0]] and 0
    torch.testing.assert_close(product(torch.tensor([1.0, 1.0, 7.0])), torch.tensor([-2.0, 2.0, 0.0]))
    bowl = loss_curvature(-(x**2).sum(), [x])
    assert (bowl.value, bowl.products) == (pytest.approx(-2.0), 1)  # bends down everywhere
    assert loss_curvature(3 * x.sum(), [x]).value == 0  # no second derivatives at all


def test_derivatives_by_unused_parameters_are_zero():
    x, other = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    assert loss_curvature((x**2).sum(), [x, other], tolerance=1e-4).value == pytest.approx(2.0, rel=1e-3)


def test_the_global_random_state_is_not_touched():
    net, loss, *_ = mlp()
    before = torch.get_rng_state()
    one, two = (loss_curvature(loss, list(net.parameters()), seed=seed).value for seed in (0, 0))
    assert one == two
    assert torch.equal(torch.get_rng_state(), before)


def test_errors():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"`loss` must be a scalar, got shape \(2,\)"):
        hessian_product(x**2, [x])
    with pytest.raises(ValueError, match="`parameters` must hold at least one"):
        hessian_product((x**2).sum(), [])
    with pytest.raises(ValueError, match="the matrix has a NaN or Inf"):
        loss_curvature((x**2).sum() * torch.nan, [x])
    with pytest.raises(ValueError, match="`tolerance` must be above 0, got 0"):
        largest_eigenvalue(lambda v: v, torch.ones(2), tolerance=0)
    with pytest.raises(ValueError, match="`max_products` must be at least 1, got 0"):
        largest_eigenvalue(lambda v: v, torch.ones(2), max_products=0)
    with pytest.raises(ValueError, match=r"`start` must have shape \(n,\)"):
        largest_eigenvalue(lambda v: v, torch.ones(2, 2))
    with pytest.raises(ValueError, match="`start` must be finite and not 0"):
        largest_eigenvalue(lambda v: v, torch.zeros(2))


def test_products_end_where_the_start_is_an_eigenvector():
    """Whatever the least number of products is: the next basis vector would be of rounding errors alone."""
    matrix = torch.diag(torch.tensor([3.0, 1.0, 0.5, 0.0, -2.0]))
    found = largest_eigenvalue(lambda v: matrix @ v, torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]), min_products=4)
    assert (found.value, found.residual, found.products) == (3.0, 0.0, 1)
