"""darts: act on the network of a model that is loaded, before `fit` is given more data."""

import os
import tempfile

import numpy as np
from darts import TimeSeries
from darts.models import NBEATSModel

from lightning_fire import fire_


# stand-in for your series
def until(month):
    return TimeSeries.from_values(np.sin(np.arange(60 + 20 * month) / 5).astype("float32"))


# stand-in for your folder and model
os.chdir(tempfile.mkdtemp())
quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
forecaster = NBEATSModel(12, 4, num_stacks=2, layer_widths=16, n_epochs=3, pl_trainer_kwargs=quiet)

forecaster.fit(until(month=1))
forecaster.save("forecaster.pt")

forecaster = NBEATSModel.load("forecaster.pt")
print(fire_(forecaster.model))
forecaster.fit(until(month=2))
forecaster.save("forecaster.pt")
model = forecaster.model
