"""Low-rank factors of adapters among the tensors of a file, by their names and shapes."""

import pytest

from lightning_fire.checkpoints.low_rank import low_rank_factors

BASE, A, B = (64, 64), (4, 64), (64, 4)
DIMENET = {"lin": BASE, "lin_kj": BASE, "lin_ji": BASE, "lin_down": (32, 64), "lin_up": (64, 32)}


@pytest.mark.parametrize(
    "factors",
    [
        {"q.lora_A.default.weight": A, "q.lora_B.default.weight": B},  # PEFT
        {"q.lora_a.weight": A, "q.lora_b.weight": B},  # torchtune
        {"lora_unet_q.lora_down.weight": A, "lora_unet_q.lora_up.weight": B},  # kohya
        {"attn.processor.to_q_lora.down.weight": A, "attn.processor.to_q_lora.up.weight": B},  # diffusers
        {"q.lora_A": A, "q.lora_B": B},  # litgpt, loralib
        {"q.hada_w1_a": A, "q.hada_w1_b": B},  # LoHa
        {"q.weight": BASE, "q.A.weight": A, "q.B.weight": B},
        {"q.base.weight": BASE, "q.down.weight": A, "q.up.weight": B},
        {"q.weight": BASE, "k.weight": BASE, "kv.weight": BASE, "q_a.weight": A, "q_b.weight": B},
        {"q.base.weight": BASE, "q.adapter_a.weight": A, "q.adapter_b.weight": B},
        {"q.A.weight": A, "q.B.weight": B},  # in a file of its own
        {"conv.weight": (64, 64, 3, 3), "conv.A.weight": (4, 64, 3, 3), "conv.B.weight": (64, 4, 1, 1)},
    ],
)
def test_factors_are_found_by_name_or_structure(factors):
    expected = {name for name, shape in factors.items() if shape[:2] in (A, B)}
    assert low_rank_factors({**factors, "head.weight": (10, 64)}) == expected


@pytest.mark.parametrize(
    "layers",
    [
        {"mlp.up_proj.weight": (256, 64), "mlp.down_proj.weight": (64, 256), "mlp.gate_proj.weight": (256, 64)},
        {"se.down.weight": A, "se.up.weight": B},  # squeeze and excitation
        {"net.fc1.weight": BASE, "net.fc2.weight": A, "net.fc3.weight": B},  # an autoencoder
        {"attn.q_a_proj.weight": A, "attn.q_b_proj.weight": B, "attn.o_proj.weight": BASE},  # DeepSeek
        {"x.base.weight": BASE, "x.a.weight": (48, 64), "x.b.weight": (64, 48)},  # not low
        {"pair.A.weight": (4, 64), "pair.B.weight": (64, 8)},
        {"explora.weight": A, "color.weight": B},
        {f"block.{name}.weight": shape for name, shape in DIMENET.items()},
        {"mix.weight": BASE, "down.weight": A, "down.bias": (4,), "up.weight": B},  # a bottleneck
    ],
)
def test_other_narrow_layers_are_none(layers):
    assert low_rank_factors(layers) == set()


def test_any_names_beside_a_frozen_weight():
    layers = {"base.weight": BASE, "reduce.weight": A, "expand.weight": B, "other.weight": (8, 64)}
    assert low_rank_factors(layers, {"base.weight"}) == {"reduce.weight", "expand.weight"}
    assert low_rank_factors(layers) == set()
    own = {"0.weight": BASE, "0.lin_in": A, "0.lin_out": B, "1.lin_in": A, "1.lin_out": B}
    assert low_rank_factors(own, {"0.weight"}) == {"0.lin_in", "0.lin_out"}
    assert low_rank_factors(own) == set()
