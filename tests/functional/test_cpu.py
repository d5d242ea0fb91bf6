"""`functional._cpu`: against float64, against the plain methods, and the choice between them."""

import math

import pytest
import reference
import torch
from spectra import SHAPES, SPECTRA, assert_nearest_isometry, matrix_of, residual
from tolerances import RELATIVE, assert_near

from lightning_fire.functional import _cpu, fire, orthogonalize, polar
from lightning_fire.functional._cpu import by_deflation, by_spectrum, spectrum_is_cheaper, symmetric_product
from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz, polar_factor, unit_norm


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("coefficients", "steps"), [("cubic", 1), ("cubic", 5), ("cubic", 10), ("quintic", 5), ("quintic", 10), ("muon", 5)]
)
def test_steps_equal_the_float64_recursion(shape, spectrum, coefficients, steps):
    matrix = matrix_of(shape, spectrum)
    expected = reference.orthogonalize(matrix, steps, coefficients)
    assert (orthogonalize(matrix, steps, coefficients) - expected).norm() <= 2e-5 * expected.norm()


@pytest.mark.parametrize(
    ("coefficients", "steps"), [*(("cubic", steps) for steps in (10, 15, 20, 25)), ("quintic", 10), ("muon", 5)]
)
@pytest.mark.parametrize("rank", [1, 10, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_step_multiplies_rounding_errors_in_null_directions(shape, rank, coefficients, steps):
    """By the first coefficient, as in the published loop."""
    generator = torch.Generator().manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(n, rank, generator=generator, dtype=torch.float64))[0] for n in shape)
    matrix = (u @ v.T).float()
    expected = reference.orthogonalize(matrix, steps, coefficients)
    error = (orthogonalize(matrix, steps, coefficients) - expected).norm() / expected.norm()
    grown = 2 * torch.finfo(torch.float32).eps * COEFFICIENTS[coefficients][0] ** steps
    assert error <= max(2e-5, 1.5 * grown)  # how a CPU rounds its products differs
    assert error > 2e-5 or rank > 1 or grown < 2e-5


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [1, 5, 10])
def test_spectrum_equals_the_steps(shape, spectrum, steps):
    matrix = matrix_of(shape, spectrum)
    result = by_spectrum(matrix, steps, COEFFICIENTS["cubic"])
    if spectrum in ("one huge", "condition 1e8") and steps == 10:
        assert result is None  # the largest singular value dominates, so rounding would show
    else:
        expected = newton_schulz(unit_norm(matrix), steps, COEFFICIENTS["cubic"])
        assert (result - expected).norm() <= 2e-5 * expected.norm()


def test_spectrum_gives_up_for_steep_polynomials():
    matrix = matrix_of((200, 200), "condition 1.6e4")
    assert by_spectrum(matrix, 10, COEFFICIENTS["quintic"]) is None
    assert by_spectrum(matrix, 5, COEFFICIENTS["muon"]) is None


@pytest.mark.parametrize("steps", [40, 400])
def test_many_steps_reach_the_polar_factor(steps):
    matrix = matrix_of((200, 200), "condition 10")
    assert_near(orthogonalize(matrix, steps), reference.polar(matrix), torch.float32)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", SHAPES)
def test_polar_factors_of_large_matrices(shape, spectrum):
    matrix = matrix_of(shape, spectrum)
    q = polar(matrix)
    assert residual(q) <= 1e-6
    assert_nearest_isometry(q, matrix, 2e-5)
    assert (q - matrix).norm() <= (reference.polar(matrix) - matrix).norm() * (1 + 1e-6) + 1e-5  # has the smallest SFE


@pytest.mark.parametrize(("spectrum", "condition"), [("condition 10", 10), ("condition 1.6e4", 1.6e4)])
@pytest.mark.parametrize("shape", SHAPES)
def test_deflation_equals_the_svd(shape, spectrum, condition):
    matrix = matrix_of(shape, spectrum)
    bound = condition * torch.finfo(torch.float32).eps * math.sqrt(min(shape)) + 2e-5 * math.sqrt(min(shape))
    for other in (polar_factor(matrix), reference.polar(matrix)):
        assert (by_deflation(matrix) - other).norm() <= bound


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(shape, dtype):
    matrix = matrix_of(shape, "condition 10", dtype)
    assert polar(matrix).dtype == orthogonalize(matrix).dtype == dtype
    assert_near(orthogonalize(matrix), reference.orthogonalize(matrix, 10))
    error = (polar(matrix).double() - reference.polar(matrix)).norm() / math.sqrt(min(shape))
    assert error <= max(RELATIVE[dtype], 1e-12)


@pytest.mark.parametrize("exponent", [-100, -60, 3, 60, 100])
def test_powers_of_two_change_nothing(exponent):
    matrix = matrix_of((200, 200), "condition 10")
    for function in (orthogonalize, polar):
        assert torch.equal(function(matrix * 2.0**exponent), function(matrix))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_extreme_entries(size):
    matrix = matrix_of((200, 250), "condition 10")
    for function in (orthogonalize, polar):
        assert_near(function(matrix * size), function(matrix))


