"""`where`: layouts, presets, names, errors; on small modules and on real architectures."""

import math

import pytest
import torch
from attention import assert_queries_do_not_matter_without_keys, known
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run
from torch import distributed, nn
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from lightning_fire.nets import GPT, ViT
from lightning_fire.where import HiddenMatrices, Parameters, Weights, WeightView
from lightning_fire.where.projections import unknown_rows


def names(selection):
    return [view.name for view in selection]


def only(module, preset="cnn", **options):
    (view,) = Weights(preset, **options).select(module)
    return view


# --- layouts ---------------------------------------------------------------------------------------------------------


class Conv1D(nn.Module):
    """As Hugging Face's: y = x W + b with W (in, out)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))


def layers():
    return {
        "linear": nn.Linear(3, 5),
        "conv1d": nn.Conv1d(4, 6, 5, groups=2),
        "conv2d": nn.Conv2d(4, 6, (1, 2)),
        "conv3d": nn.Conv3d(2, 4, 2),
        "transposed1d": nn.ConvTranspose1d(4, 6, 3),
        "transposed2d": nn.ConvTranspose2d(4, 6, 3, groups=2),
        "transposed3d": nn.ConvTranspose3d(2, 4, 2),
        "huggingface": Conv1D(5, 3),
        "channels_last": nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
        "half": nn.Linear(3, 5).to(torch.bfloat16),
    }


@pytest.mark.parametrize("kind", layers())
def test_what_is_written_is_read_and_storage_stays(kind):
    layer = layers()[kind]
    view = only(layer)
    before = (view.parameter.data_ptr(), view.parameter.stride(), view.parameter.dtype)
    new = torch.randn(view.shape)
    assert view.read().shape == view.shape
    view.write(new)
    assert torch.equal(view.read(), new.to(view.parameter.dtype))
    assert (view.parameter.data_ptr(), view.parameter.stride(), view.parameter.dtype) == before
    with pytest.raises(ValueError, match=r"`weight` for weight must have shape \(.*\), got \(1, 1\)"):
        view.write(torch.zeros(1, 1))


@pytest.mark.parametrize("kind", layers())
def test_the_view_is_out_by_in(kind):
    layer, view = layers()[kind], None
    view = only(layer)
    out = getattr(layer, "out_features", None) or getattr(layer, "out_channels", None) or layer.nf
    inputs = getattr(layer, "in_features", None) or getattr(layer, "in_channels", None) or layer.weight.shape[0]
    assert view.shape[:2] == (out, inputs // view.groups)


@settings(max_examples=20, deadline=None)
@given(groups=st.integers(1, 3), inputs=st.integers(2, 3), outputs=st.integers(1, 3))
def test_a_transposed_convolution_is_the_linear_map_of_its_view(groups, inputs, outputs):
    """With a 1×1 kernel it multiplies each group's inputs by the group's matrix."""
    layer = nn.ConvTranspose2d(groups * inputs, groups * outputs, 1, groups=groups, bias=False)
    matrix = only(layer, vectors=True).read()[:, :, 0, 0]  # (out, in / groups)
    x = torch.randn(2, groups * inputs, 1, 1)
    parts = [m @ p for m, p in zip(matrix.chunk(groups), x[..., 0, 0].T.chunk(groups), strict=True)]
    torch.testing.assert_close(layer(x)[..., 0, 0], torch.cat(parts).T)


def test_hugging_face_conv1d_is_the_transpose():
    layer = Conv1D(5, 3)
    torch.testing.assert_close(only(layer).read(), layer.weight.T)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from([nn.Conv2d, nn.ConvTranspose2d]),
    groups=st.integers(1, 3),
    inputs=st.integers(2, 3),
    outputs=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 2), st.integers(1, 3)),
)
def test_grouped_convolutions_of_every_shape_keep_what_is_written(kind, groups, inputs, outputs, kernel):
    layer = kind(groups * inputs, groups * outputs, kernel, groups=groups)
    view = only(layer, vectors=True)
    new = torch.arange(math.prod(view.shape)).float().view(view.shape)
    assert view.shape == (groups * outputs, inputs, *kernel)
    view.write(new)
    assert torch.equal(view.read(), new)
    assert torch.equal(layer.weight.detach().flatten().sort().values, new.flatten())  # every entry once


@pytest.mark.parametrize(("layer", "axis"), [(nn.Linear(4, 12), 0), (nn.Conv2d(4, 12, 1), 0), (Conv1D(12, 4), 1)])
def test_writing_a_part_of_a_fused_weight_touches_that_part_alone(layer, axis):
    view = next(view for view in Weights("cnn").select(known(block(qkv=layer))) if view.role == "k")
    expected = layer.weight.detach().clone()
    expected.narrow(axis, 4, 4).fill_(7.0)
    view.write(torch.full(view.shape, 7.0))
    assert torch.equal(layer.weight, expected)


# --- attention -------------------------------------------------------------------------------------------------------


def test_multihead_attention_packed():
    attention = nn.MultiheadAttention(8, 2)
    views = Weights("cnn").select(attention)
    assert names(views) == ["in_proj_weight[q]", "in_proj_weight[k]", "in_proj_weight[v]", "out_proj.weight"]
    before = attention.in_proj_weight.detach().clone()
    views[1].write(torch.full((8, 8), 7.0))
    assert torch.equal(attention.in_proj_weight[8:16], torch.full((8, 8), 7.0))
    assert torch.equal(attention.in_proj_weight[:8], before[:8])
    assert torch.equal(attention.in_proj_weight[16:], before[16:])


def test_multihead_attention_with_weights_of_its_own_for_keys():
    attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=3)
    assert [(view.name, view.shape) for view in Weights().select(attention)] == [
        ("q_proj_weight", (8, 8)),
        ("k_proj_weight", (8, 5)),
    ]


def block(**layers):
    module = nn.Module()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return module


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (block(qkv=nn.Linear(4, 12)), ["qkv.weight[q]", "qkv.weight[k]"]),
        (block(q=nn.Linear(4, 4), kv=nn.Linear(4, 8)), ["q.weight", "kv.weight[k]"]),
        (block(to_q=nn.Linear(4, 4), to_k=nn.Linear(4, 4), to_v=nn.Linear(4, 4)), ["to_q.weight", "to_k.weight"]),
        (block(query=nn.Linear(4, 4), key=nn.Linear(4, 2)), ["query.weight", "key.weight"]),
        (block(c_attn=Conv1D(12, 4)), ["c_attn.weight[q]", "c_attn.weight[k]"]),
        (block(q_attn=Conv1D(4, 4), c_attn=Conv1D(8, 4)), ["q_attn.weight", "c_attn.weight[k]"]),
        (block(q=nn.Linear(4, 4), out=nn.Linear(4, 4)), ["q.weight", "out.weight"]),  # a q alone is not a query
        (block(in_proj=nn.Linear(4, 12)), ["in_proj.weight"]),  # without heads: for example a state-space model's
    ],
)
def test_auto_finds_queries_and_keys_by_their_names(module, expected):
    assert names(Weights().select(known(module))) == expected


def grouped(**numbers):
    module = known(block(qkv=nn.Linear(16, 24)))
    for name, value in numbers.items():
        setattr(module, name, value)
    return module


def test_grouped_query_attention_is_split_by_heads():
    views = Weights("cnn").select(grouped(num_heads=8, num_key_value_heads=2))
    assert [view.shape[0] for view in views] == [16, 4, 4]
    with pytest.raises(ValueError, match=r"1 fused, rows in an order that is not known: .*split=\{'qkv'"):
        Weights().select(grouped(num_heads=8, num_key_value_heads=3))


HEADS = {"num_heads": 2}


class CodeGenAttention(nn.Module):
    """Its projection is named as Phi-3's and ordered otherwise."""

    def __init__(self):
        super().__init__()
        self.qkv_proj = nn.Linear(4, 12)


