"""The rows of fused projections: replicas of public libraries by names and attributes, against their own split."""

import pytest
import torch
from attention import known
from torch import nn

from lightning_fire.where import Weights
from lightning_fire.where.projections import unknown_rows


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
    return known(module)


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
    "llm-foundry": ("Wqkv", {"n_heads": 8, "kv_n_heads": 2}),
    "vLLM": ("qkv_proj", {"num_heads": 8, "num_kv_heads": 2, "head_dim": 8}),
    "a head size of its own": ("qkv", {"num_heads": 4, "num_kv_heads": 1, "head_dim": 16}),
}


@pytest.mark.parametrize("name", NAMES)
def test_fewer_key_heads_are_found_by_their_names(name):
    leaf, attributes = NAMES[name]
    assert rows_of(attention(leaf, 64, 96, **attributes), leaf) == GROUPED


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_unknown_code_is_not_trusted(name):
    """The same names and numbers in a class of one's own, and in one derived with another forward."""
    leaf, attributes = NAMES[name]
    module = attention(leaf, 64, 96, **attributes)
    module.__class__ = type("Own", (type(module),), {"forward": lambda self, x: x})
    assert rows_of(module, leaf) == {}
    assert reason_of(module, leaf) == unknown_rows(leaf)
    module.__class__ = type("WithoutChange", type(module).__bases__, {})
    assert rows_of(module, leaf) == GROUPED


class HeadByHead(nn.Module):
    """As guided-diffusion's default: the heads first, then queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv, self.proj_out = 4, nn.Conv1d(32, 96, 1), nn.Conv1d(32, 32, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(1, (4, 24)).split(8, dim=2)
        weight = torch.einsum("bhct,bhcs->bhts", q, k).softmax(-1)
        return x + self.proj_out(torch.einsum("bhts,bhcs->bhct", weight, v).flatten(1, 2))


def test_queries_head_by_head_in_code_of_ones_own_are_refused_and_split_as_declared():
    with pytest.raises(ValueError, match=r"fused, rows in an order that is not known: Weights\(split=\{'qkv'"):
        Weights("vit").select(HeadByHead())
    assert Weights("cnn").select(HeadByHead()).names == ["proj_out.weight"]
    split = {"qkv": {"q": 8, "k": 8, "v": 8, "blocks": 4}}
    model, x = HeadByHead(), torch.randn(2, 32, 5)
    views = {view.role: view for view in Weights("cnn", split=split).select(model)}
    views["k"].write(torch.zeros(views["k"].shape))  # attention is uniform, but for the bias
    with torch.no_grad():
        model.qkv.bias.zero_()
    uniform = model(x)
    views["q"].write(torch.randn(views["q"].shape))
    torch.testing.assert_close(model(x), uniform)


def test_nanogpt_is_known_by_its_names():
    module = type("CausalSelfAttention", (nn.Module,), {"forward": lambda self, x: x})()
    module.n_head, module.c_attn, module.c_proj = 4, nn.Linear(64, 192), nn.Linear(64, 64)
    assert rows_of(module, "c_attn") == blocks(q=64, k=64, v=64)


@pytest.mark.parametrize(
    ("outputs", "attributes"),
    [
        (96, {}),
        (96, {"num_heads": 8}),
        (96, {"num_heads": 8, "num_kv_heads": 3}),
        (128, {"num_heads": 8, "head_dim": 8}),  # GCViT: keys and values under this name
        (128, {"num_heads": 8, "d_k": 4, "d_v": 8}),
    ],
)
def test_no_projection_is_cut_at_a_guess(outputs, attributes):
    module = attention("qkv", 64, outputs, **attributes)
    assert rows_of(module, "qkv") == {}
    (said,) = Weights("cnn").select(module).left_out
    assert said == f"qkv.weight: {unknown_rows('qkv')}"


LATENT = {"num_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
ORDERS = {
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
    assert reason_of(module, leaf) == unknown_rows(leaf)


@pytest.mark.parametrize(("query", "key_value"), [("q", "kv"), ("q_proj", "kv_proj"), ("to_q", "to_kv")])
def test_keys_and_values_beside_their_query(query, key_value):
    module = attention(key_value, 64, 128, num_heads=4)
    setattr(module, query, nn.Linear(64, 64))
    assert rows_of(module, key_value) == blocks(k=64, v=64)
    roles = {view.name: view.role for view in Weights("cnn").select(module)}
    assert roles[f"{query}.weight"] == "q"
    setattr(module, key_value, nn.Linear(64, 32))  # fewer heads of keys
    assert rows_of(module, key_value) == {}


def test_other_fused_layers_count_as_one():
    """GEGLU, the inputs of Mamba, adaptive norms: only queries, keys, values, gate and up are split."""
    module = known(nn.ModuleDict({name: nn.Linear(8, 32) for name in ("proj", "Wi", "in_proj", "linear")}))
    assert Weights("cnn").select(module).names == [f"{name}.weight" for name in ("proj", "Wi", "in_proj", "linear")]


@pytest.mark.parametrize("leaf", ["kv_a_proj_with_mqa", "kv_b_proj", "wkv_a", "wkv_b"])
def test_latent_projections_without_declared_widths_are_left_out(leaf):
    module = attention(leaf, 64, 128)
    assert rows_of(module, leaf) == {}
    assert reason_of(module, leaf) == unknown_rows(leaf)


@pytest.mark.parametrize(("first", "second"), [("q_net", "v_net"), ("q_down", "k_down")])
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
    several = known(nn.Module())
    several.qkv = nn.ModuleList([nn.Linear(8, 24), nn.Linear(8, 24)])
    several.head = nn.Linear(8, 8)
    assert [view.name for view in Weights("cnn").select(several)] == ["head.weight"]
    assert reason_of(several, "qkv.1") == unknown_rows("qkv")


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
