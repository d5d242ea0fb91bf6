"""A return to the tortoise is verified, as are the hare's weights after an evaluation, and float32 copies follow."""

import pytest
import torch
from processes import run
from test_verify import Masters, network, step

from lightning_fire.methods import Tortoise


def trained(optimizer_of, dtype=torch.bfloat16):
    model = network(dtype)
    optimizer = optimizer_of(model.parameters())
    both = Tortoise(model, momentum=0.99)
    for _ in range(30):
        step(model, optimizer)
        both.step()
    return model, optimizer, both


def test_copies_of_the_weights_in_an_optimizer_return_to_the_tortoise():
    model, optimizer, both = trained(lambda parameters: Masters(parameters, "groups"))
    both.reset_(optimizer)
    assert torch.equal(optimizer.fp32_from_fp16_groups[0][0], both.tortoise["0.weight"])
    assert torch.equal(model[0].weight, both.tortoise["0.weight"].bfloat16())
    step(model, optimizer, 3)


def test_a_return_that_a_step_undoes_is_an_error():
    model, optimizer, both = trained(Masters)
    both.reset_(optimizer)
    with pytest.raises(RuntimeError, match=r"0\.weight.* back at their old values"):
        step(model, optimizer)


def test_a_hare_that_stays_the_tortoise_after_an_evaluation_is_an_error():
    model, optimizer, both = trained(lambda parameters: torch.optim.Adam(parameters, lr=0.05), torch.float32)
    both.swap(optimizer)
    tortoise = {name: value.clone() for name, value in model.state_dict().items()}
    both.swap(optimizer)
    model.load_state_dict(tortoise)  # an evaluation that restores what it saved
    with pytest.raises(RuntimeError, match=r"0\.weight.* back at their old values before the next step of Adam"):
        step(model, optimizer)
    both.swap(optimizer)
    both.swap(optimizer)
    step(model, optimizer, 3)


SHARDED = """
import os
import torch
from test_verify import network
from torch.distributed.fsdp import fully_shard
from lightning_fire.methods import Tortoise

torch.distributed.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
model = network()
fully_shard(model)
both = Tortoise(model)
before = model[0].weight.full_tensor().clone()
with torch.no_grad():
    model[0].weight.mul_(2.0)
both.reset_()
assert torch.equal(model[0].weight.full_tensor(), before)
"""


@pytest.mark.slow(5)
def test_sharded_weights_return_to_the_tortoise(tmp_path):
    run(SHARDED, tmp_path, ranks=2)
