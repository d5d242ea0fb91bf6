"""Wrong calls and odd trainings say what they have said before: see `messages`."""

import json

import pytest

from .messages import CASES, STORED, installed, said_by

KNOWN = json.loads(STORED.read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_call_says_what_is_stored(name):
    """If a change is meant to change it: `python -m tests.golden.messages` prints the difference and stores it."""
    if not installed(name):
        pytest.skip("of a library that is not installed")
    assert said_by(CASES[name]) == KNOWN.get(name)


def test_no_other_case_is_stored():
    assert list(KNOWN) == list(CASES)
