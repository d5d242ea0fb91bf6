"""Metrics in a LightningModule, and on two processes."""

import lightning.pytorch as pl
import pytest
import torch
from metric_cases import CASES, SIZE, batches
from processes import run
from small_training import trainer
from torch.utils.data import DataLoader, TensorDataset

SCRIPT = """
import os

import torch
from metric_cases import CASES, batches


def process(rank):
    torch.distributed.init_process_group("gloo", init_method="file://{folder}/meet", rank=rank, world_size=2)
    values = {{}}
    for name, case in CASES.items():
        metric = case.build()
        for batch in batches(case.inputs, (4, 5, 6, 7, 2))[rank::2]:  # three batches for one, two for the other
            metric.update(*batch)
        together = metric.compute()
        local = case.build(sync_on_compute=False)
        local.update(*batches(case.inputs, (4, 20))[rank])
        values[name] = together, local.compute()
        metric.update(*case.inputs)  # continues with its own sums
        values[name] += (metric.compute(),)
    torch.save(values, f"{folder}/{{rank}}")
    torch.distributed.destroy_process_group()


process(int(os.environ["LOCAL_RANK"]))
"""


def near(found, expected, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(found).double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_two_processes_get_the_value_of_one(tmp_path):
    """Numbers and sizes of batches differ between them; `sync_on_compute=False` keeps to one process."""
    run(SCRIPT.format(folder=tmp_path), tmp_path, ranks=2)
    for rank in range(2):
        values = torch.load(tmp_path / str(rank), weights_only=True)
        for name, case in CASES.items():
            together, alone, later = values[name]
            near(together, case.expected(*case.inputs))
            near(alone, case.expected(*batches(case.inputs, (4, 20))[rank]))
            near(later, case.expected(*(torch.cat([tensor] * 3) for tensor in case.inputs)))


class Watched(pl.LightningModule):
    """Logs every metric; a batch is a range of indices of inputs."""

    def __init__(self):
        super().__init__()
        self.metrics = torch.nn.ModuleDict({name: case.build() for name, case in CASES.items()})
        self.layer = torch.nn.Linear(1, 1)
        self.steps = []

    def training_step(self, batch, batch_idx):
        (numbers,) = batch
        for name, metric in self.metrics.items():
            metric(*(tensor[numbers].to(self.layer.weight.dtype) for tensor in CASES[name].inputs))
            self.log(name, metric, on_step=True, on_epoch=True)
        return self.layer(torch.ones(1, 1, dtype=self.layer.weight.dtype)).sum()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps.append({name: self.trainer.callback_metrics[f"{name}_step"] for name in self.metrics})

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.arange(SIZE)), batch_size=9)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_logged_by_a_lightning_module(precision, tmp_path):
    """Two epochs: each starts from a reset metric. The value of a step is that of its batch."""
    module = Watched()
    run = trainer(max_epochs=2, folder=tmp_path, precision=precision)
    run.fit(module)
    dtype = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "bf16-mixed": torch.float32}[precision]
    assert len(module.steps) == 6
    for name, case in CASES.items():
        inputs = [tensor.to(dtype).double() for tensor in case.inputs]
        near(run.callback_metrics[f"{name}_epoch"], case.expected(*inputs), 1e-6)
        for step, batch in zip(module.steps[3:], batches(inputs, (9, 9, 6)), strict=True):
            near(step[name], case.expected(*batch), 1e-6)
