"""torchrl: act on a Q-network when its environment changes; the target parameters follow."""

import torch
from tensordict import TensorDict
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from lightning_fire import fire_


# stand-in for a batch of your replay buffer
def batch(environment):
    x, action = torch.randn(64, 4), torch.randint(2, (64,))
    reward, done = ((x[:, environment] > 0) == (action == 1)).float()[:, None], torch.ones(64, 1, dtype=torch.bool)
    after = {"observation": torch.randn(64, 4), "reward": reward, "done": done, "terminated": done}
    return TensorDict({"observation": x, "action": action, "next": after}, [64])


actor = QValueActor(MLP(in_features=4, out_features=2, num_cells=[32, 32]), action_space="categorical")
loss_module = DQNLoss(actor, action_space="categorical", delay_value=True)
updater = SoftUpdate(loss_module, eps=0.99)
optimizer = torch.optim.Adam(loss_module.parameters())
for environment in range(2):
    if environment > 0:
        print(fire_(actor, optimizers=optimizer))
        updater.init_()  # the target parameters become the new ones
    for _ in range(50):
        loss_module(batch(environment))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        updater.step()
model = actor
