"""The rows of fused projections: replicas of public libraries by names and attributes, against their own split."""

import pytest
import torch
from torch import nn

from lightning_fire.where import Weights


class Settings:
    """A `config`, as litgpt has it."""

    def __init__(self, **numbers):
        vars(self).update(numbers)


def attention(leaf: str, inputs: int, outputs: int, kind: str = "Attention", **attributes) -> nn.Module:
    """A module of a class of this name with a fused projection and the layer behind it."""
    module = type(kind, (nn.Module,), {})()
    for name, value in attributes.items():
        setattr(module, name, value)
    setattr(module, leaf, nn.Linear(inputs, outputs, bias=False))
    module.proj = nn.Linear(inputs, inputs, bias=False)
    return module


def rows_of(module: nn.Module, leaf: str) -> dict[str, list[int]]:
    """The rows of each part that is taken, by writing its number into the weight."""
    weight = module.get_parameter(f"{leaf}.weight")
    views = [view for view in Weights("cnn").select(module) if view.parameter is weight]
    with torch.no_grad():
        weight.fill_(-1)
    for number, view in enumerate(views):
        view.write(torch.full(view.shape, float(number)))
    found = weight.detach().flatten(1)[:, 0].long().tolist()
    return {view.role: [row for row, part in enumerate(found) if part == n] for n, view in enumerate(views)}


def reason_of(module: nn.Module, leaf: str) -> str:
    return next(row.reason for row in Weights("cnn").select(module).rows if row.name == f"{leaf}.weight")


def blocks(**widths: int) -> dict[str, list[int]]:
    """All rows of the first part, then all of the second, …"""
    return by_block(1, **widths)


def by_block(number: int, **widths: int) -> dict[str, list[int]]:
    """The same order of parts again and again."""
    labels = [role for role, width in widths.items() for _ in range(width)] * number
    return {role: [row for row, label in enumerate(labels) if label == role] for role in widths}


GROUPED = blocks(q=64, k=16, v=16)  # 8 heads of 8, 2 of keys
NAMES = {
    "litgpt": ("qkv", {"config": Settings(n_head=8, n_query_groups=2, head_size=8)}),
    "settings in a dict": ("qkv", {"config": {"n_head": 8, "n_kv_heads": 2}}),
    "flash-attn": ("Wqkv", {"num_heads": 8, "num_heads_kv": 2}),
    "llm-foundry": ("Wqkv", {"n_heads": 8, "kv_n_heads": 2}),
    "vLLM": ("qkv_proj", {"num_heads": 8, "num_kv_heads": 2, "head_dim": 8}),
    "Phi-3": ("qkv_proj", {"num_key_value_groups": 4, "head_dim": 8, "config": Settings(num_attention_heads=8)}),
    "groups of keys": ("qkv", {"num_heads": 8, "num_key_value_groups": 2, "head_dim": 8}),
    "gpt-fast": ("wqkv", {"n_head": 8, "n_local_heads": 2, "head_dim": 8}),
    "Falcon's name": ("to_qkv", {"heads": 8, "n_head_kv": 2}),
    "ChatGLM's name": ("qkv", {"num_attention_heads": 8, "multi_query_group_num": 2}),
    "a head size of its own": ("qkv", {"num_heads": 4, "num_kv_heads": 1, "head_dim": 16}),
}


@pytest.mark.parametrize("name", NAMES)
def test_fewer_key_heads_are_found_by_every_name(name):
    leaf, attributes = NAMES[name]
    assert rows_of(attention(leaf, 64, 96, **attributes), leaf) == GROUPED


def test_grouped_heads_of_three_times_the_width_by_chance():
    """8 heads of 16 and 2 of keys on 64 inputs: (8 + 2·2)·16 = 192 = 3·64."""
    declared = attention("qkv", 64, 192, num_heads=8, num_kv_heads=2, head_dim=16)
    assert rows_of(declared, "qkv") == blocks(q=128, k=32, v=32)
    by_output = attention("qkv", 64, 192, num_heads=8, num_kv_heads=2)
    by_output.proj = nn.Linear(128, 64)
    assert rows_of(by_output, "qkv") == blocks(q=128, k=32, v=32)
    for unsaid in ({"num_heads": 8, "num_kv_heads": 2}, {"num_heads": 8, "head_dim": 16}, {"num_kv_heads": 2}):
        assert rows_of(attention("qkv", 64, 192, **unsaid), "qkv") == {}


