"""fastai: act before the Learner is fitted to new data; its optimizer continues, and forgets the changed weights."""

import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fire import fire_


# stand-in for your data
def week(number):
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(number))
    data = TensorDataset(x, (x[:, number % 4] > 0).long())
    return DataLoaders(DataLoader(data, bs=32, shuffle=True), DataLoader(data, bs=32))


# stand-in for your network
network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

learner = Learner(week(0), network, loss_func=nn.CrossEntropyLoss())
learner.fit(2)
for number in range(1, 3):
    learner.dls = week(number)
    print(fire_(learner.model, optimizers=learner.opt))
    learner.fit(2)
model = learner.model
