"""`functional.ranks`: slow versions, closed forms, invariants, the paper's bound, errors."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fire.functional import (
    dfi,
    entropy_rank,
    entropy_rank_gradient,
    entropy_rank_of,
    singular_values,
    singular_values_of_gram,
    srank,
    srank_of,
    stable_rank,
    stable_rank_of,
)

sizes = st.integers(1, 12)
seeds = st.integers(0, 2**16)
deltas = st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.9])
RANKS = [srank, stable_rank, entropy_rank]


def random_matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=50, deadline=None)
@given(sizes, sizes, seeds, deltas)
def test_ranks_equal_the_slow_versions(m, n, seed, delta):
    matrix = random_matrix(m, n, seed=seed)
    assert srank(matrix, delta) == reference.srank(matrix, delta * (1 + 1e-9) + 1e-12)  # ties by rounding count
    torch.testing.assert_close(stable_rank(matrix), reference.stable_rank(matrix))
    torch.testing.assert_close(entropy_rank(matrix).item(), reference.entropy_rank(matrix))


@settings(max_examples=50, deadline=None)
@given(sizes, sizes, seeds, st.sampled_from([1e-40, 1e-30, 1.0, 1e30, 1e37]))
def test_ranks_are_invariant_to_scale_transpose_and_rotation(m, n, seed, scale):
    matrix = random_matrix(m, n, seed=seed).float()
    rotated = torch.linalg.qr(random_matrix(m, m, seed=seed + 1))[0].float() @ matrix
    tolerance = {"atol": 0, "rtol": 1e-2 if scale == 1e-40 else 1e-5}  # subnormal numbers have few digits
    for rank in (stable_rank, entropy_rank):
        torch.testing.assert_close(rank(matrix * scale), rank(matrix), **tolerance)
        torch.testing.assert_close(rank(matrix.mT), rank(matrix), atol=0, rtol=1e-5)
        torch.testing.assert_close(rank(rotated), rank(matrix), atol=0, rtol=1e-5)


@settings(max_examples=50, deadline=None)
@given(sizes, sizes, seeds)
def test_order_of_ranks(m, n, seed):
    """1 ≤ stable ≤ entropy ≤ rank; srank falls with δ from the rank to 1."""
    matrix = random_matrix(m, n, seed=seed)
    assert stable_rank(matrix) >= 1 - 1e-12
    assert stable_rank(matrix) <= entropy_rank(matrix) + 1e-9
    assert entropy_rank(matrix) <= min(m, n) + 1e-9
    found = [srank(matrix, delta).item() for delta in (0.0, 0.01, 0.1, 0.5, 0.999999)]
    assert found == sorted(found, reverse=True)
    assert found[0] == min(m, n)
    assert srank(matrix, 1 - 1e-9) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("r", [1, 7, 100, 200, 300])
def test_isometries_have_full_rank_up_to_the_fraction_that_may_be_missing(r, dtype):
    identity = torch.eye(r, r + 2, dtype=dtype)
    assert srank(identity) == math.ceil(round(0.99 * r, 6))  # 99 of 100: a tie is reached
    assert srank(identity, delta=0) == r
    torch.testing.assert_close(stable_rank(identity).item(), float(r))
    torch.testing.assert_close(entropy_rank(identity).item(), float(r), rtol=1e-5, atol=0)


def test_an_isometry_with_rounding_ties_alike():
    isometry = torch.linalg.qr(random_matrix(200, 100).float())[0]
    assert srank(isometry) == 99


def test_closed_forms():
    for rank in RANKS:
        outer = torch.arange(1.0, 5.0).unsqueeze(1) * torch.tensor([2.0, -1.0, 3.0])
        torch.testing.assert_close(rank(outer).double(), torch.tensor(1.0).double(), rtol=1e-4, atol=0)
    geometric = torch.diag(0.5 ** torch.arange(20.0, dtype=torch.float64))
    assert srank(geometric, delta=0.1) == 4  # 1 − 2⁻⁴ > 0.9
    torch.testing.assert_close(stable_rank(geometric).item(), 4 / 3, rtol=1e-9, atol=0)
    torch.testing.assert_close(entropy_rank(geometric).item(), 4.0, rtol=1e-4, atol=0)  # 2 bits


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10), seeds, st.floats(0, 0.4), deltas.filter(bool))
def test_dfi_bounds_srank_of_whitened_features(n, seed, noise, delta):
    """Paper, theorem "DfI controls effective rank", right inequality."""
    weight = torch.linalg.qr(random_matrix(n + 3, n, seed=seed))[0]
    weight = weight + noise / n * random_matrix(n + 3, n, seed=seed + 1)
    epsilon = dfi(weight).sqrt().item()
    if epsilon < 1:
        inputs = torch.linalg.qr(random_matrix(40, n + 3, seed=seed + 2))[0] * 40**0.5
        ratio = ((1 + epsilon) / (1 - epsilon)) ** 0.5
        bound = (1 - delta) * n / (delta * ratio + (1 - delta))
        assert srank(inputs @ weight, delta) >= math.ceil(bound - 1e-9)


def test_leading_dimensions_are_a_batch():
    stack = random_matrix(2, 3, 5, 4)
    stack[1, 2] = 0
    for rank, of in zip(RANKS, (srank_of, stable_rank_of, entropy_rank_of), strict=True):
        assert rank(stack).shape == (2, 3)
        for i, j in ((0, 0), (1, 1), (1, 2)):
            torch.testing.assert_close(rank(stack)[i, j], rank(stack[i, j]))
        torch.testing.assert_close(of(singular_values(stack).flip(-1)), rank(stack))  # any order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_float32(dtype):
    matrix = random_matrix(12, 8).to(dtype)
    assert stable_rank(matrix).dtype == entropy_rank(matrix).dtype == singular_values(matrix).dtype == torch.float32
    assert srank(matrix).dtype == torch.int64
    for rank in RANKS:
        torch.testing.assert_close(rank(matrix), rank(matrix.float()))


@pytest.mark.parametrize("shape", [(3, 3), (0, 3), (3, 0), (0, 0), (2, 3, 3), (2, 0, 4)])
def test_zero_and_empty_matrices_have_rank_zero(shape):
    for rank in RANKS:
        assert rank(torch.zeros(shape)).shape == shape[:-2]
        assert not rank(torch.zeros(shape)).any()


@settings(max_examples=50, deadline=None)
@given(sizes, sizes, seeds, st.sampled_from([1e-60, 1.0, 1e60]))
def test_singular_values_of_a_gram_matrix(m, n, seed, scale):
    matrix = scale * random_matrix(m, n, seed=seed)
    expected = torch.zeros(n).double()
    expected[: min(m, n)] = torch.linalg.svdvals(matrix)
    found = singular_values_of_gram(matrix.mT @ matrix)
    torch.testing.assert_close(found, expected, atol=1e-7 * expected[0].item(), rtol=1e-9)
    torch.testing.assert_close(singular_values(matrix), expected[: min(m, n)], atol=0, rtol=1e-6)


def test_a_gram_matrix_loses_small_singular_values():
    """The limit that the docstring names."""
    values = torch.tensor([1.0, 1e-6, 1e-9]).double()
    basis = torch.linalg.qr(random_matrix(3, 3))[0]
    matrix = basis * values
    _, near, lost = singular_values_of_gram(matrix.mT @ matrix).tolist()
    assert abs(near - 1e-6) < 1e-9
    assert lost == 0
    torch.testing.assert_close(singular_values(matrix), values, atol=1e-15, rtol=0)
    assert singular_values_of_gram(torch.zeros(0, 0)).shape == (0,)


def test_inputs_are_not_modified_and_gradients_stop():
    matrix = torch.randn(4, 3, requires_grad=True)
    kept = matrix.detach().clone()
    for rank in RANKS:
        assert not rank(matrix).requires_grad
    assert torch.equal(matrix, kept)


def test_errors():
    for rank in RANKS:
        with pytest.raises(TypeError, match=r"`matrix` must be of a real floating dtype, got torch.int64"):
            rank(torch.ones(2, 2, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"`matrix` must have at least 2 dimensions, got shape \(2,\)"):
            rank(torch.ones(2))
        with pytest.raises(ValueError, match=r"`matrix` must be finite, got a NaN or Inf in shape \(1, 2\)"):
            rank(torch.tensor([[1.0, torch.nan]]))
    for delta in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"`delta` must be at least 0 and below 1, got {delta}"):
            srank(torch.eye(2), delta)
    with pytest.raises(ValueError, match=r"`gram` must be square, got shape \(2, 3\)"):
        singular_values_of_gram(torch.ones(2, 3))
    with pytest.raises(ValueError, match="`gram` must be finite"):
        singular_values_of_gram(torch.full((2, 2), torch.inf))


@settings(max_examples=50, deadline=None)
@given(sizes, sizes, seeds)
def test_the_gradient_of_the_entropy_rank(m, n, seed):
    """It equals autograd of the slow version, is orthogonal to the matrix, as scale does not count, and leads up."""
    matrix = random_matrix(m, n, seed=seed).requires_grad_()
    (expected,) = torch.autograd.grad(reference.rank_of_features(matrix), matrix)
    matrix = matrix.detach()
    gradient = entropy_rank_gradient(matrix)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)
    assert abs((gradient * matrix).sum()) < 1e-6
    assert entropy_rank(matrix + 1e-4 * gradient) >= entropy_rank(matrix) - 1e-9


def test_the_gradient_of_the_entropy_rank_of_several_matrices_of_zeros_and_of_none():
    several = random_matrix(2, 5, 3)
    torch.testing.assert_close(entropy_rank_gradient(several)[1], entropy_rank_gradient(several[1]))
    assert torch.equal(entropy_rank_gradient(torch.zeros(3, 2)), torch.zeros(3, 2))
    assert entropy_rank_gradient(torch.zeros(0, 2)).shape == (0, 2)
    torch.testing.assert_close(
        entropy_rank_gradient(1e-30 * several.float()) * 1e-30, entropy_rank_gradient(several.float())
    )
