"""Causal language models of Hugging Face, in training: which matrices, and FIRE on them against loops over heads."""

import copy

import torch
from attention import assert_queries_do_not_matter_without_keys
from language_models import FAMILIES, VOCABULARY, for_each_family, slow_fire
from torch import nn

from lightning_fire import Weights, fire_


@for_each_family
def test_auto_takes_every_matrix_and_fire_is_that_of_loops_over_heads(name):
    family = FAMILIES[name]
    model = family.build()
    expected = copy.deepcopy(model)
    assert slow_fire(family, expected) == family.matrices
    selection = Weights().select(model)
    assert len(selection) == family.matrices
    assert selection.left_out == []
    head = model.get_output_embeddings().weight
    assert (head is model.get_input_embeddings().weight) is family.tied
    assert any(view.parameter is head for view in selection)
    fire_(model, steps="exact")
    for (key, parameter), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=2e-4, msg=lambda text, key=key: f"{key}: {text}")


@for_each_family
def test_the_parts_are_the_queries_keys_and_values(name):
    model = FAMILIES[name].build()
    with torch.no_grad():  # small random weights: make what values do visible
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(5)
    assert_queries_do_not_matter_without_keys(model, torch.arange(6)[None] % VOCABULARY)
