"""The blocks of a network, and activations that are computed again."""

import copy
import types

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from lightning_fire.modules import LanguageModel
from lightning_fire.modules.network_blocks import blocks_of, checkpoint_activations, shard_by_block
from lightning_fire.nets import GPT, causal_lm

LLAMA = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
GPT2 = {"vocab_size": 16, "n_positions": 32, "n_layer": 3, "n_head": 2, "n_embd": 16}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
NETS = {
    "ours": lambda: GPT(16, 32, 3, 2, 16, dropout=0.1),
    "gpt2": lambda: causal_lm("gpt2", GPT2),
    "llama": lambda: causal_lm("llama", LLAMA),
}


def net_of(name):
    torch.manual_seed(0)
    return NETS[name]()


@pytest.mark.parametrize("name", NETS)
def test_blocks_are_the_repeated_layers(name):
    net = net_of(name)
    expected = {"ours": "transformer.h", "gpt2": "transformer.h", "llama": "model.layers"}[name]
    assert blocks_of(net) == tuple(net.get_submodule(expected))


def test_a_longer_list_inside_the_blocks_is_not_taken():
    experts = [nn.ModuleList(nn.Linear(4, 4) for _ in range(5)) for _ in range(2)]
    net = nn.ModuleDict({"a": nn.ModuleList(nn.ModuleDict({"of": e}) for e in experts), "b": nn.ModuleList()})
    assert blocks_of(net) == tuple(net["a"])
    assert blocks_of(nn.Linear(2, 2)) == ()


def trained(net):
    """Return the gradients of a loss, bytes that autograd keeps, and FLOPs."""
    tokens, kept = torch.arange(64).view(2, 32) % 16, {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(1)  # dropout
    with FlopCounterMode(display=False) as flops:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = LanguageModel(net)(tokens).logsumexp(-1).mean()
            weights = {p.untyped_storage().data_ptr() for p in net.parameters()}
        loss.backward()
    bytes_kept = sum(size for where, size in kept.items() if where not in weights)
    return [p.grad for p in net.parameters()], bytes_kept, flops.get_total_flops()


@pytest.mark.parametrize("name", NETS)
def test_activations_computed_again_give_the_same_gradients_with_less_memory(name):
    plain, net = net_of(name), net_of(name)
    names = [name for name, _ in net.named_parameters()]
    checkpoint_activations(net)
    assert [name for name, _ in net.named_parameters()] == names
    net = copy.deepcopy(net)  # as an average of weights does
    expected, much, flops = trained(plain)
    gradients, little, more = trained(net)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    assert little < 0.35 * much
    with FlopCounterMode(display=False) as once, torch.no_grad():
        plain(torch.arange(64).view(2, 32) % 16)
    head = 2 * 64 * 16 * 16  # is not in a block
    assert 0.6 < (more - flops) / (once.get_total_flops() - head) <= 1.0  # torch leaves out what no gradient needs


def test_a_copy_runs_its_own_blocks():
    net = net_of("ours").eval()
    checkpoint_activations(net)
    copied, tokens = copy.deepcopy(net), torch.arange(32).view(1, 32) % 16
    before = copied(tokens)
    with torch.no_grad():
        net.transformer.h[0].mlp.c_fc.weight.zero_()
    assert torch.equal(copied(tokens), before)


def test_a_network_without_blocks_is_an_error():
    with pytest.raises(ValueError, match="`activation_checkpointing` needs a ModuleList of blocks, Linear has none"):
        LanguageModel(nn.Linear(2, 2), activation_checkpointing=True)


def test_tensor_parallelism_is_an_error():
    mesh = {"tensor_parallel": types.SimpleNamespace(size=lambda: 2)}
    with pytest.raises(ValueError, match=r"only by FSDP2: use ModelParallelStrategy\(data_parallel_size=number of all"):
        shard_by_block(net_of("ours"), mesh, "32-true")