def announcing(module, **numbers):
    for name, value in numbers.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    "module",
    [
        announcing(block(qkv=nn.Linear(4, 12)), head_first=True),  # MaxViT
        announcing(block(c_attn=nn.Linear(4, 12)), multi_query=False),  # GPT-BigCode
        announcing(block(qkv=nn.Linear(4, 12)), key_dim=2, val_dim=2),  # other numbers than those of LeViT
        announcing(block(q=nn.Conv2d(4, 4, 1), kv=nn.Conv2d(4, 8, 1)), dim_head_qk=2, dim_head_v=2),  # halo
        CodeGenAttention(),
        block(qkv_proj=nn.Conv2d(64, 129, 1)),  # MobileViTv2: 1 + 64 + 64
        announcing(block(qkv=nn.Linear(12, 24)), **HEADS, num_kv_heads=2),
        announcing(block(qkv=nn.Linear(12, 21)), **HEADS),
        block(q=nn.Linear(4, 4), kv=nn.Linear(4, 7)),
        block(qkv=nn.Linear(4, 8)),  # GCViT: keys and values under this name
        block(kv=nn.Linear(4, 8)),
    ],
)
def test_parts_that_cannot_be_distinguished_are_left_alone_with_the_reason(module):
    module = block(attention=known(module), head=nn.Linear(4, 2))
    selection = Weights("cnn").select(module)
    (found,) = [row.reason for row in selection.rows if "fused" in row.reason]
    assert found.startswith("fused, rows in an order that is not known: Weights(split={")
    assert all("kv" not in name and "c_attn" not in name for name in names(selection))


