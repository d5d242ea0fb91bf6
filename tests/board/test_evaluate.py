"""Two commands that share a folder."""

import fcntl
import os
import time

import pytest
from board_rows import SUITE

from lightning_fire.board import evaluate as module
from lightning_fire.experiments.runs import lock_folder


class Report:
    """Of finished runs, all with the same number."""

    def of(self, start, method, measure):
        return dict.fromkeys(SUITE.seeds, 0.5)


def test_a_cell_is_read_before_another_command_may_train_its_runs_again(tmp_path, monkeypatch):
    def cell(*rest):
        handle = os.open(tmp_path / "random_labels", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        return "cell"

    monkeypatch.setattr(module, "train_and_read", lambda *rest: (Report(), []))
    monkeypatch.setattr(module, "_cell", cell)
    task = SUITE.tasks["random_labels"]
    assert module.evaluate(SUITE, task, ["vanilla"], tmp_path, None) == {"vanilla": "cell"}


def test_a_command_waits_for_another_one_no_longer_than_its_time_limit(tmp_path):
    with lock_folder(tmp_path / "random_labels"), pytest.raises(SystemExit, match="another comparison is at work in"):
        module.evaluate(SUITE, SUITE.tasks["random_labels"], ["vanilla"], tmp_path, None, time.monotonic() + 0.1)
