"""Fits with events on a GPU, in all precisions: they stay finite, and one that is resumed ends as the whole one."""

import os

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from methods_table import MADE
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fire import (
    UPGD,
    EveryNEpochs,
    FeatureRank,
    FIRECallback,
    HareAndTortoise,
    Log,
    Muon,
    OptimizerReset,
    PlasticityCallback,
    PlasticityMonitor,
    methods,
    muon_groups,
)
from lightning_fire.data import ChunkedDataModule, Continual
from lightning_fire.modules import Classifier

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products in the same order each time
DATA = TensorDataset(torch.randn(240, 32, generator=torch.Generator().manual_seed(0)), torch.arange(240) % 3)
OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adam fused": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam capturable": lambda p: torch.optim.Adam(p, 1e-2, capturable=torch.cuda.is_available()),
    "upgd": lambda p: UPGD(p, 0.05, noise=0.1),
    "muon": lambda p: Muon(p, lr=0.01),
}
CALLBACKS = {
    "fire": lambda: [FIRECallback()],
    "fire exact": lambda: [FIRECallback(steps="exact", log=Log(curvature=False))],
    **{
        name: lambda name=name: [PlasticityCallback(MADE[name])]
        for name in MADE
        if name not in ("fire", "plasticity_injection")
    },
    "plasticity_injection": lambda: [PlasticityCallback(methods.PlasticityInjection("net.5"))],
    "full_reset with optimizer": lambda: [
        PlasticityCallback(methods.FullReset()),
        PlasticityCallback(OptimizerReset()),
    ],
    "hare_and_tortoise": lambda: [HareAndTortoise(EveryNEpochs(1), 0.9)],
    "feature_rank": lambda: [FeatureRank(0.01, every_n_batches=3)],
    "monitor and average": lambda: [
        PlasticityMonitor(data_every_n_steps=5, log=Log(curvature=True)),
        EMAWeightAveraging(decay=0.9),
        FIRECallback(),
    ],
}


@pytest.fixture(autouse=True)
def _deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def fit(folder, device, callbacks, precision, optimizer="adam fused", mode=None, resume=None):
    """Train four epochs on two chunks; return the weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    groups = muon_groups if optimizer == "muon" else None
    module = Classifier(net, 3, optimizer=OPTIMIZERS[optimizer], parameter_groups=groups)
    if mode:
        module.net.compile(mode=mode)
    save = [] if resume else [ModelCheckpoint(folder, "{step}", every_n_train_steps=5, save_top_k=-1)]
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        precision=precision,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,
        enable_checkpointing=bool(save),
        callbacks=[*CALLBACKS[callbacks](), *save],
    )
    data = ChunkedDataModule(DATA, DATA, Continual(2, 2), batch_size=20)
    trainer.fit(module, datamodule=data, ckpt_path=resume)
    return torch.cat([p.detach().float().cpu().flatten() for p in module.parameters()])


def assert_resumed_is_whole(folder, *words, **options):
    whole = fit(folder, *words, **options)
    assert whole.isfinite().all()
    resumed = fit(folder, *words, **options, resume=f"{folder}/step=15.ckpt")
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_method_in_a_fit(device, tmp_path, name, precision):
    assert_resumed_is_whole(tmp_path, device, name, precision)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_event_beside_an_optimizer(device, tmp_path, optimizer, precision):
    if precision == "16-mixed" and device == "cpu":
        pytest.skip("float16 is for GPUs")
    assert_resumed_is_whole(tmp_path, device, "fire", precision, optimizer)


@pytest.mark.parametrize("name", ["fire exact", "continual_backprop"])
def test_in_cuda_graphs(device, tmp_path, name):
    if device == "cpu":
        pytest.skip("CUDA graphs are for GPUs")
    whole = fit(tmp_path, device, name, "32-true", "adam capturable", "reduce-overhead")
    plain = fit(tmp_path / "plain", device, name, "32-true", "adam capturable")
    torch.testing.assert_close(whole, plain, rtol=1e-2, atol=1e-3)