@pytest.mark.parametrize(
    "module",
    [
        announcing(block(in_proj=nn.Linear(4, 24)), **HEADS),  # Mamba-2, or timm's parallel block: MLP and q, k, v
        announcing(block(in_proj=nn.Linear(4, 12)), config=announcing(nn.Module(), **HEADS)),  # LFM2: three gates
        block(q=nn.Linear(4, 4), k=nn.BatchNorm1d(4)),
    ],
)
def test_names_alone_do_not_make_attention(module):
    with pytest.raises(ValueError, match="not in preset vit"):
        Weights("vit").select(module)
    assert [view.role for view in Weights().select(module)] == [""]


@pytest.mark.parametrize("module", [known(block(c_attn=Conv1D(12, 4))), block(attention=CodeGenAttention())])
def test_fsdp_derives_classes_and_changes_no_selection(module):
    plain = str(Weights("gpt").select(block(body=module, head=nn.Linear(4, 2))))
    for part in list(module.modules()):  # as `fully_shard` does
        part.__class__ = type(f"FSDP{type(part).__name__}", (FSDPModule, type(part)), {"__init__": None})
    assert str(Weights("gpt").select(block(body=module, head=nn.Linear(4, 2)))) == plain


def test_a_frozen_attention_is_attention_still():
    """`auto` must not fall back on every layer because the backbone is frozen."""
    module = block(qkv=nn.Linear(4, 12).requires_grad_(False), head=nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"1 frozen .* \(qkv\.weight\); 1 not in preset vit \(head\.weight\)"):
        Weights().select(module)


@pytest.mark.parametrize(
    ("where", "left_out"),
    [
        (Weights(), True),
        (Weights("vit"), True),
        (Weights("cnn"), True),
        (Weights("dqn"), False),
        (Weights("cnn", exclude=["query"]), False),
        (Weights("cnn", include=["head", "conv"]), False),
    ],
)
def test_fused_projections_of_unknown_order_are_named_if_they_would_be_taken(where, left_out):
    """A frozen one and one that no pattern takes are left out on purpose."""
    frozen = nn.Linear(4, 12).requires_grad_(False)
    attention = block(q=nn.Linear(4, 4), k=nn.Linear(4, 4), query_key_value=nn.Linear(4, 12))
    layers = {"a": attention, "b": block(query_key_value=frozen), "conv": nn.Conv1d(4, 4, 1), "head": nn.Linear(4, 2)}
    found = where.select(block(**layers)).left_out
    assert found == ([f"a.query_key_value.weight: {unknown_rows('query_key_value')}"] if left_out else [])


def test_interleaved_projections_are_not_guessed():
    module = block(query_key_value=nn.Linear(4, 12), dense=nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"1 fused, rows .* gives it \(query_key_value\.weight\)"):
        Weights().select(module)
    assert names(Weights("cnn").select(module)) == ["dense.weight"]


# --- presets, names --------------------------------------------------------------------------------------------------


def small():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=8), nn.Linear(8, 2))


def test_include_and_exclude_narrow_a_preset():
    assert names(Weights("cnn").select(small())) == ["0.weight", "3.weight"]
    assert names(Weights("gpt").select(small())) == ["3.weight"]
    assert names(Weights(include=["^0", "nothing|3"]).select(small())) == ["0.weight", "3.weight"]
    assert names(Weights(include=["^0"]).select(small())) == ["0.weight"]
    assert names(Weights(exclude=["^0"]).select(small())) == ["3.weight"]
    assert names(Weights("cnn", include=[r"\[v\]"]).select(known(block(qkv=nn.Linear(4, 12))))) == ["qkv.weight[v]"]


def test_the_table_names_every_parameter_and_why():
    module = small()
    module[3].weight.requires_grad_(False)
    rows = {row.name: (row.views, row.reason) for row in Weights("cnn").select(module).rows}
    assert rows == {
        "0.weight": ("8×3×3×3", "taken"),
        "0.bias": ("", "not a matrix"),
        "1.weight": ("", "not a matrix"),
        "1.bias": ("", "not a matrix"),
        "2.weight": ("8×1×3×3", "depthwise convolution: single columns, no matrices"),
        "2.bias": ("", "not a matrix"),
        "3.weight": ("2×8", "frozen (requires_grad=False)"),
        "3.bias": ("", "not a matrix"),
    }


