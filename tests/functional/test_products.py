"""Polar factors by products: against the singular value decomposition, for every kind of spectrum, on the CPU."""

import math

import pytest
import reference
import torch
from spectra import SHAPES, SPECTRA, assert_nearest_isometry, matrix_of, residual

from lightning_fire.functional import products
from lightning_fire.functional.products import (
    FINISH,
    REPEATS,
    RISING,
    by_products,
    by_svd,
    corrected,
    float32_products,
    is_missed,
)


@pytest.mark.parametrize("repeats", [1, 2, 10])
def test_the_polynomials_take_every_singular_value_to_one(repeats):
    x = torch.linspace(0.03, 1.0, 100_001, dtype=torch.float64)
    ranges = [
        (0.12, 1.00001),
        (0.44, 1.00001),
        (0.92, 1.00001),
        (1 - 5e-5, 1 + 5e-5),
        (1 - 3e-13, 1 + 3e-13),
        (1 - 1e-15, 1 + 1e-15),
    ]
    for polynomial, (low, high) in zip(
        [RISING] * repeats + list(FINISH), [ranges[0]] * repeats + ranges[1:], strict=True
    ):
        a, b, *c = polynomial
        x = x * (a + b * x**2 + (c[0] if c else 0) * x**4)
        assert low <= float(x.min()) <= float(x.max()) <= high


@pytest.mark.parametrize("dtype", REPEATS)
def test_the_smallest_singular_values_get_there(dtype):
    least = 0.03 / RISING[0] ** REPEATS[dtype]
    assert least == pytest.approx({torch.float32: 1e-15, torch.float64: 2.7e-24}[dtype], rel=0.1)


@pytest.mark.parametrize("dtype", REPEATS)
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", [*SHAPES, (7, 7), (64, 3), (1, 9)])
def test_every_spectrum(shape, spectrum, dtype):
    matrix = matrix_of(shape, spectrum, dtype)
    q, eps = by_products(matrix), torch.finfo(dtype).eps
    assert q.dtype == dtype
    if not matrix.any():
        assert not q.any()
        return
    assert not is_missed(q)
    assert residual(q) <= 8 * eps
    assert_nearest_isometry(q, matrix, 300 * eps)
    expected = reference.polar(matrix)
    assert (q - matrix).norm() <= (expected - matrix).norm() + 200 * eps * expected.norm()  # as near as any
    condition = {"condition 10": 10, "condition 1.6e4": 1.6e4, "gaussian": 1e4, "one huge": 1e4, "flat": 1}.get(
        spectrum
    )
    if condition:
        assert (q - expected).norm() <= (condition + 200) * eps * expected.norm()


def test_it_is_no_worse_than_the_singular_value_decomposition():
    matrix = matrix_of((300, 300), "condition 1.6e4")
    expected = reference.polar(matrix)
    assert (by_products(matrix) - expected).norm() <= (by_svd(matrix) - expected).norm()


@pytest.mark.parametrize("dead", [1, 70])
def test_dead_rows_and_columns_are_completed(dead):
    matrix = matrix_of((200, 210), "condition 1.6e4")
    matrix[:dead] = 0
    matrix[:, -dead:] *= 1e-30
    state = torch.get_rng_state()
    q = by_products(matrix)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(q, by_products(matrix))
    assert residual(q) <= 1e-6
    assert_nearest_isometry(q, matrix, 2e-5)


def test_batches_with_zeros_and_extreme_entries():
    one = matrix_of((40, 30), "condition 10")
    x = torch.stack([one, 0 * one, one * 2.0**-60, one * 2.0**60]).view(2, 2, 40, 30)
    q = by_products(x).view(4, 40, 30)
    assert not q[1].any()
    for other in (q[2], q[3]):  # each has noise of its own
        torch.testing.assert_close(other, q[0], rtol=0, atol=1e-5)
    assert is_missed(q).tolist() == [False, True, False, False]


def test_only_what_is_no_isometry_is_computed_again(monkeypatch):
    x = torch.stack([matrix_of((40, 30), "gaussian"), matrix_of((40, 30), "condition 10"), torch.zeros(40, 30)])
    good = by_products(x)
    asked = []
    monkeypatch.setattr(products, "by_svd", lambda x: asked.append(len(x)) or by_svd(x))
    assert corrected(good, x) is good
    for wrong in (math.nan, 0.5):
        bad = good.clone()
        bad[1] *= wrong
        found = corrected(bad, x)
        assert torch.equal(found[0], good[0])
        assert torch.equal(found[1], by_svd(x[1]))
        assert not found[2].any()
    assert asked == [1, 1]


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_products_are_in_float32_and_the_setting_returns(precision):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with pytest.raises(RuntimeError, match="within"), float32_products(torch.device("cuda")):
            backend = torch.backends.cuda.matmul
            assert getattr(backend, "fp32_precision", None) in ("ieee", "none") or backend.allow_tf32 is False
            raise RuntimeError("within")
        assert torch.backends.cuda.matmul.allow_tf32 is (precision == "high")
        with float32_products(torch.device("cpu")):
            assert torch.backends.cuda.matmul.allow_tf32 is (precision == "high")
    finally:
        torch.set_float32_matmul_precision(before)
