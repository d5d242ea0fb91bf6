"""Trainings of their own in the processes of one group, as of a population or of trials: none knows of the others."""

import pytest
from processes import run

SCRIPT = """
import os
import torch
from methods_table import callback_of
from small_training import PlainModule, dataset, trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning_fire import AtNewData
from lightning_fire.data import ChunkedDataModule, Continual
from lightning_fire.methods import DASH, FIRE, ContinualBackprop, Loop, ReDo, SelfNormalizedReset

RANK = int(os.environ.pop("LOCAL_RANK"))
os.environ.pop("NODE_RANK")


def trained(name):
    torch.manual_seed(RANK)
    module, data = PlainModule(), dataset(24 + 6 * RANK, seed=RANK)
    fit = trainer(
        callback_of(name, AtNewData()), max_epochs=4, strategy=SingleDeviceStrategy("cpu"), limit_val_batches=0
    )
    fit.fit(module, datamodule=ChunkedDataModule(data, data, Continual(2, 2), batch_size=6))
    assert fit.world_size == 1
    return module.state_dict()


def in_a_loop(method):
    torch.manual_seed(RANK)
    model, x = PlainModule().net, torch.randn(8, 6)
    loop = Loop(forward=lambda: model(x), losses=lambda: [model(x).square().mean()], share_work=True, ranks=1)
    if hasattr(method, "attach"):
        at_work = method.attach(model, loop)
        for _ in range(3):
            model(x)
            at_work.after_step()
    else:
        method(model, loop)
    return model.state_dict()


FITS = ["fire", "dash", "redo", "continual_backprop", "snr", "feature_rank"]
LOOPS = [FIRE(), ReDo(0.7), DASH(), ContinualBackprop(0.3, maturity=0), SelfNormalizedReset(0.5, max_silence=8)]
runs = [*((trained, name) for name in FITS), *((in_a_loop, method) for method in LOOPS)]
alone = [run(given) for run, given in runs]
torch.distributed.init_process_group("gloo", rank=RANK, world_size=2)
for (run, given), expected in zip(runs, alone, strict=True):
    for name, value in run(given).items():
        assert torch.equal(value, expected[name]), (RANK, given, name)
"""


@pytest.mark.slow(8)
def test_trainings_of_their_own_in_one_process_group_do_not_mix(tmp_path):
    run(SCRIPT, tmp_path, ranks=2)
