"""pytorch-forecasting: act on a loaded TemporalFusionTransformer, with its LSTMs, before it is given more data."""

import os
import tempfile
import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet

from lightning_fire import Weights, fire_


# stand-in for your series
def until(month):
    time = np.arange(60 + 20 * month)
    two = [pd.DataFrame({"series": name, "time": time, "y": np.sin(time / 5 + len(name))}) for name in ("a", "bb")]
    series = pd.concat(two, ignore_index=True)
    columns = {
        "time_varying_unknown_reals": ["y"],
        "time_varying_known_reals": ["time"],
        "static_categoricals": ["series"],
    }
    lengths = {"max_encoder_length": 12, "max_prediction_length": 4}
    return TimeSeriesDataSet(series, "time", "y", ["series"], **columns, **lengths)


# stand-in for your folder, and your options
os.chdir(tempfile.mkdtemp())
warnings.simplefilter("ignore")
quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}

model = TemporalFusionTransformer.from_dataset(until(month=1), hidden_size=8)
trainer = pl.Trainer(max_epochs=2, **quiet)
trainer.fit(model, until(month=1).to_dataloader(batch_size=16))
trainer.save_checkpoint("forecaster.ckpt")

model = TemporalFusionTransformer.load_from_checkpoint("forecaster.ckpt", weights_only=False)
print(fire_(model, where=Weights(layers={"LSTM": "gates"})))
pl.Trainer(max_epochs=2, **quiet).fit(model, until(month=2).to_dataloader(batch_size=16))
