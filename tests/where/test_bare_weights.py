"""Weights that are parameters of a module itself: by the source of its class, as a stack, gate by gate, declared."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_fire import FIRE, HiddenMatrices, Loop, Weights, fire_
from lightning_fire.functional import fire
from lightning_fire.where import WeightView
from lightning_fire.where.usage import halves, usages


class Bare(nn.Module):
    """Parameters of these shapes."""

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))


class Products(Bare):
    def forward(self, x, i):
        linear = F.linear(x, self.linear)
        cast = nn.functional.linear(x, weight=self.cast.to(x.dtype))
        right, left = x @ self.right, torch.matmul(self.left, x)
        turned = torch.mm(x, self.turned.t()) + x @ self.turned.transpose(-2, -1)
        added = torch.addmm(x, x, self.added)
        stack, one, other = torch.bmm(x, self.stack), F.linear(x, self.one[i]), x @ self.other[0].T
        both = F.linear(x, self.both) @ self.both
        scaled, normalized = F.linear(x, self.scaled * 2), F.linear(x, F.normalize(self.normalized))
        product = F.linear(x, self.low @ self.high)
        part = F.linear(x, self.part[:2])
        return linear, cast, right, left, turned, added, stack, one, other, both, scaled, normalized, product, part


def test_how_parameters_are_used_is_read_from_the_source():
    assert {name: tuple(usage) for name, usage in usages(Products).items()} == {
        **dict.fromkeys(["linear", "cast", "left", "turned"], ("out_in", False)),
        **dict.fromkeys(["right", "added", "stack"], ("in_out", False)),
        **dict.fromkeys(["one", "other"], ("out_in", True)),
    }


def test_a_class_without_source_or_with_another_forward():
    namespace = {"nn": nn, "F": F, "Bare": Bare}
    exec("class Hidden(Bare):\n    def forward(self, x):\n        return F.linear(x, self.w)", namespace)
    assert usages(namespace["Hidden"]) == {}

    class Other(Products):
        def forward(self, x, i):
            return self.right @ x

    assert {name: tuple(usage) for name, usage in usages(Other).items()} == {"right": ("out_in", False)}
    assert usages(type("Derived", (Products,), {})) == usages(Products)


class Named(Bare):
    """Local names, another name of the module, and lists."""

    def __init__(self):
        super().__init__(W=(6, 4), V=(6, 3), scaled=(4, 4), twice=(4, 4))
        self.steps = nn.ParameterList([nn.Parameter(torch.randn(3, 3)) for _ in range(2)])
        self.heads = nn.ParameterList([nn.Parameter(torch.randn(4, 2))])
        self.table = nn.ParameterDict({"a": torch.randn(3, 5), "b": torch.randn(5, 2)})

    def forward(this, x):
        w = this.W.to(x.dtype)
        scaled = this.scaled * 2
        other = this.twice
        x = F.linear(F.linear(F.linear(x, scaled), other), w) @ this.V
        for step in this.steps:
            x = x @ step
        other = this.twice.T
        x = x + sum(F.linear(x, head) for head in this.heads)
        return x @ this.table["a"] @ this.table["b"], F.linear(x, other)


def test_local_names_and_lists_of_parameters():
    selection = Weights().select(Named())
    assert {view.name: view.shape for view in selection} == {
        "W": (6, 4), "V": (3, 6), "steps.0": (3, 3), "steps.1": (3, 3), "heads.0": (4, 2), "table.a": (5, 3),
        "table.b": (2, 5),
    }  # fmt: skip
    assert {view.name for view in selection if view.layout == "out_in"} == {"W", "heads.0"}


class Einsum(Bare):
    def forward(self, x, s):
        dense = torch.einsum("...i,io->...o", x, self.dense)
        turned = torch.einsum("oi, bi -> bo", self.turned, x)
        up, down = torch.einsum("bi,eio->ebo", x, self.up), torch.einsum("ebo,eoi->ebi", s, self.down)
        merged = torch.einsum("bhk,hkd->bd", s, self.merged)
        outer, three = torch.einsum("bi,ihk->bhk", x, self.outer), torch.einsum("bi,io,b->bo", x, self.three, s)
        return dense, turned, up, down, merged, outer, three, torch.einsum("ij,ij->ij", self.gate, x)


def test_products_by_einsum():
    """A matrix for each expert or head, where the last two dimensions are those of a matrix."""
    assert {name: usage.layout for name, usage in usages(Einsum).items()} == {
        **dict.fromkeys(["dense", "up", "down", "merged"], "in_out"), "turned": "out_in",
    }  # fmt: skip
    model = Einsum(dense=(4, 6), turned=(6, 4), up=(3, 4, 6), outer=(4, 2, 3), weight_three=(4, 6))
    selection = Weights().select(model)
    assert [row.views for row in selection.rows] == ["6×4", "6×4", "3 of 6×4", "", ""]
    assert selection.left_out == [
        "weight_three: Einsum: neither Linear nor convolution: if it is a weight, Weights(layers=…) takes it"
    ]


def test_what_is_not_known_can_be_declared_as_the_reason_says():
    model = nn.ModuleDict(
        {"pair": nn.Bilinear(3, 4, 5), "spline": Bare(spline_weight=(6, 4, 8)), "fc": nn.Linear(4, 4)}
    )
    selection = Weights().select(model)
    assert [said.partition(":")[0] for said in selection.left_out] == ["pair.weight", "spline.spline_weight"]
    layers = {nn.Bilinear: "stacked_out_in", "spline_weight": "out_in"}
    assert [row.views for row in Weights(layers=layers).select(model).rows if row.views] == [
        "5 of 3×4",
        "6×4×8",
        "4×4",
    ]


class Tables(Bare):
    def forward(self, x):
        near = x @ self.prototypes.T, torch.cdist(x, self.codebook) @ self.codebook
        return near, torch.matmul(self.queries, x.T), F.linear(x, self.query_proj), F.linear(x, self.token_embedding)


def test_tables_of_vectors_are_not_weights():
    model = Tables(prototypes=(5, 4), codebook=(9, 4), queries=(3, 4), query_proj=(6, 4), token_embedding=(7, 4))
    selection = Weights().select(model)
    assert selection.names == ["query_proj"] and selection.left_out == []


def test_biases_of_experts_are_not_named_as_weights():
    model = nn.ModuleDict({"experts": Bare(gate_up_proj_bias=(3, 12), down_proj_bias=(3, 6)), "fc": nn.Linear(4, 4)})
    assert Weights().select(model).left_out == []


class BaseConv(SimpleNamespace):
    """As a convolution of Keras, which is not among the modules of a model."""


class KerasModel(nn.Module):
    """As a model of Keras on torch holds the variables of all its layers."""

    def __init__(self):
        super().__init__()
        shapes = {"dense/kernel": (4, 6), "dense/bias": (6,), "conv/kernel": (3, 3, 1, 8), "lstm/cell/kernel": (4, 24)}
        shapes |= {"lstm/cell/recurrent_kernel": (6, 24), "embedding/embeddings": (9, 4)}
        shapes |= {"grouped/kernel": (3, 2, 8), "conv_transpose/kernel": (3, 3, 4, 8)}
        self._torch_params = nn.ParameterDict({name: torch.randn(shape) for name, shape in shapes.items()})
        self.variables = [SimpleNamespace(value=parameter) for parameter in self._torch_params.values()]

    def _flatten_layers(self):
        groups = {"conv/kernel": 1, "grouped/kernel": 4}
        yield from (BaseConv(kernel=SimpleNamespace(path=name), groups=groups[name]) for name in groups)
        yield BaseConv(kernel=torch.ones(2, 2))  # of a layer with LoRA
        yield BaseConv()  # not built yet
        yield self


def test_layers_of_keras():
    model = KerasModel()
    selection = Weights().select(model)
    assert [(view.name.rpartition(".")[2], view.shape) for view in selection] == [
        ("dense/kernel", (6, 4)),
        ("conv/kernel", (8, 1, 3, 3)),
        ("grouped/kernel", (8, 2, 3)),
    ]
    assert [said.split(":")[0].rpartition(".")[2] for said in selection.left_out] == [
        *("conv_transpose/kernel", "embedding/embeddings", "lstm/cell/kernel", "lstm/cell/recurrent_kernel"),
    ]
    before = {name: parameter.detach().clone() for name, parameter in model._torch_params.items()}
    fire_(model, where=Weights(exclude=["embedding", "lstm", "transpose"]))
    for name, axes in ("conv/kernel", (3, 2, 0, 1)), ("grouped/kernel", (2, 1, 0)):
        groups = 4 if name == "grouped/kernel" else 1
        expected = torch.cat([fire(part) for part in before[name].permute(axes).chunk(groups)])
        torch.testing.assert_close(model._torch_params[name].permute(axes), expected)


def test_kernels_of_keras_before_quantize_are_left_out():
    model = KerasModel()
    stale = model._torch_params["dense/kernel"]  # `quantize` gives the layer another kernel
    model.variables = [variable for variable in model.variables if variable.value is not stale]
    selection = Weights(exclude=["embedding", "lstm", "transpose"]).select(model)
    assert [name.rpartition(".")[2] for name in selection.names] == ["conv/kernel", "grouped/kernel"]
    (left_out,) = selection.left_out
    assert left_out == "_torch_params.dense/kernel: not used by the Keras model any more, as after quantize()"
    assert selection.summary.startswith("2 of 2 ")


class SparseAutoencoder(Bare):
    """As in SAELens."""

    def forward(self, x):
        return torch.relu(x @ self.W_enc + self.b_enc) @ self.W_dec + self.b_dec


def test_products_with_bare_parameters_are_taken():
    model = SparseAutoencoder(W_enc=(8, 32), b_enc=(32,), W_dec=(32, 8), b_dec=(8,))
    selection = Weights().select(model)
    assert [(view.name, view.shape, view.layout) for view in selection] == [
        ("W_enc", (32, 8), "in_out"),
        ("W_dec", (8, 32), "in_out"),
    ]
    expected = {name: fire(getattr(model, name).detach().T).T for name in ("W_enc", "W_dec")}
    fire_(model)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(model, name).detach(), value)


class MyLinear(Bare):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Attention(Bare):
    """As fairseq's and others' with one bare projection."""

    def __init__(self):
        super().__init__(in_proj_weight=(48, 16), out_weight=(16, 16))
        self.num_heads = 4

    def forward(self, x):
        q, k, v = F.linear(x, self.in_proj_weight).chunk(3, -1)
        return F.linear((q @ k.mT).softmax(-1) @ v, self.out_weight)


def test_layers_of_ones_own_stand_for_linear_ones():
    """In attention too, fused or not."""
    unfused = nn.Module()
    unfused.q_proj, unfused.k_proj = MyLinear(weight=(8, 8), bias=(8,)), MyLinear(weight=(4, 8), bias=(4,))
    assert [(view.name, view.role) for view in Weights().select(unfused)] == [
        ("q_proj.weight", "q"),
        ("k_proj.weight", "k"),
    ]
    names = [view.name for view in Weights("cnn").select(Attention())]
    assert names == ["in_proj_weight[q]", "in_proj_weight[k]", "in_proj_weight[v]", "out_weight"]


# --- stacks ----------------------------------------------------------------------------------------------------------


class Experts(Bare):
    """As in transformers: one expert after the other."""

    def forward(self, x, i):
        gate, up = F.linear(x, self.gate_up_proj[i]).chunk(2, dim=-1)
        return F.linear(gate.sigmoid() * up, self.down_proj[i])


class TransposedExperts(Bare):
    """As GPT-OSS: (in, out), gate and up projection interleaved."""

    def forward(self, x, i):
        both = x @ self.gate_up_proj[i]
        return (both[..., ::2].sigmoid() * both[..., 1::2]) @ self.down_proj[i]


def experts(kind):
    if kind is Experts:
        return Experts(gate_up_proj=(3, 12, 8), down_proj=(3, 8, 6))
    return TransposedExperts(gate_up_proj=(3, 8, 12), down_proj=(3, 6, 8))


@pytest.mark.parametrize("kind", [Experts, TransposedExperts])
def test_each_expert_is_a_matrix_of_its_own(kind):
    """FIRE of the stack equals FIRE of each expert's gate, up and down projection as Linear layers."""
    model, x = experts(kind), torch.randn(5, 8)
    gate_up, down = (getattr(model, name).detach().clone() for name in ("gate_up_proj", "down_proj"))
    if kind is TransposedExperts:
        gate_up, down = gate_up.mT, down.mT
    selection = Weights().select(model)
    assert [row.views for row in selection.rows] == ["gate 3 of 6×8, up 3 of 6×8", "3 of 8×6"]
    assert [view.groups for view in selection] == [3, 3, 3]
    report = fire_(model, steps="exact")
    assert report["dfi_normalized_after"] < 1e-3
    for i in range(3):
        parts = (gate_up[i][:6], gate_up[i][6:]) if kind is Experts else (gate_up[i][::2], gate_up[i][1::2])
        gate, up = (F.linear(x, fire(part, "exact")) for part in parts)
        torch.testing.assert_close(model(x, i), F.linear(gate.sigmoid() * up, fire(down[i], "exact")))