def test_other_layers_are_listed_with_their_kind():
    module = block(lstm=nn.LSTM(3, 4), table=nn.Embedding(5, 3), bilinear=nn.Bilinear(2, 3, 4), head=nn.Linear(3, 2))
    selection = Weights().select(module)
    assert names(selection) == ["head.weight"]
    reasons = {row.name: row.reason for row in selection.rows}
    assert reasons["lstm.weight_ih_l0"] == "recurrent: Weights(layers={'LSTM': 'gates'}) takes each gate"
    assert (
        reasons["bilinear.weight"]
        == "Bilinear is unknown: Weights(layers={'Bilinear': 'stacked_out_in'}) takes it as (matrices, out, in)"
    )
    assert reasons["table.weight"] == "Embedding: not the weight of a known layer"
    assert "table.weight" in str(selection)


def test_a_tied_weight_is_taken_once():
    module = block(wte=nn.Embedding(6, 4), lm_head=nn.Linear(4, 6, bias=False), again=nn.Linear(4, 6, bias=False))
    module.lm_head.weight = module.again.weight = module.wte.weight
    selection = Weights("gpt").select(module)
    assert names(selection) == ["lm_head.weight"]
    assert selection.rows[0].reason == "taken (tied with wte.weight, again.weight)"


def test_an_expanded_weight_is_left_out_and_named():
    """Writing it would give all rows the values of the last one."""
    module = block(a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    module.a.weight = nn.Parameter(torch.randn(4, 1).expand(4, 4))
    selection = Weights("cnn").select(module)
    assert names(selection) == ["b.weight"]
    assert selection.left_out[0].startswith("a.weight: expanded from fewer values (stride 0)")
    module.a.weight.data = module.a.weight.data.clone()
    assert names(Weights("cnn").select(module)) == ["a.weight", "b.weight"]


def test_a_module_used_twice_is_taken_once():
    shared = nn.Linear(4, 4)
    assert names(Weights().select(nn.Sequential(shared, nn.ReLU(), shared))) == ["0.weight"]


def test_compiled_modules_keep_their_names():
    module = small()
    compiled = torch.compile(module)
    selection = Weights("cnn").select(compiled)
    assert names(selection) == ["0.weight", "3.weight"]
    assert selection[0].parameter is module[0].weight
    assert all("_orig_mod" not in row.name for row in selection.rows)
    module[0].compile()
    assert names(Weights("cnn").select(block(net=torch.compile(module)))) == ["net.0.weight", "net.3.weight"]


def test_a_compiled_layer_keeps_its_role_and_a_compiled_cell_its_kind():
    module = known(block(qkv=torch.compile(nn.Linear(4, 12)), cell=torch.compile(nn.GRU(2, 3))))
    selection = Weights().select(module)
    assert names(selection) == ["qkv.weight[q]", "qkv.weight[k]"]
    assert "cell.weight_ih_l0" in {row.name for row in selection.rows if row.reason.startswith("recurrent")}


def test_unsupported_weights_are_listed_with_the_reason():
    quantized, empty, bare = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 4)
    quantized.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    empty.weight = nn.Parameter(torch.zeros(0, 4))
    bare.weight = None
    selection = Weights().select(block(a=quantized, b=empty, c=bare, d=nn.Linear(4, 4)))
    reasons = {row.name: row.reason for row in selection.rows if row.name.endswith("weight")}
    assert reasons == {"a.weight": "quantized or complex (torch.int8)", "b.weight": "empty", "d.weight": "taken"}


def test_later_changes_of_the_list_do_not_change_the_selection():
    patterns = ["^0"]
    where = Weights(include=patterns)
    patterns.append("^3")
    assert names(where.select(small())) == ["0.weight"]


def test_equality_and_repr():
    assert Weights("cnn", exclude=["a"]) == Weights("cnn", exclude=["a"]) != Weights("cnn")
    assert repr(Weights("vit", include=["b"])) == "Weights(preset='vit', include=['b'], exclude=None)"


# --- modules of other libraries --------------------------------------------------------------------------------------


