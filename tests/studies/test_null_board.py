"""Boards of copies of vanilla, from numbers that are known."""

import numpy as np

from lightning_fire.board.suite import read_suite
from studies.null_board import COPIES, boards_with_a_difference, dealt

SUITE = read_suite()


def numbers(rng, seeds=40):
    return {task: list(rng.normal(0.5, 0.02, seeds)) for task in SUITE.tasks}


def test_each_number_is_dealt_once():
    values = numbers(np.random.default_rng(0))
    rows = dealt(values, SUITE, np.random.default_rng(1))
    for task, every in values.items():
        cells = [rows[copy].cells[task] for copy in COPIES]
        of_copies = [value for cell in cells for value in cell.values.values()]
        assert sorted([*of_copies, *cells[0].vanilla.values()]) == sorted(every)


def test_copies_are_rarely_told_apart_and_a_difference_is_found(monkeypatch):
    values = numbers(np.random.default_rng(2))
    assert boards_with_a_difference(values, SUITE) <= 9  # 5 expected at most, and two standard deviations
    two_kinds = {task: [*of[:10], *(value + 1 for value in of[10:])] for task, of in values.items()}

    class InOrder:
        def permutation(self, of):
            return np.array(of)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: InOrder())
    assert boards_with_a_difference(two_kinds, SUITE, boards=2) == 2
