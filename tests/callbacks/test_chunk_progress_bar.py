"""The progress bar: drawn a few times a second, and always at the end."""

import itertools
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_fire.callbacks import ChunkProgressBar, chunk_progress_bar


class Watched(ChunkProgressBar):
    """Remembers after which batches it was drawn."""

    def __init__(self, **options):
        super().__init__(**options)
        self.drawn = []

    def get_metrics(self, *args):
        self.drawn.append(self.train_progress_bar.n)
        return super().get_metrics(*args)


@pytest.mark.parametrize(
    ("seconds", "rate", "drawn"),
    [
        (1.0, 1, list(range(1, 21))),
        (0.03, 1, [1, 5, 9, 13, 17, 20]),
        (0.03, 3, [3, 9, 15, 20]),
        (0.0, 1, [1, 20]),
        (1.0, 0, []),
    ],
)
def test_is_drawn_ten_times_a_second_at_most_and_at_the_end(tmp_path, monkeypatch, seconds, rate, drawn):
    clock = itertools.count(100.0, seconds)
    monkeypatch.setattr(chunk_progress_bar, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    bar = Watched(refresh_rate=rate)
    trainer = pl.Trainer(
        max_epochs=1,
        limit_train_batches=20,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=tmp_path,
        callbacks=[bar],
    )
    trainer.fit(BoringModel())
    assert [n for n, _ in itertools.groupby(bar.drawn)] == drawn
