"""The progress bar: refreshed a few times a second, and correct at every pause of training."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from small_training import trainer

from lightning_fire.callbacks import ChunkProgressBar, chunk_progress_bar


class Watched(ChunkProgressBar):
    """Records after how many batches the training bar was drawn."""

    def __init__(self, **options):
        super().__init__(**options)
        self.drawn = []

    def init_train_tqdm(self):
        bar = super().init_train_tqdm()
        refresh = bar.refresh

        def watched(*args, **options):
            self.drawn.append(bar.n)
            return refresh(*args, **options)

        bar.refresh = watched
        return bar


def drawn_in(monkeypatch, seconds: float, rate: int, **options) -> list[int]:
    """Train with a clock that advances by some seconds a batch."""
    clock = itertools.count(100.0, seconds)
    monkeypatch.setattr(chunk_progress_bar, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    bar = Watched(refresh_rate=rate)
    lengths = {"max_epochs": 1, "limit_train_batches": 20, "limit_val_batches": 0}
    trainer(bar, enable_progress_bar=True, **{**lengths, **options}).fit(BoringModel())
    return [n for n, _ in itertools.groupby(bar.drawn) if n]


@pytest.mark.parametrize(
    ("seconds", "rate", "drawn"),
    [
        (1.0, 1, list(range(1, 21))),
        (0.03, 1, [1, 5, 9, 13, 17, 20]),
        (0.03, 3, [3, 9, 15, 20]),
        (0.0, 1, [1, 20]),
    ],
)
def test_is_drawn_ten_times_a_second_at_most_and_at_the_end(monkeypatch, seconds, rate, drawn):
    assert drawn_in(monkeypatch, seconds, rate) == drawn


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({"max_epochs": -1, "max_steps": 13}, [1, 13]),
        ({"max_steps": 13}, [1, 13]),
        ({"max_epochs": 2}, [1, 20, 20]),
        ({"val_check_interval": 7, "limit_val_batches": 1, "num_sanity_val_steps": 1}, [1, 7, 14, 20]),
    ],
)
def test_shows_the_number_of_batches_at_every_pause(monkeypatch, options, drawn):
    assert drawn_in(monkeypatch, 0.0, 1, **options) == drawn


def test_refresh_rate_0_disables_the_bar(monkeypatch, capsys):
    drawn_in(monkeypatch, 1.0, 0)
    assert "Epoch" not in capsys.readouterr().out


def test_the_loss_of_a_step_is_shown():
    module = BoringModel()
    bar, fit = ChunkProgressBar(), trainer(max_epochs=1)
    assert "train/loss_step" not in bar.get_metrics(fit, module)
    module.step_loss = torch.tensor(2.5)
    assert bar.get_metrics(fit, module)["train/loss_step"] == 2.5


def test_what_is_no_loss_is_not_shown():
    module = BoringModel()
    for other in (lambda batch: 0, torch.ones(2)):
        module.step_loss = other
        assert "train/loss_step" not in ChunkProgressBar().get_metrics(trainer(max_epochs=1), module)
