"""The script whose types `make lint` checks runs as well."""

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("stable_baselines3")


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    import user_script

    assert user_script.functions(torch.randn(4, 3)) < 1e-2  # after five quintic steps
    assert len(user_script.callbacks()) == 4
    report = user_script.plain_loop(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert report["dfi_normalized_after"] < 0.1
    torch.save({"fc.weight": torch.eye(3)}, tmp_path / "net.pt")
    assert user_script.files(tmp_path / "net.pt")[0].dfi_normalized == 0
    assert len(user_script.other_trainers()) == 2