@pytest.mark.parametrize("steps", [10, "exact"])
def test_zero_kernel_positions_stay_zero_beside_others(steps):
    weight = torch.stack([matrix_of((200, 200), "condition 10"), torch.zeros(200, 200)], -1).unsqueeze(-1)
    result = fire(weight, steps)
    assert torch.equal(result[..., 1, 0], torch.zeros(200, 200))
    assert_near(result, reference.fire(weight, steps).nan_to_num() * torch.tensor([1.0, 0.0]).view(2, 1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dead", [1, 70])
def test_dead_rows_and_columns_are_completed_without_the_svd(monkeypatch, shape, dead):
    matrix = matrix_of(shape, "condition 1.6e4")
    matrix[:dead] = 0
    matrix[:, -dead:] = 0
    monkeypatch.setattr(_cpu, "polar_factor", None)
    state = torch.get_rng_state()
    q = polar(matrix)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(q, polar(matrix))
    assert residual(q) <= 1e-6
    assert_nearest_isometry(q, matrix, 2e-5)


@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_deflation_that_fails_falls_back_to_the_svd(monkeypatch, value):
    matrix = matrix_of((200, 200), "condition 10")
    monkeypatch.setattr(_cpu, "_deflated", lambda y: (torch.full_like(y, value), torch.eye(200)))
    assert torch.equal(by_deflation(matrix), polar_factor(matrix))


@pytest.mark.parametrize(
    ("shape", "steps", "coefficients", "by_spectrum"),
    [
        ((1, 1), 10, "cubic", False),
        ((64, 64), 10, "cubic", False),
        ((64, 576), 10, "cubic", False),
        ((10, 512), 10, "cubic", False),
        ((192, 192), 10, "cubic", False),
        ((256, 256), 10, "cubic", True),
        ((192, 192), 5, "cubic", False),
        ((768, 768), 5, "cubic", True),
        ((50257, 768), 10, "cubic", True),
        ((768, 768), 5, "quintic", True),
        ((768, 768), 10, "quintic", False),
        ((768, 768), 5, "muon", False),
    ],
)
def test_choice_between_steps_and_spectrum(monkeypatch, shape, steps, coefficients, by_spectrum):
    assert spectrum_is_cheaper(*shape, steps, COEFFICIENTS[coefficients]) is by_spectrum
    assert spectrum_is_cheaper(*shape[::-1], steps, COEFFICIENTS[coefficients]) is by_spectrum
    if shape[0] * shape[1] > 1e6:
        return
    taken = []
    for name in ("newton_schulz", "by_spectrum"):
        way = getattr(_cpu, name)
        monkeypatch.setattr(_cpu, name, lambda *args, name=name, way=way: taken.append(name) or way(*args))
    orthogonalize(matrix_of(shape, "condition 1.6e4"), steps, coefficients)
    assert taken == ["by_spectrum" if by_spectrum else "newton_schulz"]


@pytest.mark.parametrize(
    ("shape", "deflated"), [((1, 1), False), ((191, 1000), False), ((192, 192), True), ((1000, 200), True)]
)
def test_choice_between_svd_and_deflation(monkeypatch, shape, deflated):
    taken = []
    for name in ("by_svd", "by_deflation"):
        way = getattr(_cpu, name)
        monkeypatch.setattr(_cpu, name, lambda *args, name=name, way=way: taken.append(name) or way(*args))
    polar(matrix_of(shape, "gaussian"))
    assert taken == ["by_deflation" if deflated else "by_svd"]


@pytest.mark.parametrize("steps", [10, "exact"])
def test_results_do_not_depend_on_strides(steps):
    weight = torch.stack([matrix_of((192, 200), "condition 10")] * 4, -1).view(192, 200, 2, 2)
    expected = fire(weight, steps)
    taps = torch.empty(2, 2, 200, 192).copy_(weight.permute(2, 3, 1, 0)).permute(3, 2, 0, 1)
    expanded = weight[..., :1, :1].expand(-1, -1, 2, 2)
    for other in (weight.to(memory_format=torch.channels_last), taps, expanded):
        before = other.clone()
        result = fire(other.requires_grad_(), steps)
        assert_near(result, expected)
        assert result.is_contiguous()
        assert not result.requires_grad
        assert torch.equal(other, before)


@pytest.mark.parametrize("steps", [10, "exact"])
@pytest.mark.parametrize("groups", [1, 2])
def test_groups_and_kernel_positions_of_large_weights(steps, groups):
    slices = [matrix_of((192 * groups, 200), "condition 10") * (tap + 1) for tap in range(2)]
    weight = torch.stack(slices, -1)
    assert_near(fire(weight, steps, groups=groups), reference.fire(weight, steps, groups=groups))


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("steps", [10, "exact"])
def test_results_do_not_depend_on_the_number_of_threads(steps, inference):
    weight = torch.randn(256, 200, 2, 2, generator=torch.Generator().manual_seed(0))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.inference_mode(inference):
                results.append(fire(weight, steps))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[1], results[0])
    assert torch.equal(results[2], results[0])


def test_errors_in_threads_are_raised_and_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="singular"):
            _cpu._one_thread_each(lambda matrix: torch.linalg.inv(matrix), torch.zeros(3, 2, 2).unbind())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(7, 3), (300, 129), (128, 256), (129, 128)])
def test_symmetric_products(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.rand(shape[0], 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_near(symmetric_product(weights * x, x), x.T @ (weights * x))