class LossModule(nn.Module):
    """Names its parameters as the losses of torchrl do: without their targets, and without `remove_duplicate`."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.target_scale = nn.Parameter(torch.ones(3))
        self.value = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

    def named_parameters(self, recurse=True):
        for name, parameter in super().named_parameters(recurse=recurse):
            if not name.startswith("target_"):
                yield name, parameter

    def parameters(self, recurse=True):
        return (parameter for _, parameter in self.named_parameters(recurse))


@pytest.mark.parametrize("module", [LossModule(), block(loss=LossModule())])
def test_a_module_that_names_its_parameters_in_its_own_way(module):
    where = [Weights("cnn"), HiddenMatrices(include=["value"]), Parameters(include=["value.*weight"])]
    prefix = "loss." if hasattr(module, "loss") else ""
    assert names(where[0].select(module)) == [f"{prefix}value.0.weight", f"{prefix}value.2.weight"]
    assert len(where[0].select(module).rows) == 6
    assert where[2].select(module).names == [f"{prefix}value.0.weight", f"{prefix}value.2.weight"]
    with pytest.raises(ValueError, match="of 2 Linear, convolution"):
        where[1].select(module)


def q_net(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.mark.parametrize("name", ["q_net_target", "target_q_net"])
def test_a_target_network_that_is_not_frozen_is_left_out(name):
    """Stable-Baselines3's `model.policy` holds `q_net` and `q_net_target`, both with requires_grad=True."""
    policy = block(policy=block(**{"q_net": q_net(), name: q_net()}))
    selection = Weights().select(policy)
    assert names(selection) == ["policy.q_net.0.weight", "policy.q_net.2.weight"]
    reasons = {row.name: row.reason for row in selection.rows}
    assert reasons[f"policy.{name}.0.weight"] == "target network"
    assert selection.left_out == []
    compiled = block(q_net=torch.compile(q_net()), **{name: torch.compile(q_net())})
    assert names(Weights().select(compiled)) == ["q_net.0.weight", "q_net.2.weight"]


@pytest.mark.parametrize(
    "layers",
    [
        {"q_network": q_net(), "target_network": q_net()},
        {"source_q_net": q_net(), "target_q_net": q_net()},
        {"critic": q_net(), "copies": block(target=q_net())},
    ],
)
def test_a_network_that_is_only_named_target_is_left_out_with_a_sentence(layers):
    selection = Weights().select(block(**layers))
    assert len(selection) == 2 and len(selection.left_out) == 2
    assert selection.left_out[0].endswith(": target network, by its name: Weights(include=['target']) takes it")
    assert len(Weights(include=["target", ""]).select(block(**layers))) == 4
    assert Weights(exclude=["target"]).select(block(**layers)).left_out == []


def test_a_name_that_only_contains_target_is_not_one():
    assert len(Weights().select(block(q_net=q_net(), retargeted=q_net()))) == 4


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Weights("resnet"),
            r"`preset` must be one of \['auto', 'cnn', 'vit', 'gpt', 'dqn', 'sac'\], got 'resnet'",
        ),
        (lambda: Weights(include=["("]), r"`include` has '\(', not a regular expression"),
        (
            lambda: Weights(exclude=["layer9"]).select(small()),
            "`exclude` has 'layer9', which matches no weight; there are",
        ),
        (
            lambda: Weights(exclude=["emb|bias"]).select(
                nn.ModuleDict({"emb": nn.Embedding(3, 2), "out": nn.Linear(2, 2)})
            ),
            r"matches no weight, only emb\.weight \(Embedding: .*\), out\.bias \(not a matrix\), never taken; there",
        ),
        (
            lambda: Weights("vit").select(small()),
            r"selects no weight of Sequential: 2 not in preset vit \(0\.weight, 3\.weight\); 1 depthwise",
        ),
        (lambda: Weights().select(nn.Sequential(nn.ReLU())), "selects no weight of Sequential: it has no parameters"),
        (
            lambda: Weights().select(nn.LSTM(2, 3)),
            r"2 recurrent: Weights\(layers=\{'LSTM': 'gates'\}\) .* \(weight_ih_l0, weight_hh_l0\)",
        ),
        (lambda: Weights().select(nn.LayerNorm(3)), "selects no weight of LayerNorm: none of its parameters is a mat"),
        (
            lambda: Weights("vit").select(nn.Sequential(*map(nn.Linear, [2] * 11, [2] * 11))),
            r"11 not in preset vit \(0\.weight, 1\.weight and 9 more\)",
        ),
        (lambda: Weights(exclude="head"), "`exclude` must be a list of regular expressions, got the string 'head'"),
        (lambda: Weights(include=[3]), "`include` has 3, not a regular expression"),
        (lambda: Weights().select(nn.Sequential(nn.LazyLinear(3))), r"0\.weight is not initialized yet"),
        (
            lambda: Weights().select(nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d())),
            r"1\.weight is not initialized",
        ),
    ],
)
def test_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()


