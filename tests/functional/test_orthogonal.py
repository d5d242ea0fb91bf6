"""`functional.orthogonal`: against float64 SVD references, invariants, claims, errors."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import RELATIVE, assert_near

from lightning_fire.functional import as_matrices, fire, orthogonalize, polar

DTYPES = list(RELATIVE)
COEFFICIENTS = list(reference.COEFFICIENTS)
sizes = st.integers(1, 24)
seeds = st.integers(0, 2**16)


def matrix_of(m: int, n: int, seed: int, condition: float = 10.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random `(m, n)` matrix whose singular values run from 1 to 1 / condition, in log steps."""
    generator = torch.Generator().manual_seed(seed)
    u, _ = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    r = min(m, n)
    sigma = torch.logspace(0, -math.log10(condition), r, dtype=torch.float64)
    return (u[:, :r] * sigma @ v[:, :r].T).to(dtype)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, seeds, st.sampled_from(DTYPES), st.sampled_from(COEFFICIENTS), st.integers(1, 12))
def test_orthogonalize_equals_the_scalar_recursion_on_singular_values(m, n, seed, dtype, coefficients, steps):
    matrix = matrix_of(m, n, seed, dtype=dtype)
    result = orthogonalize(matrix, steps, coefficients)
    assert result.dtype == dtype
    assert result.shape == (m, n)
    assert_near(result, reference.orthogonalize(matrix, steps, coefficients))


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, seeds, st.sampled_from(DTYPES), st.sampled_from([1.0, 10.0, 1e3]))
def test_polar_equals_the_float64_svd(m, n, seed, dtype, condition):
    matrix = matrix_of(m, n, seed, condition, dtype=torch.float64).to(dtype)
    if torch.linalg.cond(matrix.double()) > 3 * condition:
        return  # rounding to a half-precision dtype changed the spectrum
    bound = max(RELATIVE[dtype], condition * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * 4)
    error = (polar(matrix).double() - reference.polar(matrix)).norm() / math.sqrt(min(m, n))
    assert error <= bound


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds, st.floats(1, 1e6))
def test_polar_is_an_isometry(m, n, seed, condition):
    q = polar(matrix_of(m, n, seed, condition)).double()
    gram = q.T @ q if m >= n else q @ q.T
    assert (gram - torch.eye(min(m, n)).double()).norm() / math.sqrt(min(m, n)) <= 1e-6


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds, st.integers(-100, 100), st.sampled_from([torch.float32, torch.float64]))
def test_scale_invariance_is_exact_for_powers_of_two(m, n, seed, exponent, dtype):
    matrix = matrix_of(m, n, seed, dtype=dtype)
    assert torch.equal(orthogonalize(matrix * 2.0**exponent), orthogonalize(matrix))
    assert torch.equal(polar(matrix * 2.0**exponent), polar(matrix))


@pytest.mark.parametrize("size", [1e-30, 1e-38, 1e30, 3e38])
def test_extreme_entries_neither_overflow_nor_vanish(size):
    matrix = torch.tensor([[1.0, 0.5], [-0.5, 0.25], [0.125, 1.0]]) * size
    expected = reference.polar(matrix.double() / size)
    assert_near(orthogonalize(matrix, steps=20), expected)
    assert_near(polar(matrix), expected)
    assert_near(fire(matrix, steps="exact", scale="none"), expected)


@pytest.mark.parametrize("steps", [10, "exact"])
@pytest.mark.parametrize("size", [1e-38, 1e30, 3e38])
def test_procrustes_scale_of_extreme_entries(size, steps):
    """⟨W, Q⟩, and the scale itself, may be out of the range of float32 where their product with Q is not."""
    matrix = matrix_of(40, 40, seed=0)
    matrix /= matrix.abs().max()
    result = fire(matrix * size, steps, scale="procrustes")
    assert_near(result.double() / size, fire(matrix, steps, scale="procrustes"), torch.float32)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds, st.sampled_from(COEFFICIENTS))
def test_commutes_with_transpose_and_rotation(m, n, seed, coefficients):
    matrix = matrix_of(m, n, seed)
    rotation = polar(torch.randn(m, m, generator=torch.Generator().manual_seed(seed)))
    for function in (lambda x: orthogonalize(x, 10, coefficients), polar):
        assert_near(function(matrix.mT), function(matrix).mT, torch.float32)
        assert_near(function(rotation @ matrix), rotation @ function(matrix), torch.float32)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds, st.floats(1, 1e4))
