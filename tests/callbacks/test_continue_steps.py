"""Weekly processes that load the weights of the last week, as one curve."""

from pathlib import Path

import processes
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import AtNewData, FIRECallback, PlasticityMonitor, continue_steps

STEPS = 4  # a week, two epochs of two batches


class Network(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train/loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/mae", (self.net(batch[0]) - batch[1]).abs().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def one_week(folder, week, continued=True, resume=False):
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(week))
    data = DataLoader(TensorDataset(inputs, week * inputs[:, :1]), batch_size=32)
    last, this = folder / f"week{week - 1}.ckpt", folder / f"week{week}.ckpt"
    trainer = Trainer(
        max_epochs=2 + resume,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        logger=TensorBoardLogger(folder, name="weekly", version="0"),
        callbacks=[FIRECallback(when=AtNewData(skip_first=week == 0)), PlasticityMonitor(every_n_epochs=2)],
    )
    if week and continued:
        continue_steps(trainer, last)
    model = Network.load_from_checkpoint(last, weights_only=True) if week else Network()
    trainer.fit(model, data, data, ckpt_path=this if resume else None)
    trainer.save_checkpoint(this)
    return trainer


def curves(folder):
    log = EventAccumulator(str(folder / "weekly" / "0"), size_guidance={"scalars": 0}).Reload()
    return {name: [event.step for event in log.Scalars(name)] for name in log.Tags()["scalars"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_eight_weekly_processes_are_one_curve(tmp_path):
    script = """import sys; from pathlib import Path; sys.path.insert(0, {here!r})
from test_continue_steps import one_week; one_week(Path({folder!r}), {week})"""
    for week in range(8):
        processes.run(script.format(here=str(Path(__file__).parent), folder=str(tmp_path), week=week), tmp_path)
    steps = curves(tmp_path)
    starts = [STEPS * week for week in range(8)]
    assert steps["train/loss_step"] == list(range(8 * STEPS))
    assert steps["val/mae"] == [step + end for step in starts for end in (1, 3)]
    assert steps["fire/dfi_normalized_after"] == starts[1:]
    assert steps["events/fire dfi_normalized"] == [step + side for step in starts[1:] for side in (-1, 0)]
    weekly = steps["plasticity/dfi_normalized"]
    assert len(weekly) == 8 and all(0 <= step - start < STEPS for step, start in zip(weekly, starts, strict=True))


def test_the_axis_continues_and_nothing_else_changes(tmp_path):
    one_week(tmp_path, 0)
    torch.manual_seed(0)
    plain = one_week(tmp_path, 1, continued=False)
    assert curves(tmp_path)["train/loss_step"] == [0, 1, 2, 3] * 2  # what it is without
    torch.manual_seed(0)
    trainer = one_week(tmp_path, 1)
    assert curves(tmp_path)["train/loss_step"] == [0, 1, 2, 3] * 2 + [4, 5, 6, 7]
    assert (trainer.global_step, trainer.current_epoch) == (plain.global_step, plain.current_epoch) == (STEPS, 2)
    of = zip(trainer.lightning_module.parameters(), plain.lightning_module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in of)
    one_week(tmp_path, 1, resume=True)  # one more epoch from its own checkpoint
    assert curves(tmp_path)["train/loss_step"][-2:] == [8, 9]


def test_a_checkpoint_without_steps_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "weights.ckpt")
    with pytest.raises(ValueError, match=r"must be a whole checkpoint of Lightning, .*weights\.ckpt has no steps"):
        continue_steps(Trainer(logger=False, enable_checkpointing=False, accelerator="cpu"), tmp_path / "weights.ckpt")
