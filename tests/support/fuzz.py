"""Tests on random examples, of which `make test-crash` draws many."""

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

TIMES = int(os.environ.get("EXAMPLES", "1"))


def fuzz(examples: int) -> Callable[[Callable], Callable]:
    """Mark a test of hypothesis: the same so many examples each time; with `EXAMPLES=10` ten times as many, new ones.

    Args:
        examples: How many.
    """
    drawn = settings(max_examples=TIMES * examples, deadline=None, derandomize=TIMES == 1)
    return lambda test: pytest.mark.fuzz(drawn(test))