def test_more_cubic_steps_raise_every_singular_value_and_none_passes_one(m, n, seed, condition):
    matrix = matrix_of(m, n, seed, condition, dtype=torch.float64)
    previous = torch.linalg.svdvals(matrix / matrix.norm())
    for steps in range(1, 15):
        current = torch.linalg.svdvals(orthogonalize(matrix, steps))
        assert (current >= previous - 1e-12).all()
        assert (current <= 1 + 1e-12).all()
        previous = current


def test_many_cubic_steps_reach_the_polar_factor():
    matrix = matrix_of(40, 30, seed=0, condition=1e3)
    assert_near(orthogonalize(matrix, steps=60), polar(matrix), torch.float32)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, seeds)
def test_no_orthonormal_matrix_is_nearer(m, n, seed):
    matrix = matrix_of(m, n, seed, dtype=torch.float64)
    best = (matrix - polar(matrix)).norm()
    generator = torch.Generator().manual_seed(seed + 1)
    for _ in range(5):
        other = polar(torch.randn(m, n, generator=generator, dtype=torch.float64))
        assert (matrix - other).norm() >= best - 1e-12


def test_ten_steps_leave_a_large_square_gaussian_short_of_the_constraint():
    """`docs/fire.md`: the paper's 10 iterations are not the exact projection."""
    matrix = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    smallest = torch.linalg.svdvals(orthogonalize(matrix, steps=10))[-1]
    assert smallest < 0.05
    assert torch.linalg.svdvals(polar(matrix))[-1] > 1 - 1e-5


def test_leading_dimensions_are_a_batch():
    batch = torch.stack([matrix_of(6, 4, seed) for seed in range(6)]).reshape(2, 3, 6, 4)
    for function in (orthogonalize, polar):
        each = [function(matrix) for matrix in batch.flatten(0, 1)]
        assert_near(function(batch), torch.stack(each).reshape(2, 3, 6, 4))


def test_zero_stays_zero_beside_others_of_the_batch():
    batch = torch.stack([torch.zeros(3, 2), matrix_of(3, 2, seed=0)])
    for function in (orthogonalize, polar):
        result = function(batch)
        assert torch.equal(result[0], torch.zeros(3, 2))
        assert_near(result[1], function(batch[1]))


def test_rank_deficient_matrices():
    rank_one = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0]))
    assert torch.linalg.matrix_rank(orthogonalize(rank_one), rtol=1e-3) == 1  # the iteration keeps null directions null
    q = polar(rank_one)
    assert_near(q.T @ q, torch.eye(2))  # the projection completes them


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (0, 4, 4), (2, 0, 4)])
def test_empty(shape):
    empty = torch.empty(shape)
    assert orthogonalize(empty).shape == shape
    assert polar(empty).shape == shape
    for scale in ("paper", "none", "procrustes"):
        assert fire(empty, scale=scale).shape == shape


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 1)])
def test_vectors_are_normalized(shape):
    vector = torch.arange(1.0, math.prod(shape) + 1).reshape(shape)
    for result in (orthogonalize(vector, steps=5), polar(vector)):
        assert_near(result, vector / vector.norm())


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_not_modified_and_outputs_are_new_tensors(dtype):
    weight = torch.randn(6, 4, 3, 3).to(dtype)
    copy = weight.clone()
    for function in (orthogonalize, polar, fire):
        result = function(weight)
        assert result.data_ptr() != weight.data_ptr()
        assert torch.equal(weight, copy)
        assert not result.requires_grad


@settings(max_examples=60, deadline=None)
@given(
    out=st.integers(1, 6),
    inputs=st.integers(1, 6),
    groups=st.sampled_from([1, 2, 3]),
    kernel=st.lists(st.integers(1, 3), max_size=3),
    seed=seeds,
    steps=st.sampled_from([1, 5, 10, "exact"]),
    scale=st.sampled_from(["paper", "none", "procrustes"]),
    dtype=st.sampled_from(DTYPES),
)
def test_fire_equals_the_loop_over_groups_and_taps(out, inputs, groups, kernel, seed, steps, scale, dtype):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(groups * out, inputs, *kernel, generator=generator, dtype=torch.float64).to(dtype)
    expected = reference.fire(weight, steps, scale=scale, groups=groups)
    matrices = as_matrices(weight.double(), groups)
    if steps == "exact" and (torch.linalg.cond(matrices) > 100).any():
        return  # the polar factor of a nearly singular matrix moves with its rounding
    assert_near(fire(weight, steps, scale=scale, groups=groups), expected)


