"""The study of the ratio of DfI in networks that have lost nothing."""

import sys

import pytest
import torch

from lightning_fire.cli import main
from studies import dfi_ratio


def test_the_ratio_is_that_of_diagnose(tmp_path, capsys):
    torch.manual_seed(0)
    net = dfi_ratio.network(32, factor=3.0)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    main(["diagnose", str(tmp_path / "net.pt"), "--preset", "cnn"])
    assert f"DfI × {dfi_ratio.ratio(net):.3g} that of new weights" in capsys.readouterr().out


def test_the_ratio_is_larger_after_small_initial_weights_while_accuracy_rises():
    small, usual = (list(dfi_ratio.measure(factor, seed=0, steps=(20, 100))) for factor in (0.25, 1.0))
    for early, late in (small, usual):
        assert late["accuracy"] > early["accuracy"]
    assert small[-1]["log_ratio"] > usual[-1]["log_ratio"] + 1


@pytest.mark.slow
def test_the_study_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["study", "--seeds", "1", "--steps", "5", "10"])
    dfi_ratio.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| initial weights | 5 steps | 10 steps |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| × 0.25", "| × 0.5", "| × 1", "| × 2"]
