"""`UPGD` on weights that two processes shard has the steps of one process."""

import pytest
from processes import run

SCRIPT = """
import os
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from lightning_fire import UPGD
from lightning_fire.distributed import gathered


def trained(sharded):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 17), nn.ReLU(), nn.Linear(17, 3))  # 17 rows on 2 ranks
    for module in (model[0], model) if sharded else ():
        fully_shard(module)
    optimizer = UPGD(model.parameters(), lr=0.1, noise=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 6)).square().mean().backward()
        optimizer.step()
    return [gathered(parameter) for parameter in model.parameters()]


alone = trained(False)
torch.distributed.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
torch.testing.assert_close(trained(True), alone)
"""


@pytest.mark.slow(5)
def test_sharded_weights_have_the_noise_of_whole_ones(tmp_path):
    run(SCRIPT, tmp_path, ranks=2)