PARAMETRIZED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("kind", PARAMETRIZED)
def test_a_parametrised_weight_is_an_error_with_a_remedy(kind):
    module = block(first=PARAMETRIZED[kind](nn.Linear(4, 4)), second=nn.Linear(4, 2))
    message = r"would be lost: first\.weight \(.*\)\. Remove .* exclude=\['\^first\\\\.weight'\]"
    with pytest.raises(ValueError, match=message):
        Weights().select(module)
    assert names(Weights(exclude=[r"first\.weight"]).select(module)) == ["second.weight"]
    assert names(Weights(include=["second"]).select(module)) == ["second.weight"]
    parametrize.remove_parametrizations(module.first, "weight")
    assert names(Weights().select(module)) == ["first.weight", "second.weight"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_parametrizations_of_the_old_kind_are_an_error_too(kind):
    module = block(first=getattr(nn.utils, kind)(nn.Linear(4, 4)), second=nn.Linear(4, 2))
    with pytest.raises(ValueError, match=rf"would be lost: first\.weight \({kind}\)"):
        Weights().select(module)
    assert names(Weights(exclude=["first"]).select(module)) == ["second.weight"]


def test_all_computed_weights_are_named_at_once_and_the_remedy_can_be_pasted():
    normed = parametrizations.weight_norm
    module = block(a=normed(nn.Linear(4, 4)), b=normed(nn.Conv2d(4, 4, 3)), data=nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"a\.weight \(WeightNorm\), b\.weight \(WeightNorm\)\.") as error:
        Weights().select(module)
    pasted = eval(str(error.value).split("exclude=")[1])
    assert names(Weights(exclude=pasted).select(module)) == ["data.weight"]


def test_selecting_does_not_advance_the_power_iteration_of_spectral_norm():
    module = block(first=parametrizations.spectral_norm(nn.Linear(4, 4)), second=nn.Linear(4, 2))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    Weights(exclude=["first"]).select(module)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
def test_a_computed_fused_projection_is_an_error(norm):
    module = block(first=known(block(qkv=norm(nn.Linear(4, 12)))), second=known(block(qkv=nn.Linear(4, 12))))
    with pytest.raises(ValueError, match=r"would be lost: first\.qkv\.weight"):
        Weights("vit").select(module)
    with pytest.raises(ValueError, match="would be lost: in_proj_weight"):
        Weights("vit").select(norm(nn.MultiheadAttention(8, 2), "in_proj_weight"))


def test_a_pruned_weight_is_computed_too():
    with pytest.raises(ValueError, match=r"would be lost: weight \(pruning\)"):
        Weights().select(prune.l1_unstructured(nn.Linear(4, 4), "weight", 2))


def test_a_computed_weight_that_is_never_taken_is_not_an_error():
    frozen = parametrizations.weight_norm(nn.Linear(4, 4)).requires_grad_(False)
    depthwise = parametrizations.weight_norm(nn.Conv1d(4, 4, 3, groups=4))
    assert names(Weights().select(nn.Sequential(frozen, depthwise, nn.Linear(4, 2)))) == ["2.weight"]


# --- real architectures ----------------------------------------------------------------------------------------------


def torchvision_model(name):
    models = pytest.importorskip("torchvision.models")
    return getattr(models, name)()


def count_layers(model, *kinds):
    """A count of its own, by the kind of layer alone."""
    layers = [m for m in model.modules() if isinstance(m, kinds)]
    return sum(not (getattr(m, "groups", 1) > 1 and m.weight.shape[1] == 1) for m in layers)


CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@pytest.mark.parametrize("name", ["resnet18", "vgg11_bn", "mobilenet_v2", "convnext_tiny", "resnext50_32x4d"])
def test_convolutional_networks_of_torchvision(name):
    model = torchvision_model(name)
    selection = Weights().select(model)
    assert len(selection) == count_layers(model, nn.Linear, *CONV)
    assert {view.groups for view in selection} == ({1, 32} if name.startswith("resnext") else {1})
    assert len(selection.rows) == len(list(model.parameters()))


def huggingface(kind, head=None, **options):
    transformers = pytest.importorskip("transformers")
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": 50}
    sizes = {
        "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, **tokens},
        "T5": {"d_model": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4, "d_ff": 64, "vocab_size": 50},
        "ViT": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    }
    usual = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64, **tokens}
    config = getattr(transformers, f"{kind}Config")(**{**sizes.get(kind, usual), **options})
    usual_heads = {"T5": "Model", "ViT": "Model", "Bert": "Model", "GPT2": "LMHeadModel", "Deberta": "Model"}
    return getattr(transformers, kind + (head or usual_heads.get(kind, "ForCausalLM")))(config)