def test_fire_works_for_any_memory_format():
    weight = torch.randn(8, 4, 3, 3)
    assert_near(fire(weight.to(memory_format=torch.channels_last)), fire(weight))


def test_paper_scale_is_root_of_out_over_in_by_taps():
    singular_values = torch.linalg.svdvals(as_matrices(fire(torch.randn(8, 2, 3, 3), steps="exact"))[0])
    assert_near(singular_values, torch.full((9, 2), 2.0 / 9))


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_paper_scale_shrinks_white_signals_by_the_size_of_the_kernel(kernel):
    """The factor divides by the taps, k², where a sum of k² independent terms grows by k: the output has RMS 1 / k."""
    weight = fire(torch.randn(16, 16, kernel, kernel), steps="exact")
    rms = weight.square().sum((1, 2, 3)).mean().sqrt()  # of an output of white input, with variance 1
    assert_near(rms, torch.tensor(1 / kernel))


@pytest.mark.parametrize(("out", "inputs", "rms"), [(16, 16, 1), (64, 16, 1), (16, 64, 0.5)])
def test_paper_scale_keeps_white_signals_of_linear_layers_that_do_not_narrow(out, inputs, rms):
    """A matrix with orthonormal rows has outputs of variance 1 already, which √(out / in) then shrinks."""
    weight = fire(torch.randn(out, inputs), steps="exact")
    assert_near(weight.square().sum(1).mean().sqrt(), torch.tensor(float(rms)))


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, seeds, st.floats(-3, 3))
def test_procrustes_has_the_smallest_error_among_all_scaled_isometries(m, n, seed, other):
    weight = matrix_of(m, n, seed, dtype=torch.float64)
    best = (weight - fire(weight, "exact", scale="procrustes")).norm()
    assert best <= (weight - other * polar(weight)).norm() + 1e-12


def test_as_matrices_lists_taps_in_row_major_order():
    weight = torch.arange(4 * 3 * 2 * 2.0).reshape(4, 3, 2, 2)
    matrices = as_matrices(weight, groups=2)
    assert matrices.shape == (2, 4, 2, 3)
    assert torch.equal(matrices[1, 2], weight[2:, :, 1, 0])


@pytest.mark.parametrize("function", [orthogonalize, polar, fire])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_an_error(function, bad):
    matrix = torch.eye(3)
    matrix[1, 2] = bad
    with pytest.raises(ValueError, match="NaN or Inf"):
        function(matrix)


@pytest.mark.parametrize("function", [orthogonalize, polar, fire])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_unsupported_dtypes_are_an_error(function, dtype):
    with pytest.raises(TypeError, match=r"real floating dtype, got torch\."):
        function(torch.ones(2, 2, dtype=dtype))


@pytest.mark.parametrize("function", [orthogonalize, polar, fire])
def test_vectors_are_an_error(function):
    with pytest.raises(ValueError, match=r"at least 2 dimensions, got shape \(3,\)"):
        function(torch.ones(3))


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, "many"])
def test_steps_must_be_a_positive_integer(steps):
    with pytest.raises(ValueError, match="`steps` must be an integer of at least 1, got"):
        orthogonalize(torch.eye(2), steps=steps)
    with pytest.raises(ValueError, match="`steps` must be an integer of at least 1, or 'exact', got"):
        fire(torch.eye(2), steps=steps)


def test_unknown_names_are_an_error():
    with pytest.raises(ValueError, match=r"`coefficients` must be one of .*'cubic'.*, got 'septic'"):
        orthogonalize(torch.eye(2), coefficients="septic")
    with pytest.raises(ValueError, match=r"`scale` must be 'paper', 'none' or 'procrustes' .*, got 'kaiming'"):
        fire(torch.eye(2), scale="kaiming")


@pytest.mark.parametrize("groups", [0, 3])
def test_groups_must_divide_the_outputs(groups):
    with pytest.raises(ValueError, match=f"`groups` must divide the 4 outputs of the weight, got {groups}"):
        fire(torch.ones(4, 2), groups=groups)
