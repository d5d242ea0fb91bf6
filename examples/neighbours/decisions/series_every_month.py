"""Continue, re-initialize, or train from scratch when new months come: NHITS of neuralforecast, series of statsmodels.

python examples/neighbours/decisions/series_every_month.py FOLDER elnino co2 sunspots

The network of the checkpoint has seen the first 60 % of a series. Each choice trains on the first 80 %, and is measured
on the rest: the mean absolute error of forecasts of 12 values, from each of its values on.
"""

import sys
from pathlib import Path

import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS
from statsmodels.datasets import co2, elnino, sunspots

from lightning_fire import FIRE, ShrinkAndPerturb, decide

FOLDER = Path(sys.argv[1]).resolve()
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
QUIET["enable_checkpointing"] = False


def frame(values):
    """Return a series as neuralforecast takes it, with dates of months."""
    dates = pd.date_range("1950-01-31", periods=len(values), freq="ME")
    return pd.DataFrame({"unique_id": "series", "ds": dates, "y": values})


SERIES = {
    "elnino": frame(elnino.load_pandas().data.iloc[:, 1:].to_numpy().ravel()),  # °C
    "co2": frame(co2.load_pandas().data["co2"].resample("MS").mean().interpolate().to_numpy()),  # ppm
    "sunspots": frame(sunspots.load_pandas().data["SUNACTIVITY"].to_numpy()),  # of years, which count as months here
}


def new(seed):
    sizes = {"h": 12, "input_size": 36, "mlp_units": 3 * [[128, 128]], "max_steps": 400, "windows_batch_size": 128}
    return NHITS(**sizes, scaler_type="standard", random_seed=seed, **QUIET)


def train(seed, start):
    forecaster = NeuralForecast([start(new(seed))], "ME")
    forecasts = forecaster.cross_validation(series, n_windows=None, test_size=series["ds"].nunique() // 5, step_size=1)
    return (forecasts["y"] - forecasts["NHITS"]).abs().mean()


methods = {"fire": FIRE(), "fire_procrustes": FIRE(scale="procrustes"), "shrink_and_perturb": ShrinkAndPerturb(0.5)}
for name in sys.argv[2:]:
    series = SERIES[name]
    first = NeuralForecast([new(0)], "ME")
    months = series["ds"].unique()  # of several series in one frame, too
    first.fit(series[series["ds"].isin(months[: len(months) * 6 // 10])])
    first.save(str(FOLDER / name), overwrite=True, save_dataset=False)
    options = {"seeds": 5, "mode": "min", "metric": f"MAE of {name}", "output": FOLDER / f"{name}_results"}
    decide(train, FOLDER / name / "NHITS_0.safetensors", methods, **options)
