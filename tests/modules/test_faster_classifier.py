"""`channels_last` and `compile` of `Classifier`: the same training but for rounding, the same checkpoints."""

from functools import partialmethod

import lightning.pytorch as pl
import pytest
import torch
from small_training import state_of, trainer
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fire import FIRECallback
from lightning_fire.data import ChunkedDataModule, Continual
from lightning_fire.modules import Classifier
from lightning_fire.nets import ResNet

pytestmark = pytest.mark.slow

WAYS = {
    "plain": {},
    "channels_last": {"channels_last": True},
    "compile": {"compile": True},
    "both": {"channels_last": True, "compile": True},
}


@pytest.fixture
def compiled(monkeypatch):
    """Let `compile` go through all but the slow generation of code; return the graphs."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=backend))
    yield graphs
    torch.compiler.reset()


def data() -> ChunkedDataModule:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=generator)
    images = TensorDataset(pixels, torch.arange(40) % 4)
    return ChunkedDataModule(images, images, Continual(2, epochs=2), batch_size=10, mean=(0.5,) * 3, std=(0.2,) * 3)


def fitted(way: str, *callbacks: pl.Callback, ckpt_path=None) -> Classifier:
    torch.manual_seed(0)
    net = ResNet(4, widths=(8, 16), blocks=(1, 1), head_width=None)
    module = Classifier(net, 4, **WAYS[way])
    fit = trainer(*callbacks, max_epochs=4, gradient_clip_val=0.5)
    fit.fit(module, datamodule=data(), ckpt_path=ckpt_path)
    return module


def assert_close(one: Classifier, other: Classifier) -> None:
    expected = other.state_dict()
    assert list(one.state_dict()) == list(expected)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: name + text)


class Event(FIRECallback):
    """Keeps the state after the event."""

    def act(self, trainer, pl_module, clock):
        values = super().act(trainer, pl_module, clock)
        self.values, self.state = values, state_of(pl_module)
        return values


@pytest.mark.parametrize("way", ["channels_last", "compile", "both"])
def test_training_with_a_fire_event_is_that_of_the_plain_network(way, compiled):
    events = Event(), Event()
    plain, other = fitted("plain", events[0]), fitted(way, events[1])
    assert [event.num_events for event in events] == [1, 1]
    assert events[1].values["fire/dfi_normalized_after"] < 0.1 < events[1].values["fire/dfi_normalized_before"]
    for name, value in events[0].state.items():
        torch.testing.assert_close(events[1].state[name], value, rtol=1e-4, atol=1e-5)
    assert_close(other, plain)
    assert bool(compiled) == ("compile" in WAYS[way])
    weight = other.net.stages[1][0].residual[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == ("channels_last" in WAYS[way])


@pytest.mark.parametrize(("first", "second"), [("plain", "both"), ("both", "plain")])
def test_a_checkpoint_of_one_is_resumed_and_tested_by_the_other(first, second, compiled, tmp_path):
    save = pl.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    whole = fitted(first, FIRECallback(), save)
    checkpoint = torch.load(tmp_path / "epoch=3.ckpt", weights_only=True)
    assert list(checkpoint["state_dict"]) == list(Classifier(whole.net, 4).state_dict())
    assert not [name for name in checkpoint["state_dict"] if "_orig_mod" in name]
    compiled.clear()
    resumed = fitted(second, FIRECallback(), ckpt_path=tmp_path / "epoch=1.ckpt")  # the event is ahead
    assert_close(resumed, whole)
    assert bool(compiled) == ("compile" in WAYS[second])
