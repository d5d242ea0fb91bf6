"""`examples/monthly_retraining.py` run as on its page: a process a month, one of them killed and started again."""

import shutil
from pathlib import Path

import processes
import pytest
import torch

pytestmark = pytest.mark.slow(10)

EXAMPLE = Path(__file__).parents[2] / "examples" / "monthly_retraining.py"

RUN = """
import os, runpy, sys, warnings
from lightning.pytorch import Callback, LightningModule, Trainer

warnings.simplefilter("ignore", FutureWarning)
steps = 0

def on_train_batch_end(self, *args):
    global steps
    steps += 1
    if steps == {kill_after}:
        sys.stdout.flush()
        os._exit(0)

LightningModule.on_train_batch_end = on_train_batch_end
sys.argv = [{example!r}, "{month}", "{way}", {folder!r}]
runpy.run_path({example!r}, run_name="__main__")
"""


def month_in_a_process(folder, month, way, kill_after=None):
    """Return what a process prints of the callback and at its end."""
    folder.mkdir(exist_ok=True)
    names = {"example": str(EXAMPLE), "month": month, "way": way, "folder": str(folder), "kill_after": kill_after}
    processes.run(RUN.format(**names), folder)
    lines = (folder / "printed0").read_text().splitlines()
    return [line for line in lines if line.startswith(("FIRECallback", "month"))]


def weights_of(checkpoint):
    return torch.load(checkpoint, weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    ("way", "moments", "events"),
    [
        ("weights", ["epoch 0, step 0", "epoch 0, step 0"], 1),
        ("checkpoint", ["epoch 4, step 80", "epoch 8, step 240"], 2),
    ],
)
def test_each_month_but_the_first_has_one_event_also_if_its_process_is_killed(tmp_path, way, moments, events):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    will, did_not, end = month_in_a_process(whole, 0, way)
    assert "if this process continues from weights trained before, use when=AtNewData(skip_first=False)" in will
    assert did_not.startswith("FIRECallback did not act in this fit: new data comes when Months.chunk changes from 0")
    assert float(end.removeprefix("month 0: accuracy ")) > 0.6
    for month, moment in zip((1, 2), moments, strict=True):
        will, acted, end = month_in_a_process(whole, month, way)
        assert will.startswith(
            "FIRECallback will act on 3 of 3 weight matrices, preset cnn (net.1.weight … net.5.weight), AtNewData("
        )
        assert "this fit begins with new data" in will
        assert acted.startswith(f"FIRECallback acted at {moment}, new data: chunk ")
        assert float(end.removeprefix(f"month {month}: accuracy ")) > 0.7

    killed.mkdir()
    shutil.copy(whole / "month1.ckpt", killed)
    assert len(month_in_a_process(killed, 2, way, kill_after=130)) == 2  # it was in the third of its four epochs
    assert month_in_a_process(killed, 2, way)[1:] == [
        f"FIRECallback did not act in this fit; in earlier fits it acted {events} time(s).",
        end,
    ]
    expected = weights_of(whole / "month2.ckpt")
    for name, weight in weights_of(killed / "month2.ckpt").items():
        assert torch.equal(weight, expected[name]), name
