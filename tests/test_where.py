"""`where`: layouts, presets, names, what is refused; on hand-made modules and on real architectures."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from lightning_fire.where import Weights


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
    matrix = only(layer).read()[:, :, 0, 0]  # (out, in / groups)
    x = torch.randn(2, groups * inputs, 1, 1)
    parts = [m @ p for m, p in zip(matrix.chunk(groups), x[..., 0, 0].T.chunk(groups), strict=True)]
    torch.testing.assert_close(layer(x)[..., 0, 0], torch.cat(parts).T)


def test_hugging_face_conv1d_is_the_transpose():
    layer = Conv1D(5, 3)
    torch.testing.assert_close(only(layer).read(), layer.weight.T)


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
        (block(q=nn.Linear(4, 4), out=nn.Linear(4, 4)), ["q.weight", "out.weight"]),  # a q alone is no query
        (block(in_proj=nn.Linear(4, 12)), ["in_proj.weight"]),  # no heads: a state-space model's, say
    ],
)
def test_auto_finds_queries_and_keys_by_their_names(module, expected):
    assert names(Weights().select(module)) == expected


def grouped(**numbers):
    module = block(qkv=nn.Linear(6, 24))
    for name, value in numbers.items():
        setattr(module, name, value)
    return module


def test_grouped_query_attention_is_split_by_heads():
    views = Weights("cnn").select(grouped(num_heads=8, num_key_value_heads=2))
    assert [view.shape[0] for view in views] == [16, 4, 4]
    with pytest.raises(ValueError, match="heads do not divide"):
        Weights().select(grouped(num_heads=8, num_key_value_heads=3))


def test_interleaved_projections_are_not_guessed():
    module = block(query_key_value=nn.Linear(4, 12), dense=nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"query_key_value\.weight: fused query-key-value in an interleaved order"):
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
    assert names(Weights("cnn", include=[r"\[v\]"]).select(block(qkv=nn.Linear(4, 12)))) == ["qkv.weight[v]"]


def test_the_table_names_every_parameter_and_why():
    module = small()
    module[3].weight.requires_grad_(False)
    rows = {row.name: (row.views, row.verdict) for row in Weights("cnn").select(module).rows}
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
    verdicts = {row.name: row.verdict for row in selection.rows}
    assert verdicts["lstm.weight_ih_l0"] == "LSTM: neither Linear nor convolution"
    assert verdicts["table.weight"] == "Embedding: neither Linear nor convolution"
    assert "table.weight" in str(selection)


def test_a_tied_weight_is_taken_once():
    module = block(wte=nn.Embedding(6, 4), lm_head=nn.Linear(4, 6, bias=False), again=nn.Linear(4, 6, bias=False))
    module.lm_head.weight = module.again.weight = module.wte.weight
    selection = Weights("gpt").select(module)
    assert names(selection) == ["lm_head.weight"]
    assert selection.rows[0].verdict == "taken (tied with wte.weight, again.weight)"


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


def test_equality_and_repr_say_what_it_is():
    assert Weights("cnn", exclude=["a"]) == Weights("cnn", exclude=["a"]) != Weights("cnn")
    assert repr(Weights("vit", include=["b"])) == "Weights(preset='vit', include=['b'], exclude=None)"


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Weights("resnet"), r"`preset` must be one of \['auto', 'cnn', 'vit', 'gpt'\], got 'resnet'"),
        (lambda: Weights(include=["("]), r"`include` has '\(', which is no regular expression"),
        (
            lambda: Weights(exclude=["layer9"]).select(small()),
            "`exclude` has 'layer9', which matches no weight; there are",
        ),
        (lambda: Weights("vit").select(small()), r"selects no weight of Sequential: 0\.weight: not in preset vit"),
        (lambda: Weights().select(nn.Sequential(nn.ReLU())), "selects no weight of Sequential: it has no such weights"),
        (lambda: Weights().select(nn.Sequential(nn.LazyLinear(3))), "0.weight is not initialised yet"),
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
def test_a_parametrised_weight_is_refused_with_the_way_out(kind):
    module = block(first=PARAMETRIZED[kind](nn.Linear(4, 4)), second=nn.Linear(4, 2))
    message = r"first\.weight is computed by a parametrization .* exclude=\['first\\\\.weight'\]"
    with pytest.raises(ValueError, match=message):
        Weights().select(module)
    assert names(Weights(exclude=[r"first\.weight"]).select(module)) == ["second.weight"]
    assert names(Weights(include=["second"]).select(module)) == ["second.weight"]
    parametrize.remove_parametrizations(module.first, "weight")
    assert names(Weights().select(module)) == ["first.weight", "second.weight"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_parametrizations_of_the_old_kind_are_refused_too(kind):
    module = block(first=getattr(nn.utils, kind)(nn.Linear(4, 4)), second=nn.Linear(4, 2))
    with pytest.raises(ValueError, match=rf"first\.weight is computed by a parametrization \({kind}\)"):
        Weights().select(module)
    assert names(Weights(exclude=["first"]).select(module)) == ["second.weight"]


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


@pytest.mark.parametrize(("name", "blocks"), [("vit_b_32", 12), ("swin_t", 12)])
def test_transformers_of_torchvision(name, blocks):
    model = torchvision_model(name)
    assert Counter(view.role for view in Weights().select(model)) == {"q": blocks, "k": blocks}


@pytest.mark.parametrize(
    ("name", "queries"), [("vit_tiny_patch16_224", 12), ("pvt_v2_b0", 8), ("swin_tiny_patch4_window7_224", 12)]
)
def test_transformers_of_timm(name, queries):
    timm = pytest.importorskip("timm")
    model = timm.create_model(name)
    selection = Weights().select(model)
    assert Counter(view.role for view in selection) == {"q": queries, "k": queries}
    for view in selection:
        assert math.prod(view.shape) < view.parameter.numel() or "kv" not in view.name


def test_a_mobile_network_of_timm():
    timm = pytest.importorskip("timm")
    model = timm.create_model("mobilenetv3_small_050")
    assert len(Weights().select(model)) == count_layers(model, nn.Linear, *CONV)


def huggingface(kind, **options):
    transformers = pytest.importorskip("transformers")
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": 50}
    sizes = {
        "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, **tokens},
        "T5": {"d_model": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4, "d_ff": 64, "vocab_size": 50},
        "ViT": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    }
    usual = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64, **tokens}
    config = getattr(transformers, f"{kind}Config")(**{**sizes.get(kind, usual), **options})
    model = {"T5": "T5Model", "ViT": "ViTModel", "Bert": "BertModel", "GPT2": "GPT2LMHeadModel"}
    return getattr(transformers, model.get(kind, f"{kind}ForCausalLM"))(config)


def test_gpt2_of_hugging_face():
    """12 weights in 2 blocks: (q, k, v, c_proj, c_fc, c_proj) each, and the head, which is the embedding."""
    model = huggingface("GPT2")
    selection = Weights("gpt").select(model)
    assert len(selection) == 13
    assert selection.rows[0].verdict == "taken (tied with transformer.wte.weight)"
    attention = model.transformer.h[0].attn
    query = next(view for view in selection if view.name == "transformer.h.0.attn.c_attn.weight[q]")
    x = torch.randn(1, 32)
    torch.testing.assert_close(F.linear(x, query.read()), attention.c_attn(x)[:, :32] - attention.c_attn.bias[:32])
    assert len(Weights().select(model)) == 4


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
    selection = Weights().select(huggingface(kind, **options))
    assert {view.role: view.shape for view in selection} == shapes
    assert len(selection) == (6 if kind == "T5" else 4)


def test_gpt_neox_is_interleaved():
    with pytest.raises(ValueError, match="interleaved"):
        Weights().select(huggingface("GPTNeoX"))
