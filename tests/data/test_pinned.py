"""Batches for a GPU are in pinned memory; those for the CPU are not, and no DataLoader warns."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fire.data import ChunkedDataModule, Continual, rollouts
from lightning_fire.data.resumable_loader import goes_to_gpu
from lightning_fire.experience import Transitions


def trainer_on(device, **more):
    return SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), world_size=1, **more)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "meta"])
def test_batches_are_pinned_for_a_gpu_that_is_there(device, there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    samples = TensorDataset(torch.randint(0, 256, (8, 1, 2, 2), dtype=torch.uint8), torch.arange(8) % 2)
    data = ChunkedDataModule(samples, samples, Continual(num_chunks=2, epochs=1), batch_size=4)
    data._trainer = trainer_on(device, current_epoch=0)
    monkeypatch.setattr("lightning_fire.data.arriving_data.begin_next_epoch", lambda trainer: None)
    pinned = device == "cuda:0" and there
    assert data.train_dataloader().pin_memory is pinned
    assert data.val_dataloader().pin_memory is pinned


def test_no_trainer_pins_nothing():
    assert not goes_to_gpu(None)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_minibatches_of_a_replay_buffer_are_pinned_for_a_gpu(device, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    drawn = [torch.zeros(6, 2), torch.zeros(6), torch.zeros(6), torch.zeros(6, 2), torch.zeros(6)]
    buffer = SimpleNamespace(sample=lambda *_: Transitions(*drawn))
    rounds = object.__new__(rollouts.Rollouts)
    rounds._data = SimpleNamespace(updates=2, batch_size=3, trained_by=trainer_on(device, lightning_module=None))
    rounds.collector = SimpleNamespace(buffer=buffer, environment_steps=7)
    made = rounds._batch(SimpleNamespace(integers=lambda _: 1), *torch.zeros(3, 0))
    assert made.transitions.rewards.shape == (2, 3)
    assert len(pinned) == (5 if device == "cuda:0" else 0)