def test_gate_and_up_are_only_divided_where_order_and_size_are_known():
    class Unknown(Bare):
        def forward(self, x, i):
            return F.linear(self.act(F.linear(x, self.gate_up_proj[i])), self.down_proj[i])

    unknown = Unknown(gate_up_proj=(3, 12, 8), down_proj=(3, 8, 6))
    reasons = {row.name: row.reason for row in Weights().select(unknown).rows}
    assert reasons["gate_up_proj"] == "fused gate and up projection of width 12, whose parts are not known"
    unknown.is_concatenated = False
    assert [view.blocks for view in Weights().select(unknown)] == [6, 6, 1]
    other = Experts(gate_up_proj=(3, 12, 8), down_proj=(3, 8, 12))
    assert [view.name for view in Weights().select(other)] == ["down_proj"]
    assert (halves(Experts), halves(TransposedExperts), halves(Unknown)) == ("halves", "interleaved", "")


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_stacks_of_transformers_are_those_of_its_own_forward(kind):
    """Without its up projection (but for a bias) an expert is constant: what remains does not depend on the input."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=16, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, vocab_size=32, head_dim=8,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    module = next(part for name, part in model.named_modules() if name.endswith("experts"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.ndim < 3 else torch.randn_like(parameter))
    views = {view.name: view for view in Weights("gpt").select(module)}
    x, chosen, weight = torch.randn(6, 16), torch.tensor([[0, 1]] * 6), torch.ones(6, 2) / 2

    def spread():
        return module(x, chosen, weight).std(0).max().item()

    assert spread() > 1e-3
    gate = views["gate_up_proj[gate]"].read().clone()
    views["gate_up_proj[gate]"].write(torch.zeros_like(gate))  # sigmoid of 0, or SiLU of 0
    closed = spread()
    views["gate_up_proj[gate]"].write(gate)
    views["gate_up_proj[up]"].write(torch.zeros_like(gate))
    opened = spread()
    assert closed < 1e-6 and (opened < 1e-6) == (kind == "mixtral")  # GPT-OSS adds 1 to up
    down = views["down_proj"].read().unflatten(0, (4, -1))
    assert torch.equal(down[2], module.down_proj[2] if kind == "mixtral" else module.down_proj[2].mT)


@pytest.mark.parametrize("shared", [True, False])
def test_agents_of_torchrl(shared):
    modules = pytest.importorskip("torchrl.modules")
    sizes = {"n_agent_inputs": 4, "n_agent_outputs": 2, "n_agents": 3, "depth": 1, "num_cells": 16}
    net = modules.MultiAgentMLP(centralized=False, share_params=shared, **sizes)
    view = Weights().select(net)[0]
    assert (view.name, view.groups) == ("params.0.weight", 1 if shared else 3)
    before = view.read().clone().reshape(-1, 16, 4)
    fire_(net)
    for old, new in zip(before, view.read().reshape(-1, 16, 4), strict=True):
        torch.testing.assert_close(new, fire(old))


def test_a_stack_is_no_hidden_matrix_of_muon():
    model = nn.Sequential(nn.Linear(8, 8), experts(Experts), nn.Linear(8, 8), nn.Linear(8, 2))
    assert HiddenMatrices().select(model).names == ["2.weight"]


# --- recurrent layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "gates"),
    [
        (functools.partial(nn.LSTM, 4, 6, 2, bidirectional=True), "ifgo"),
        (functools.partial(nn.GRU, 4, 6), "rzn"),
        (functools.partial(nn.RNN, 4, 6), [""]),
        (functools.partial(nn.LSTMCell, 4, 6), "ifgo"),
        (functools.partial(nn.GRUCell, 4, 6), "rzn"),
        (functools.partial(nn.RNNCell, 4, 6), [""]),
    ],
)
def test_recurrent_weights_are_taken_gate_by_gate_if_asked_for(layer, gates):
    torch.manual_seed(0)
    module = nn.ModuleDict({"net": layer(), "head": nn.Linear(6, 3)})
    by_default = Weights().select(module)
    assert by_default.names == ["head.weight"]
    assert all("Weights(recurrent=True)" in reason for reason in by_default.left_out) and by_default.left_out
    matrices = {name: p.detach().clone() for name, p in module.named_parameters() if p.ndim == 2}
    fire_(module, where=Weights(recurrent=True))
    for name, old in matrices.items():
        parts = old.split(6) if name.startswith("net") else [old]
        assert len(parts) == (len(gates) if name.startswith("net") else 1)
        torch.testing.assert_close(module.get_parameter(name).detach(), torch.cat([fire(part) for part in parts]))
    selection = Weights(recurrent=True).select(module)
    first = {view.role for view in selection if view.name.partition("[")[0] == selection[0].name.partition("[")[0]}
    assert first == set(gates) and not selection.left_out


class Cell(Bare):
    """An LSTM by hand."""

    def forward(self, x, h):
        return F.linear(x, self.weight_ih) + h @ self.weight_hh.T


@pytest.mark.parametrize("gates", [1, 3, 4])
def test_a_recurrent_layer_of_ones_own_is_taken_gate_by_gate_if_asked_for(gates):
    model = nn.ModuleDict({"cell": Cell(weight_ih=(gates * 6, 4), weight_hh=(gates * 6, 6)), "head": nn.Linear(6, 3)})
    assert Weights().select(model).names == ["head.weight"]
    views = Weights(recurrent=True).select(model)
    assert [view.shape for view in views] == [(6, 4)] * gates + [(6, 6)] * gates + [(3, 6)]
    if gates == 1:
        assert views.names[:2] == ["cell.weight_ih", "cell.weight_hh"]


def test_the_projection_of_an_lstm_has_no_gates():
    names = Weights(recurrent=True).select(nn.LSTM(4, 6, proj_size=2)).names
    assert [name for name in names if "hr" in name] == ["weight_hr_l0"]


# --- declared by the user --------------------------------------------------------------------------------------------


class Unread(Bare):
    """Its source does not show how its parameters are used."""


def test_a_declared_layout():
    model = nn.ModuleDict({"a": Unread(kernel=(4, 6)), "b": Unread(stack=(3, 4, 6)), "c": Unread(w=(6, 4))})
    assert len(Weights(layers={r"a\.kernel$": "in_out"}).select(model)) == 1
    layers = {r"a\.kernel$": "in_out", "stack": "stacked_in_out", r"c\.w": "out_in"}
    found = [(view.shape, view.groups) for view in Weights(layers=layers).select(model)]
    assert found == [((6, 4), 1), ((18, 4), 3), ((6, 4), 1)]
    by_class = Weights(layers={Unread: "out_in"}).select(nn.Sequential(Unread(w=(6, 4), b=(6,))))
    assert by_class.names == ["0.w"]
    assert Weights(layers=layers) == Weights(layers=dict(layers)) != Weights()
    assert len({Weights(layers=layers), Weights(layers=layers), Weights()}) == 2


def test_what_is_declared_holds_against_what_is_recognized():
    layer = nn.Linear(4, 6)
    assert Weights(layers={"weight": "in_out"}).select(layer)[0].shape == (4, 6)
    assert Weights(layers={nn.Linear: "in_out"}, splits={"weight": {"q": 2, "k": 2}}).select(layer).names == [
        "weight[q]",
        "weight[k]",
    ]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"missing": "out_in"}, "`layers` has 'missing', which matches no parameter"),
        ({nn.Conv2d: "out_in"}, "`layers` has Conv2d, which matches no parameter"),
        ({"w": "rows"}, "`layers` must have one of .*'stacked_in_out'.*, got 'rows' for 'w'"),
        ({"b": "out_in"}, r"`layers` has 'out_in' for b, but it is of shape 6$"),
        ({"w": "stacked_out_in"}, r"`layers` has 'stacked_out_in' for w, but it is of shape 6×4"),
        (["w"], "`layers` must be a mapping"),
        ({"(": "out_in"}, "not a regular expression"),
    ],
)
def test_errors_of_a_declared_layout(layers, message):
    with pytest.raises(ValueError, match=message):
        Weights(layers=layers).select(Unread(w=(6, 4), b=(6,)))


# --- gradient hooks --------------------------------------------------------------------------------------------------


def frozen_columns(model):
    """As scArches does."""
    weight = model[0].weight
    weight.register_hook(lambda gradient: gradient * (torch.arange(gradient.shape[1]) > 1))
    return weight.detach()[:, :2].clone()


def test_a_weight_with_a_gradient_hook_is_left_alone_and_named():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    kept = frozen_columns(model)
    with pytest.warns(UserWarning, match=r"leaves out 0\.weight: gradient hook, which may freeze a part of it"):
        fire_(model)
    assert torch.equal(model[0].weight[:, :2], kept)
    assert len(Weights(layers={r"0\.weight": "out_in"}).select(model)) == 2  # the user's word


def test_hooks_on_all_weights_only_watch_or_clip():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
    assert len(FIRE()(model, Loop()).layers["sfe"]) == 2


# --- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["stacked_out_in", "stacked_in_out"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_part_of_a_stack_is_read_written_and_seen_at_one_place(layout, blocks):
    stack = torch.arange(2 * 12 * 5.0).reshape(2, 12, 5)  # two matrices of 12 outputs, in blocks of 12 / blocks
    expected = stack.unflatten(1, (blocks, -1))[:, :, 1:3].flatten(0, 2)
    stored = nn.Parameter(stack.mT.contiguous() if layout == "stacked_in_out" else stack.clone())
    view = WeightView("w", stored, groups=2, layout=layout, rows=(1, 3), blocks=blocks)
    assert view.shape == expected.shape and torch.equal(view.read(), expected)
    assert torch.equal(view.grid().reshape(expected.shape), expected)
    view.write(-1 - expected)
    now = stored.detach().mT if layout == "stacked_in_out" else stored.detach()
    assert torch.equal((now < 0).sum((1, 2)), torch.tensor([2 * blocks * 5] * 2))
    assert torch.equal(view.read(), -1 - expected)
