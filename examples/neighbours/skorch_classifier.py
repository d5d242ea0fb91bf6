"""skorch: act before `partial_fit` is given new data."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from lightning_fire import fire_


# stand-in for your data
def week(number):
    x = np.random.default_rng(number).normal(size=(200, 4)).astype("float32")
    return x, (x[:, number % 4] > 0).astype("int64")


# stand-in for your network
network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

net = NeuralNetClassifier(
    network, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, max_epochs=3, verbose=0
).initialize()
for number in range(2):
    if number > 0:
        print(fire_(net.module_, optimizers=net.optimizer_))
    net.partial_fit(*week(number))
model = net.module_
