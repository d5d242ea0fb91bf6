"""Causal language models of Hugging Face, without the network."""

import pytest
import torch

from lightning_fire.nets import causal_lm

SMALL = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_from_settings():
    net = causal_lm("llama", SMALL)
    assert net(torch.zeros(2, 3, dtype=torch.int64)).logits.shape == (2, 3, 16)
    assert net.training and net(torch.zeros(2, 3, dtype=torch.int64)).past_key_values is None


def test_from_a_folder(tmp_path):
    net = causal_lm("llama", SMALL)
    net.save_pretrained(tmp_path)
    again = causal_lm(folder=str(tmp_path))
    assert type(again) is type(net) and again.training
    for (name, a), (_, b) in zip(net.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="`config` of 'llama' has no n_embd"):
        causal_lm("llama", {"n_embd": 8})
    with pytest.raises(ValueError, match="one of `model_type` and `folder` must be given"):
        causal_lm()
    with pytest.raises(FileNotFoundError, match="`folder` must be one that save_pretrained"):
        causal_lm(folder=str(tmp_path))