def test_gpt2_of_hugging_face():
    """12 weights in 2 blocks: (q, k, v, c_proj, c_fc, c_proj) each, and the head, which is the embedding."""
    model = huggingface("GPT2")
    selection = Weights("gpt").select(model)
    assert len(selection) == 13
    assert selection.rows[-1].reason == "taken (tied with transformer.wte.weight)"
    attention = model.transformer.h[0].attn
    query = next(view for view in selection if view.name == "transformer.h.0.attn.c_attn.weight[q]")
    x = torch.randn(1, 32)
    torch.testing.assert_close(F.linear(x, query.read()), attention.c_attn(x)[:, :32] - attention.c_attn.bias[:32])


@pytest.mark.parametrize(
    ("kind", "options", "shapes"),
    [
        ("Bert", {}, {"q": (32, 32), "k": (32, 32)}),
        ("ViT", {}, {"q": (32, 32), "k": (32, 32)}),
        ("T5", {}, {"q": (32, 32), "k": (32, 32)}),
        ("Llama", {"num_key_value_heads": 2}, {"q": (32, 32), "k": (16, 32)}),
        ("Phi3", {"num_key_value_heads": 2}, {"q": (32, 32), "k": (16, 32)}),
    ],
)
def test_queries_and_keys_of_hugging_face(kind, options, shapes):
    selection = Weights("vit").select(huggingface(kind, **options))
    assert {view.role: view.shape for view in selection} == shapes
    assert len(selection) == (6 if kind == "T5" else 4)


class CausalSelfAttention(nn.Module):
    """Of nanoGPT, minGPT and LitGPT, recognized by its name."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(8, 24), nn.Linear(8, 8)


def tokens_to(outputs: int, attention: nn.Module, tied: bool = False) -> nn.Module:
    model = block(wte=nn.Embedding(50, 8), attn=attention, mlp=nn.Linear(8, 8), lm_head=nn.Linear(8, outputs))
    if tied:
        model.lm_head.weight = model.wte.weight
    return model


def not_causal(model: nn.Module) -> nn.Module:
    return announcing(model, is_causal=False)


LANGUAGE_MODELS = {
    "GPT": (lambda: GPT(vocab_size=50, block_size=8, depth=2, heads=2, dim=8), 13),
    "compiled": (lambda: block(net=torch.compile(GPT(vocab_size=50, block_size=8, depth=2, heads=2, dim=8))), 13),
    "GPT-2": (lambda: huggingface("GPT2"), 13),
    "Llama": (lambda: huggingface("Llama", num_key_value_heads=2), 15),
    "tied Llama": (lambda: huggingface("Llama", tie_word_embeddings=True), 15),
    "Phi-3": (lambda: huggingface("Phi3"), 15),
    "decoder of BERT": (lambda: huggingface("Bert", "LMHeadModel", is_decoder=True), 14),
    "nanoGPT": (lambda: tokens_to(50, CausalSelfAttention(), tied=True), 6),
    "nanoGPT without a tie": (lambda: tokens_to(50, CausalSelfAttention()), 6),
}
OTHERS = {
    "BERT": (lambda: huggingface("Bert"), 4),
    "masked language model": (lambda: huggingface("Bert", "ForMaskedLM"), 4),
    "T5": (lambda: huggingface("T5", "ForConditionalGeneration"), 6),
    "ViT": (lambda: ViT(image_size=8, dim=8, depth=2, heads=2, mlp_dim=16), 4),
    "causal, but to classes": (lambda: tokens_to(7, CausalSelfAttention()), 2),
    "not said to be causal": (lambda: tokens_to(50, known(block(qkv=nn.Linear(8, 24)))), 2),
    "causal after an encoder": (lambda: block(a=not_causal(block()), b=tokens_to(50, CausalSelfAttention())), 2),
}


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_auto_takes_every_linear_weight_of_a_causal_language_model(kind):
    build, number = LANGUAGE_MODELS[kind]
    model = build()
    selection = Weights().select(model)
    assert names(selection) == names(Weights("gpt").select(model))
    assert len(selection) == number


@pytest.mark.parametrize("kind", OTHERS)
def test_auto_takes_query_and_key_of_any_other_transformer(kind):
    build, number = OTHERS[kind]
    model = build()
    selection = Weights().select(model)
    assert names(selection) == names(Weights("vit").select(model))
    assert len(selection) == number


GROUPED = {"new_decoder_architecture": True, "num_kv_heads": 2}
INTERLEAVED = {
    "GPT-NeoX": ("GPTNeoX", {}),
    "BLOOM": ("Bloom", {"n_layer": 2, "n_head": 4}),
    "Falcon": ("Falcon", {"multi_query": False, "new_decoder_architecture": False}),
    "Falcon with one key": ("Falcon", {"multi_query": True, "new_decoder_architecture": False}),
    "Falcon with grouped keys": ("Falcon", GROUPED),
}


def split_by_the_model(attention: nn.Module, fused: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values (batch, length, heads, width) by the model's own code."""
    if hasattr(attention, "_split_heads"):
        query, key, value = attention._split_heads(fused)
        every = query.shape[2] // attention.num_kv_heads if attention.new_decoder_architecture else 1  # copies
        return [query, key[:, :, ::every], value[:, :, ::every]]
    if hasattr(attention, "_reshape"):
        return [part.transpose(1, 2) for part in attention._reshape(fused)]
    return fused.view(*fused.shape[:2], -1, 3 * attention.head_size).chunk(3, dim=-1)  # in the midst of `forward`


