"""Factors of adapters in files are left alone: by the names of libraries, and by their shapes."""

import pytest
import torch
from checkpoint_files import draw, error_of, load, reinit, write_safetensors
from torch import nn

from lightning_fire import Weights
from lightning_fire.checkpoints import Stored, select_weights
from lightning_fire.checkpoints.weights import low_rank_factors_in_file
from lightning_fire.functional import fire

NAMES = [  # of peft, kohya, diffusers, two adapters of one weight, and others
    ("q_proj.lora_A.weight", "q_proj.lora_B.weight"),
    ("q_proj.lora_A.default.weight", "q_proj.lora_B.default.weight"),
    ("lora_unet_down_blocks_0_to_q.lora_down.weight", "lora_unet_down_blocks_0_to_q.lora_up.weight"),
    ("attn1.processor.to_q_lora.down.weight", "attn1.processor.to_q_lora.up.weight"),
    ("to_q.lora_linear_layer.down.weight", "to_q.lora_linear_layer.up.weight"),
    ("layer.adapters.task.adapter_down.0.weight", "layer.adapters.task.adapter_up.weight"),
    ("q_proj.A.weight", "q_proj.B.weight"),
    ("q_proj.down.weight", "q_proj.up.weight"),
    ("q_proj.U.weight", "q_proj.V.weight"),
]


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
def test_an_adapter_file_is_refused(tmp_path, names):
    first, second = names
    path = write_safetensors(tmp_path / "in.safetensors", {first: draw(4, 32), second: 1e-3 * draw(32, 4)})
    message = error_of("reinit", path, "-o", tmp_path / "out.safetensors")
    assert "selects no weight of the file: 2 low-rank factor of an adapter" in message


@pytest.mark.parametrize("names", [*NAMES, ("q_proj.0.weight", "q_proj.1.weight")], ids=lambda names: names[0])
@pytest.mark.parametrize("base", ["weight", "base_layer.weight", "linear.weight"])
def test_factors_beside_their_weight_keep_their_values(tmp_path, names, base):
    first, second = names
    parent = first.split(".")[0].removeprefix("lora_")
    state = {f"{parent}.{base}": draw(48, 32), first: draw(4, 32), second: 1e-3 * draw(48, 4)}
    state["fc.weight"] = draw(9, 48)
    path = write_safetensors(tmp_path / "in.safetensors", state)
    reinit(path, "-o", tmp_path / "out.safetensors", "--preset", "gpt")
    new = load(tmp_path / "out.safetensors")
    for name, weight in state.items():
        assert torch.equal(new[name], weight if name in names else fire(weight)), name


@pytest.mark.parametrize(
    "shapes",
    [
        {"encoder.weight": (4, 64), "decoder.weight": (64, 4)},  # an autoencoder
        {"0.weight": (4, 64), "1.weight": (64, 4)},
        {"mlp.down.weight": (64, 256), "mlp.up.weight": (256, 64), "fc.weight": (64, 64)},  # up first, then down
        {"attn.q_a_proj.weight": (8, 64), "attn.q_b_proj.weight": (96, 8), "attn.o_proj.weight": (64, 96)},  # DeepSeek
        {"a.weight": (6, 4), "b.weight": (4, 6)},
    ],
    ids=lambda shapes: next(iter(shapes)),
)
def test_layers_of_low_rank_are_not_adapters(shapes):
    assert low_rank_factors_in_file(shapes) == set()


def test_no_layer_of_common_networks_is_a_factor():
    import timm
    import torchvision

    for model in (
        timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=12, img_size=32),
        torchvision.models.MobileNetV2(width_mult=0.25),
        nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
    ):
        assert (
            low_rank_factors_in_file({name: tuple(value.shape) for name, value in model.state_dict().items()}) == set()
        )


def test_an_adapter_is_not_taken_by_its_name():
    tensors = [Stored("q.lora_A.weight", (2, 8), "F32"), Stored("fc.weight", (8, 8), "F32")]
    with pytest.raises(ValueError, match="'lora_A', which matches no weight"):
        select_weights(tensors, Weights(include=["fc", "lora_A"]))
