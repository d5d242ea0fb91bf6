"""river: act when a drift detector raises an alarm, in a loop that learns from each sample."""

import random

import torch
from river import drift
from torch import nn

from lightning_fire import fire_

# stand-in for your network
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


# stand-in for your stream: at sample 600 the classes are exchanged
def stream():
    draw = random.Random(0)
    for index in range(800):
        x = [draw.gauss(0, 1) for _ in range(4)]
        yield torch.tensor([x]), torch.tensor([int((x[0] > 0) != (index >= 600))])


optimizer, criterion = torch.optim.Adam(model.parameters(), lr=0.003), nn.CrossEntropyLoss()
detector = drift.binary.DDM()
for number, (x, y) in enumerate(stream()):
    output = model(x)
    detector.update(bool(output.argmax() != y))
    criterion(output, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if detector.drift_detected:
        print(f"sample {number}: {fire_(model, optimizers=optimizer)}")
