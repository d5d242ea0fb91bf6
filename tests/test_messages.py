"""Warnings are shown for each model and each training, under the filter with which Python shows a line once."""

import io
import sys
import warnings
from pathlib import Path

import pytest
import torch
from small_training import GrowingData, PlainModule, trainer
from torch import nn
from tqdm import tqdm

from lightning_fire import FIRECallback, WhenMetric, fire_, messages, methods
from lightning_fire.messages import rank_zero_warn


@pytest.fixture
def caught():
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        yield found


def about(caught, words):
    return [warning for warning in caught if words in str(warning.message)]


def test_once_for_each_model(caught):
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for model in (models[0], models[0], models[1]):
        nn.init.zeros_(model.weight)
        fire_(model)
    assert len(about(caught, "FIRE leaves all-zero matrices at zero")) == 2


def test_once_for_each_optimizer(caught):
    class NeedsMore(torch.optim.SGD):
        def __init__(self, parameters, more):
            super().__init__(parameters, lr=0.1)

    for _ in range(2):
        model = nn.Linear(2, 2)
        optimizer = NeedsMore(model.parameters(), more=1)
        for _ in range(2):
            methods.drop_state(optimizer)
    assert len(about(caught, "the initial state of NeedsMore is not known")) == 2


def test_once_for_each_training(caught):
    for _ in range(2):
        fit = trainer(FIRECallback(WhenMetric("not_logged", above=1)), max_epochs=1)
        fit.fit(PlainModule(), GrowingData())
    assert len(about(caught, "FIRECallback waits for not_logged")) == 2


def test_a_warning_is_shown_where_it_is_raised_and_can_be_an_error(caught):
    for _ in range(2):
        rank_zero_warn("look", RuntimeWarning)
    assert [(w.category, Path(w.filename).name) for w in caught] == [(RuntimeWarning, Path(__file__).name)] * 2
    warnings.simplefilter("error")
    with pytest.raises(UserWarning, match="look"):
        rank_zero_warn("look")


@pytest.mark.parametrize("stream", ["stderr", "stdout"])  # of the Trainer of Hugging Face; of Lightning
def test_a_message_begins_a_new_line_where_a_progress_bar_is_shown(monkeypatch, stream):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(messages.logger, "handlers", [messages._BesideBars()])
    messages.inform("before")
    with tqdm(range(2), file=getattr(sys, stream)), tqdm(range(2), disable=True):
        messages.inform("beside")
        messages.inform("again")
    messages.inform("after")
    lines = screen.getvalue().split("\n")
    assert lines[0] == "before" and lines[-2:] == ["after", ""]
    assert "0/2" in lines[1] and lines[2] == "beside" and "again" in lines and "" not in lines[:2]
