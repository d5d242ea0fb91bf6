"""Stacks of experts in files: the same matrices, in the same layout, as in the model."""

import json

import pytest
import torch
from checkpoint_files import load, reinit, write_safetensors
from torch import nn

from lightning_fire import Weights, fire_
from lightning_fire.checkpoints import Stored, select_weights
from lightning_fire.checkpoints.model_config import ModelConfig
from lightning_fire.cli import main
from lightning_fire.functional import fire

pytest.importorskip("safetensors")
SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 24, "num_local_experts": 4, "num_experts": 4,
    "num_experts_per_tok": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 32, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def mixture(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind)
    for name, value in SIZES.items():
        if hasattr(config, name):
            setattr(config, name, value)
    return transformers.AutoModelForCausalLM.from_config(config)


def stacks(selection):
    return {(v.name, v.shape, v.layout, v.rows, v.blocks, v.groups) for v in selection if v.groups > 1}


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss", "llama4_text", "qwen3_moe"])
def test_each_expert_in_a_file_is_a_matrix_of_its_own(kind, tmp_path, capsys):
    model = mixture(kind)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    path = write_safetensors(tmp_path / "in.safetensors", state)
    config = {**json.loads(model.config.to_json_string()), "architectures": [type(model).__name__]}
    tensors = [Stored(name, tuple(tensor.shape), "F32") for name, tensor in state.items()]
    expected = stacks(Weights("gpt").select(model))
    assert stacks(select_weights(tensors, Weights("gpt"), ModelConfig(config))) == expected and len(expected) == 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    reinit(path, "-o", tmp_path / "out.safetensors", "--preset", "gpt", "--include", "experts")
    new = load(tmp_path / "out.safetensors")
    fire_(model, where=Weights("gpt", include=["experts"]))
    for name, tensor in model.state_dict().items():
        assert torch.equal(new[name], tensor), name
    (row,) = main(["diagnose", str(path), "--preset", "gpt", "--include", r"experts\.down_proj"])
    view = Weights("gpt", include=["down_proj"]).select(model)[0]
    matrices = view.of(state[view.name]).read().double().unflatten(0, (4, -1))
    assert row.condition == pytest.approx(max(map(torch.linalg.cond, matrices)).item(), rel=1e-6)
    moved = (fire(matrices.flatten(0, 1), groups=4) - matrices.flatten(0, 1)).square().sum() / matrices.square().sum()
    assert row.sfe_normalized == pytest.approx(moved.item(), rel=1e-6)


ROUTER = {"moe.gate.weight": (3, 8)}


@pytest.mark.parametrize(
    ("shapes", "settings", "layout"),
    [
        ({"moe.experts.w1": (3, 8, 12), "moe.experts.w2": (3, 12, 8)}, {}, ""),  # both ways round
        ({"moe.experts.w1": (3, 8, 12), "moe.experts.w2": (3, 12, 8)}, {"hidden_size": 8}, "stacked_in_out"),
        ({"moe.experts.w1": (3, 8, 12), "moe.experts.w2": (3, 12, 8), **ROUTER}, {}, "stacked_in_out"),
        ({"moe.w1": (3, 12, 8), "moe.w3": (3, 12, 8), "moe.w2": (3, 8, 12), **ROUTER}, {}, "stacked_out_in"),
        ({"moe.w1": (3, 8, 8), "moe.w2": (3, 8, 8), **ROUTER}, {}, ""),  # square
        ({"moe.w1": (3, 12, 8), "moe.w2": (3, 8, 11), **ROUTER}, {}, ""),  # do not follow each other
        ({"moe.w1": (3, 12, 8), "moe.w2": (3, 8, 12)}, {"hidden_size": 16}, ""),
        ({"moe.w1": (3, 12, 8), **ROUTER}, {}, ""),
    ],
)
def test_the_layout_follows_from_the_width_of_the_model(shapes, settings, layout):
    tensors = [Stored(name, shape, "F32") for name, shape in {**shapes, "fc.weight": (4, 4)}.items()]
    selection = select_weights(tensors, Weights("cnn"), ModelConfig(settings))
    assert {view.layout for view in selection if view.groups > 1} == ({layout} if layout else set())
    assert sum(view.groups > 1 for view in selection) == (len(shapes) - len(ROUTER.keys() & shapes) if layout else 0)


def test_gate_and_up_projection_need_the_config():
    tensors = [Stored("experts.gate_up_proj", (3, 24, 8), "F32"), Stored("experts.down_proj", (3, 8, 12), "F32")]
    selection = select_weights(tensors, Weights("cnn"))
    assert [row.reason for row in selection.rows] == [
        "stack of gate and up projections in an order that config.json shows: give --config",
        "taken",
    ]
    quantized = [Stored(stored.name, stored.shape, "I8") for stored in tensors]
    others = select_weights([*quantized, Stored("fc.weight", (4, 4), "F32")], Weights("cnn"))
    assert [view.name for view in others] == ["fc.weight"]
