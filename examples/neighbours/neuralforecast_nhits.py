"""neuralforecast: act on the network of a forecaster that is loaded, before `fit` is given more data."""

import os
import tempfile

import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS

from lightning_fire import fire_


# stand-in for your series
def until(month):
    days = pd.date_range("2020-01-01", periods=60 + 20 * month)
    return pd.DataFrame({"unique_id": "a", "ds": days, "y": np.sin(np.arange(len(days)) / 5)})


# stand-in for your folder and model
os.chdir(tempfile.mkdtemp())
quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
nhits = NHITS(4, input_size=16, mlp_units=3 * [[16, 16]], max_steps=10, **quiet)

forecaster = NeuralForecast([nhits], freq="D")
forecaster.fit(until(month=1))
forecaster.save("forecaster")

forecaster = NeuralForecast.load("forecaster")
print(fire_(forecaster.models[0]))
forecaster.fit(until(month=2))
forecaster.save("forecaster", overwrite=True)
model = forecaster.models[0]
