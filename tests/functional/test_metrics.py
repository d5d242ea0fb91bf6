"""`functional.metrics`: against literal versions, hand-computed cases, invariants, errors."""

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fire.functional import as_matrices, dfi, dfi_normalized, fire, orthogonalize, polar, sfe, sfe_normalized
from lightning_fire.functional.metrics import both_deviations

sizes = st.integers(1, 12)
seeds = st.integers(0, 2**16)


def random_matrix(m: int, n: int, seed: int) -> torch.Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=50, deadline=None)
@given(sizes, sizes, seeds)
def test_dfi_equals_the_literal_formula(m, n, seed):
    matrix = random_matrix(m, n, seed)
    torch.testing.assert_close(dfi(matrix), reference.dfi(matrix))
    torch.testing.assert_close(dfi_normalized(matrix), reference.dfi_normalized(matrix), atol=1e-12, rtol=1e-9)


def test_hand_computed():
    assert dfi(torch.zeros(3, 3)) == 3
    assert dfi(torch.tensor([[1.0, 1.0]])) == 2  # WᵀW = ones(2, 2); minus I: two ones off the diagonal
    assert dfi(torch.tensor([[2.0], [0.0]])) == 9
    assert dfi_normalized(torch.tensor([[3.0, 0.0], [0.0, 0.0]])) == 1  # rank one: r − 1
    assert sfe(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 6.0]])) == 25
    assert sfe_normalized(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)) == 1


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3)])
def test_floor_of_the_papers_dfi_is_missing_columns(shape):
    q = polar(torch.randn(shape, dtype=torch.float64))
    torch.testing.assert_close(dfi(q), torch.tensor(float(max(shape[1] - shape[0], 0))).double(), atol=1e-12, rtol=0)
    assert dfi_normalized(q) < 1e-20


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, seeds, st.sampled_from([1e-30, 1e-3, 1.0, 1e30]))
def test_normalised_dfi_is_invariant_to_scale_and_transpose(m, n, seed, scale):
    matrix = random_matrix(m, n, seed).float()
    value = dfi_normalized(matrix)
    torch.testing.assert_close(dfi_normalized(matrix * scale), value, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(dfi_normalized(matrix.mT), value, atol=1e-5, rtol=1e-4)
    assert 0 <= value <= min(m, n) - 1 + 1e-4


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, seeds)
def test_orthogonalizing_never_raises_normalised_dfi(m, n, seed):
    """Only true of converged steps in general; the exact factor has none left."""
    matrix = random_matrix(m, n, seed)
    assert dfi_normalized(polar(matrix)) <= dfi_normalized(matrix) + 1e-12


def test_sfe_is_not_monotone_in_the_number_of_steps():
    """Paper, figure "Effect of number of FIRE iterations": it peaks at the first and falls afterwards."""
    matrix = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))[0]
    matrix = matrix * torch.linspace(0.6, 1.4, 64)
    errors = [sfe(matrix, orthogonalize(matrix, steps)).item() for steps in range(1, 13)]
    assert errors[0] == max(errors)
    assert errors[-1] < 0.1 * errors[0]


def test_batches_and_convolutions():
    weight = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    new = fire(weight)
    values = dfi(as_matrices(weight))
    assert values.shape == (1, 9)
    slow = [reference.dfi(weight[:, :, i, j]) for i in range(3) for j in range(3)]
    torch.testing.assert_close(values[0], torch.stack(slow))
    torch.testing.assert_close(sfe(as_matrices(weight), as_matrices(new)).sum(), (weight - new).square().sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_float32(dtype):
    matrix = torch.randn(16, 8).to(dtype)
    assert dfi(matrix).dtype == torch.float32
    torch.testing.assert_close(dfi(matrix), reference.dfi(matrix).float())


def test_empty_and_zero():
    assert dfi(torch.empty(0, 3)) == 3
    assert dfi(torch.empty(3, 0)) == 0
    assert dfi_normalized(torch.empty(3, 0)) == 0
    assert dfi_normalized(torch.zeros(3, 3)) == 1
    zero, one = torch.zeros(2, 2), torch.ones(2, 2)
    assert sfe_normalized(zero, zero) == 0
    assert sfe_normalized(zero, one) == float("inf")


def test_errors():
    for metric in (dfi, dfi_normalized):
        with pytest.raises(TypeError, match=r"`matrix` must be of a real floating dtype, got torch.int64"):
            metric(torch.ones(2, 2, dtype=torch.int64))
        with pytest.raises(ValueError, match="`matrix` must have at least 2 dimensions"):
            metric(torch.ones(2))
    for metric in (sfe, sfe_normalized):
        with pytest.raises(ValueError, match=r"must have one shape, got \(2, 2\) and \(2, 3\)"):
            metric(torch.ones(2, 2), torch.ones(2, 3))
        with pytest.raises(TypeError, match="`after` must be of a real floating dtype"):
            metric(torch.ones(2, 2), torch.ones(2, 2).to(torch.complex64))


@pytest.mark.parametrize("shape", [(5, 5), (3, 7, 4), (2, 3, 4, 9), (0, 4), (4, 0)])
@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 37.0, 1e10])
def test_both_deviations_at_once_are_each_of_them(shape, size):
    matrix = torch.randn(shape) * size
    deviation, normalized = both_deviations(matrix)
    torch.testing.assert_close(deviation, dfi(matrix), rtol=1e-6, atol=0)
    torch.testing.assert_close(normalized, dfi_normalized(matrix), rtol=1e-5, atol=1e-6)


def test_both_deviations_of_zeros_and_of_what_is_not_finite():
    zeros = torch.stack([torch.zeros(3, 5), torch.eye(3, 5)])
    assert [both.tolist() for both in both_deviations(zeros)] == [[5.0, 2.0], [1.0, 0.0]]
    assert all(both.isnan() for both in both_deviations(torch.tensor([[1.0, torch.nan]])))
