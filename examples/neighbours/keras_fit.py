"""keras: act on a model of Keras 3, with torch as its backend, before `fit` is given new data."""

import os
from tempfile import TemporaryDirectory

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
from keras import layers

from lightning_fire import Weights, fire_


# stand-in for your data
def week(number):
    x = np.random.default_rng(number).normal(size=(256, 8, 8, 2)).astype("float32")
    return x, (x[..., number % 2].mean((1, 2)) > 0).astype("int64")


# stand-in for your model
model = keras.Sequential([layers.Conv2D(8, 3, activation="relu"), layers.Flatten(), layers.Dense(2)])

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for number in range(3):
    if number > 0:
        print(fire_(model, where=Weights(layers={"/kernel$": "in_out"})))
    model.compile(keras.optimizers.Adam(1e-3), loss)  # a new optimizer, without the moments of the old weights
    model.fit(*week(number), epochs=3, verbose=0)

with TemporaryDirectory() as folder:
    model.save(f"{folder}/model.keras")
    saved = keras.models.load_model(f"{folder}/model.keras")
assert all(torch.equal(a.value, b.value) for a, b in zip(saved.weights, model.weights, strict=True))