@pytest.mark.parametrize("kind", INTERLEAVED)
def test_interleaved_parts_are_those_of_the_models_own_split(kind):
    name, options = INTERLEAVED[kind]
    model = huggingface(name, **options)
    fused = next(module for path, module in model.named_modules() if path.endswith("query_key_value"))
    attention = next(module for module in model.modules() if fused in module.children())
    views = [view for view in Weights("cnn").select(model) if view.parameter is fused.weight]
    assert [view.role for view in views] == ["q", "k", "v"]
    x = torch.randn(2, 3, 32)
    expected = split_by_the_model(attention, F.linear(x, fused.weight.detach()))
    for view, part in zip(views, expected, strict=True):
        torch.testing.assert_close(F.linear(x, view.read()), part.flatten(2))
    for value, view in enumerate(views):
        view.write(torch.full(view.shape, float(value)))
    for value, part in enumerate(split_by_the_model(attention, F.linear(x, fused.weight.detach()))):
        torch.testing.assert_close(part, value * x.sum(-1)[..., None, None].expand(part.shape))
    for value, view in enumerate(views):
        assert torch.equal(view.grid().flatten(0, 2), torch.full(view.shape, float(value)))


class FalconAttention(nn.Module):
    """As many heads as do not divide its projection."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.multi_query = 3, False
        self.query_key_value = nn.Linear(4, 12)


def test_an_interleaved_projection_that_its_heads_do_not_divide_is_left_alone():
    selection = Weights("cnn").select(block(attention=FalconAttention(), head=nn.Linear(4, 2)))
    assert names(selection) == ["head.weight"]


def write_one_part_of_two_shards(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    stored = torch.arange(48.0).view(12, 4)
    parameter = nn.Parameter(distribute_tensor(stored.clone(), init_device_mesh("cpu", (2,)), [Shard(0)]))
    view = WeightView("qkv.weight[k]", parameter, rows=(2, 3), blocks=3, role="k")
    keys = stored.view(3, 4, 4)[:, 2:3]
    assert torch.equal(view.read(), keys.flatten(0, 1))
    view.write(torch.full((3, 4), -1.0))
    keys.fill_(-1.0)
    assert torch.equal(parameter.full_tensor(), stored)
    distributed.destroy_process_group()


@pytest.mark.slow
def test_an_interleaved_part_of_a_sharded_weight_is_read_and_written(tmp_path):
    call = f"write_one_part_of_two_shards(int(os.environ['LOCAL_RANK']), {str(tmp_path)!r})"
    run(f"import os\nfrom test_weights import write_one_part_of_two_shards\n{call}\n", tmp_path, ranks=2)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("CodeGen", {"n_embd": 32, "n_head": 4, "n_layer": 1, "rotary_dim": 4}),
        ("Deberta", {}),
        ("GPTBigCode", {"n_embd": 32, "n_head": 4, "n_layer": 1, "multi_query": False}),
    ],
)
def test_interleaved_projections_under_a_usual_name(kind, options):
    with pytest.raises(ValueError, match=r"fused, rows in an order .* \(.*(qkv_proj|in_proj|c_attn)\.weight"):
        Weights("vit").select(huggingface(kind, **options))


def test_the_parts_are_the_queries_keys_and_values_of_bert():
    assert_queries_do_not_matter_without_keys(huggingface("Bert"), torch.arange(6)[None])
