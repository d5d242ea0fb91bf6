"""gluonts: act on the LSTM of DeepAR when `train_from` begins, by a callback that is given to each training."""

import os
import tempfile

import numpy as np
import pandas as pd
from gluonts.dataset.pandas import PandasDataset
from gluonts.torch import DeepAREstimator

from lightning_fire import AtNewData, FIRECallback, Weights


# stand-in for your series
def until(month):
    days = pd.period_range("2020-01-01", periods=60 + 20 * month, freq="D")
    return PandasDataset(pd.DataFrame({"y": np.sin(np.arange(len(days)) / 5)}, index=days), target="y")


# stand-in for your folder, and your options
os.chdir(tempfile.mkdtemp())
quiet = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}

estimator = DeepAREstimator("D", 4, hidden_size=8, num_batches_per_epoch=5, trainer_kwargs=quiet)
predictor = estimator.train(until(month=1))

fire = FIRECallback(AtNewData(skip_first=False), where=Weights(layers={"LSTM": "gates"}))
estimator.trainer_kwargs = quiet | {"callbacks": [fire]}
predictor = estimator.train_from(predictor, until(month=2))
assert fire.num_events == 1
model = predictor.network