@pytest.mark.parametrize(
    ("outputs", "attributes", "reason"),
    [
        (96, {}, "width 96, of an unknown number of heads"),
        (96, {"num_heads": 8}, "width 96, which 8 heads do not explain"),
        (96, {"num_heads": 8, "head_dim": 8}, "which 8 heads of size 8 do not explain"),
        (96, {"num_heads": 8, "num_kv_heads": 4}, "which 8 heads, 4 of keys do not explain"),
        (96, {"num_heads": 8, "num_kv_heads": 2, "head_dim": 16}, "8 heads of size 16, 2 of keys do not explain"),
        (128, {"num_heads": 8, "head_dim": 8}, "width 128, which"),  # GCViT: keys and values under this name
        (128, {"num_heads": 8, "d_k": 4, "d_v": 8}, "widths of their own"),
    ],
)
def test_no_projection_is_cut_at_a_guess(outputs, attributes, reason):
    module = attention("qkv", 64, outputs, **attributes)
    assert rows_of(module, "qkv") == {}
    assert reason in reason_of(module, "qkv")
    (said,) = Weights("cnn").select(module).left_out
    assert said.startswith("qkv.weight: fused") and reason in said


LATENT = {"num_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
ORDERS = {
    "litgpt until 0.5.4": ("attn", 96, "CausalSelfAttention", NAMES["litgpt"][1], by_block(2, q=32, k=8, v=8)),
    "InternLM 2": (
        *("wqkv", 96, "InternLM2Attention"),
        *({"num_heads": 8, "num_key_value_heads": 2}, by_block(2, q=32, k=8, v=8)),
    ),
    "YOLO, area attention": ("qkv", 192, "AAttn", {"num_heads": 2, "head_dim": 32}, by_block(2, q=32, k=32, v=32)),
    "LeViT": (
        *("qkv", 128, "Attention"),
        *({"num_heads": 4, "key_dim": 8, "val_dim": 16}, by_block(4, q=8, k=8, v=16)),
    ),
    "YOLO": ("qkv", 128, "Attention", {"num_heads": 2, "head_dim": 32, "key_dim": 16}, by_block(2, q=16, k=16, v=32)),
    "DeepSeek, down": ("kv_a_proj_with_mqa", 12, "MultiheadLatentAttention", LATENT, blocks(kv=8, k=4)),
    "DeepSeek, up": ("kv_b_proj", 44, "MultiheadLatentAttention", LATENT, by_block(4, k=6, v=5)),
    "DeepSeek, down, own code": ("wkv_a", 12, "MLA", LATENT, blocks(kv=8, k=4)),
    "DeepSeek, up, own code": ("wkv_b", 44, "MLA", LATENT, by_block(4, k=6, v=5)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_their_own(name):
    leaf, outputs, kind, attributes, expected = ORDERS[name]
    assert rows_of(attention(leaf, 64, outputs, kind, **attributes), leaf) == expected


@pytest.mark.parametrize(
    ("leaf", "outputs", "kind"),
    [
        ("Wqkv", 192, "SelfBlock"),  # LightGlue: row 3·i + j
        ("qkv", 192, "LiteMLA"),  # EfficientViT: heads of their own size
        ("in_proj_qkvz", 256, "Qwen3NextGatedDeltaNet"),
        ("to_qkv_mlp_proj", 448, "Flux2ParallelSelfAttention"),
        ("qkv_opreact", 256, "mLSTMLayer"),
        ("queries_keys_values", 192, "LevitAttention"),
        ("query_key_value", 192, "Attention"),
        ("qk", 96, "Attention"),
        *((name, 192, "Attention") for name in ("kqv", "to_kqv", "kqv_proj", "qvk", "toVKQ", "key_query_value")),
        ("keys_queries", 128, "Attention"),
    ],
)
def test_other_fused_projections_are_left_out(leaf, outputs, kind):
    module = attention(leaf, 64, outputs, kind, num_heads=8)
    assert rows_of(module, leaf) == {}
    assert reason_of(module, leaf).startswith("fused query-key")


def test_a_fused_query_and_key_beside_a_value():
    """ConViT, TNT, the first YOLO12."""
    module = attention("qk", 64, 128)
    module.v = nn.Linear(64, 64)
    assert rows_of(module, "qk") == blocks(q=64, k=64)
    assert {view.name: view.role for view in Weights("cnn").select(module)}["v.weight"] == "v"
    shared = attention("query_key", 64, 64)  # Reformer: one matrix for both
    assert [view.role for view in Weights("cnn").select(shared)] == ["", ""]


PAIRS = [
    *[("q_net", "kv_net"), ("wq", "wkv"), ("Wq", "Wkv"), ("query", "key_value"), ("c_q", "c_kv")],
    *[("proj_q", "proj_kv"), ("q_linear", "kv_linear"), ("Q", "KV"), ("toQ", "toVK")],
]


@pytest.mark.parametrize(("query", "key_value"), PAIRS)
def test_keys_and_values_beside_their_query(query, key_value):
    module = attention(key_value, 64, 128, num_heads=4)
    setattr(module, query, nn.Linear(64, 64))
    order = key_value.lower()[-2:] if key_value.endswith("VK") else "kv"
    assert rows_of(module, key_value) == blocks(**dict.fromkeys(order, 64))
    roles = {view.name: view.role for view in Weights("cnn").select(module)}
    assert roles[f"{query}.weight"] == "q"
    setattr(module, key_value, nn.Linear(64, 32))  # fewer heads of keys
    assert rows_of(module, key_value) == {}
    assert reason_of(module, key_value) == "fused key-value of width 32, of an unknown number of heads"


@pytest.mark.parametrize("leaf", ["kv_a_proj_with_mqa", "kv_b_proj", "wkv_a", "wkv_b"])
def test_latent_projections_without_declared_widths_are_left_out(leaf):
    module = attention(leaf, 64, 128)
    assert rows_of(module, leaf) == {}
    assert reason_of(module, leaf) == "fused key-value whose parts are not known"


@pytest.mark.parametrize(("first", "second"), [("q_net", "v_net"), ("q_down", "kv_down")])
def test_other_pairs_are_whole_matrices(first, second):
    """Networks of actions and states, compressed queries and keys."""
    module = attention(second, 64, 128)
    setattr(module, first, nn.Linear(64, 64))
    assert {view.name: view.role for view in Weights("cnn").select(module)} == dict.fromkeys(
        [f"{second}.weight", "proj.weight", f"{first}.weight"], ""
    )


class Conv(nn.Module):
    """As in ultralytics: a convolution with its norm."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)


def test_a_projection_inside_a_wrapper_has_the_wrappers_name():
    module = attention("other", 64, 64, num_heads=2, head_dim=32, key_dim=16)
    module.qkv = Conv(64, 128)
    assert rows_of(module, "qkv.conv") == by_block(2, q=16, k=16, v=32)
    unfused = nn.Module()
    for name in ("query", "key", "value"):
        setattr(unfused, name, nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)))
    assert [view.role for view in Weights("cnn").select(unfused)] == ["q", "k", "v"]
    several = nn.Module()
    several.qkv = nn.ModuleList([nn.Linear(8, 24), nn.Linear(8, 24)])
    several.head = nn.Linear(8, 8)
    assert [view.name for view in Weights("cnn").select(several)] == ["head.weight"]
    assert reason_of(several, "qkv.1").startswith("fused query-key-value of an unknown kind")
    several.qkvs = nn.ModuleList([Conv(8, 24), Conv(8, 24)])  # EfficientViT: one for each head
    several.key_dim, several.val_dim = 4, 16
    assert rows_of(several, "qkvs.1.conv") == blocks(q=4, k=4, v=16)


def own_rows(module: nn.Module, leaf: str, *inputs: torch.Tensor) -> dict[str, list[int]]:
    """The rows that reach litgpt's attention as q, k and v, with the number of each row as the output of the layer."""
    outputs, caught = getattr(module, leaf).out_features, {}

    class Rows(nn.Module):
        def forward(self, x):
            return torch.arange(outputs).expand(*x.shape[:2], outputs).double()

    def attend(q, k, v, mask):
        caught.update(q=q, k=k, v=v)
        return q.transpose(1, 2)

    setattr(module, leaf, Rows())
    module.proj, module.scaled_dot_product_attention = nn.Identity(), attend
    module(*inputs)
    return {role: sorted(set(part.flatten().long().tolist())) for role, part in caught.items()}


@pytest.mark.parametrize("groups", [8, 2, 1])
def test_the_rows_are_those_of_litgpts_own_forward(groups):
    model = pytest.importorskip("litgpt.model")
    sizes = {"n_embd": 64, "n_head": 8, "n_query_groups": groups, "rotary_percentage": 0.0}
    module = model.CausalSelfAttention(model.Config(**sizes), 0)
    ours = rows_of(module, "qkv")
    nothing = torch.zeros(1, 1, 0).double()
    assert ours == own_rows(module, "qkv", torch.zeros(1, 1, 64), nothing + 1, nothing)


@pytest.mark.parametrize("kind", ["Attention", "AAttn"])
def test_the_rows_are_those_of_yolos_own_forward(kind):
    block = pytest.importorskip("ultralytics.nn.modules.block")
    module = getattr(block, kind)(64, num_heads=2).double().eval()
    x = torch.randn(1, 64, 4, 4, dtype=torch.double)
    keys = {view.role: view for view in Weights("cnn").select(module) if "qkv" in view.name}
    keys["k"].write(torch.zeros(keys["k"].shape).double())  # attention is uniform
    before = module(x)
    keys["q"].write(torch.randn(keys["q"].shape).double())
    torch.testing.assert_close(module(x), before)
    keys["v"].write(torch.randn(keys["v"].shape).double())
    assert (module(x) - before).abs().max() > 1e-3
