"""Learning rates over chunks."""

import math

import pytest

from lightning_fire.modules.chunk_schedule import learning_rate_factors


def test_the_papers_schedule():
    """Phase 1: 2000 steps of warm-up, then linear to a tenth; phase 2: 10 % of warm-up."""
    factor = learning_rate_factors([10_000, 5000], [2000, 0.1], "linear", 0.1)
    assert [factor(step) for step in (0, 1000, 2000, 6000)] == pytest.approx([0, 0.5, 1, 0.55])
    assert factor(9999) == pytest.approx(0.1, abs=2e-4)
    assert [factor(10_000 + step) for step in (0, 250, 500, 2750)] == pytest.approx([0, 0.5, 1, 0.55])
    assert factor(15_000) == factor(99_999) == pytest.approx(0.1)


def test_cosine():
    factor = learning_rate_factors([1100], [100], "cosine", 0.1)
    for step in (100, 350, 600, 850, 1100):
        assert factor(step) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * (step - 100) / 1000)) / 2)


def test_infinite_is_cosine_in_the_first_chunk_and_then_constant_for_ever():
    factor, first = (learning_rate_factors([8, 5, 5], [2], decay, minimum=0.25) for decay in ("infinite", "cosine"))
    assert [factor(step) for step in range(8)] == [first(step) for step in range(8)]
    assert [factor(step) for step in range(8, 30)] == [0.25] * 22


def test_the_last_warm_up_holds_for_all_further_chunks():
    factor = learning_rate_factors([4, 4, 4], [0, 2])
    assert [factor(step) for step in range(12)] == [1, 1, 1, 1, 0, 0.5, 1, 1, 0, 0.5, 1, 1]


def test_a_warm_up_longer_than_its_chunk_never_ends():
    factor = learning_rate_factors([4, 4], [8, 0], "linear")
    assert [factor(step) for step in range(8)] == [0, 1 / 8, 2 / 8, 3 / 8, 1, 0.75, 0.5, 0.25]
