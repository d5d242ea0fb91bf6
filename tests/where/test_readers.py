"""Readers: recurrent layers, experts, layers with a forward of their own, declared layouts, readers of one's own."""

import functools

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import nn
from torch.nn import functional as F

from lightning_fire import HiddenMatrices, Weights, fire_
from lightning_fire.functional import fire
from lightning_fire.where import READERS, WeightView


class Bare(nn.Module):
    """Parameters of these shapes."""

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))


# --- layers that no reader knows -------------------------------------------------------------------------------------


class Equalized(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight * 0.1, self.bias)


class Standardized(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Padded(nn.ConvTranspose2d):
    def forward(self, x, output_size=None):
        return F.pad(super().forward(x), (1, 1, 1, 1))


class Unchanged(nn.Linear):
    """A subclass of which only the constructor is its own."""

    def __init__(self):
        super().__init__(8, 8)


OWN = {
    "Equalized": (lambda: Equalized(8, 8), "out_in"),
    "Standardized": (lambda: Standardized(8, 8, 3, groups=2), "out_in"),
    "Padded": (lambda: Padded(8, 8, 3, groups=2), "transposed_conv"),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_layer_with_a_forward_of_its_own_is_left_out_and_taken_as_declared(kind):
    build, layout = OWN[kind]
    model = nn.ModuleDict({"layer": build(), "head": nn.Linear(8, 8)})
    selection = Weights("cnn").select(model)
    assert selection.names == ["head.weight"]
    reason = f"{kind} has a forward of its own: Weights(layers={{'{kind}': '{layout}'}}) takes it as a plain layer"
    assert selection.left_out == [f"layer.weight: {reason}"]
    before = model["layer"].weight.detach().clone()
    with pytest.warns(UserWarning, match=rf"leaves out layer\.weight: {kind} has a forward of its own"):
        fire_(model, where=Weights("cnn"))
    assert torch.equal(model["layer"].weight, before)
    for key in (kind, type(model["layer"])):
        (view, _) = Weights("cnn", layers={key: layout}).select(model)
        assert (view.groups, view.layout, view.shape[:2]) == (
            getattr(model["layer"], "groups", 1),
            layout,
            view.shape[:2],
        )


def test_a_subclass_with_the_forward_of_torch_is_taken():
    assert Weights("cnn").select(Unchanged()).names == ["weight"]


def test_bare_parameters_are_left_out_with_the_argument_that_takes_them():
    model = nn.ModuleDict(
        {"sae": Bare(W_enc=(8, 32), b_enc=(32,), pos=(9, 8)), "heads": nn.ParameterList([torch.ones(4, 2)])}
    )
    reasons = {row.name: row.reason for row in Weights().select(nn.ModuleDict({**model, "fc": nn.Linear(8, 4)})).rows}
    assert reasons == {
        "sae.W_enc": "Bare is unknown: Weights(layers={'Bare': 'out_in'}) takes it as (out, in)",
        "sae.b_enc": "not a matrix",
        "sae.pos": "Bare: not the weight of a known layer",
        "heads.0": "ParameterList is unknown: Weights(layers={'heads.0': 'out_in'}) takes it as (out, in)",
        "fc.weight": "taken",
        "fc.bias": "not a matrix",
    }
    views = Weights(layers={"W_enc": "in_out", r"heads\.0": "out_in"}).select(model)
    assert [(view.name, view.shape) for view in views] == [("sae.W_enc", (32, 8)), ("heads.0", (4, 2))]


def test_biases_of_experts_are_not_named_as_weights():
    model = nn.ModuleDict({"experts": Bare(gate_up_proj_bias=(3, 12), down_proj_bias=(3, 6)), "fc": nn.Linear(4, 4)})
    assert Weights().select(model).left_out == []


def test_a_gradient_hook_is_no_reason_to_leave_a_weight_out():
    """`wandb.watch` registers one on each weight."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model[0].weight.register_hook(lambda gradient: gradient)
    selection = Weights().select(model)
    assert selection.names == ["0.weight", "2.weight"] and selection.left_out == []


# --- readers of one's own --------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Keys and values of a layer beside queries of another, and a bare product."""

    def __init__(self):
        super().__init__()
        self.qkv, self.W = nn.Linear(4, 8), nn.Parameter(torch.randn(4, 6))


@pytest.fixture
def reader():
    def mixed(path, module, model):
        if not isinstance(module, Mixed):
            return None
        halves = (("k", (0, 4)), ("v", (4, 8)))
        keys = [WeightView(f"{path}.qkv.weight[{r}]", module.qkv.weight, rows=rows, role=r) for r, rows in halves]
        return [WeightView(f"{path}.W", module.W, layout="in_out"), *keys]

    READERS.append(mixed)
    yield mixed
    READERS.remove(mixed)


def test_a_reader_of_ones_own_reads_a_module_with_the_layers_in_it(reader):
    model = nn.ModuleDict({"a": Mixed(), "head": nn.Linear(4, 2)})
    views = Weights("cnn").select(model)
    assert views.names == ["a.W", "a.qkv.weight[k]", "a.qkv.weight[v]", "head.weight"] and not views.left_out
    assert views["a.W"].shape == (6, 4)
    assert Weights(layers={"qkv.weight": "out_in"}, preset="cnn").select(model).names[1] == "a.qkv.weight"  # declared


def test_a_reader_may_give_a_reason():
    def refuse(path, module, model):
        return "of a quantized library" if isinstance(module, nn.Linear) else None

    READERS.append(refuse)
    try:
        selection = Weights("cnn").select(nn.Sequential(nn.Linear(2, 3), nn.Conv2d(2, 2, 1)))
    finally:
        READERS.remove(refuse)
    assert selection.names == ["1.weight"] and selection.left_out == ["0.weight: of a quantized library"]


def test_declared_layers_from_a_recipe():
    parser = ArgumentParser()
    parser.add_argument("--where", type=Weights)
    arguments = {"preset": "cnn", "layers": {"LSTM": "gates", "W_enc": "in_out"}}
    parsed = parser.parse_object({"where": {"class_path": "lightning_fire.Weights", "init_args": arguments}})
    model = nn.ModuleDict({"a": nn.LSTM(3, 4), "b": Bare(W_enc=(4, 5))})
    where = parser.instantiate(parsed).where
    assert where == Weights("cnn", layers={"LSTM": "gates", "W_enc": "in_out"})
    assert len(where.select(model)) == 9


# --- trained ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [set, list])
def test_only_what_optimizers_step_is_taken(kind):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight.requires_grad_(False)
    trained = kind([model[0].weight, model[2].weight])
    selection = Weights().select(model, trained)
    assert selection.names == ["0.weight"] and selection.untrained == ["1.weight"]
    assert selection.rows[-2].reason == "frozen (requires_grad=False)"
    assert Weights().select(model).names == ["0.weight", "1.weight"]


# --- stacks ----------------------------------------------------------------------------------------------------------


class Experts(Bare):
    """As in transformers, which declares how its stacks are stored."""

    is_transposed, is_concatenated = False, True

    def forward(self, x, i):
        gate, up = F.linear(x, self.gate_up_proj[i]).chunk(2, dim=-1)
        return F.linear(gate.sigmoid() * up, self.down_proj[i])


class TransposedExperts(Bare):
    """As GPT-OSS: (in, out), gate and up projection interleaved."""

    is_transposed, is_concatenated = True, False

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
    kind = type(module["net"])
    argument = f"Weights(layers={{'{kind.__name__}': 'gates'}}) takes each gate"
    assert by_default.left_out and all(argument in reason for reason in by_default.left_out)
    matrices = {name: p.detach().clone() for name, p in module.named_parameters() if p.ndim == 2}
    fire_(module, where=Weights(layers={kind.__name__: "gates"}))
    for name, old in matrices.items():
        parts = old.split(6) if name.startswith("net") else [old]
        assert len(parts) == (len(gates) if name.startswith("net") else 1)
        torch.testing.assert_close(module.get_parameter(name).detach(), torch.cat([fire(part) for part in parts]))
    selection = Weights(layers={kind: "gates"}).select(module)
    first = {view.role for view in selection if view.name.partition("[")[0] == selection[0].name.partition("[")[0]}
    assert first == set(gates) and not selection.left_out


def test_the_projection_of_an_lstm_has_no_gates():
    names = Weights(layers={"LSTM": "gates"}).select(nn.LSTM(4, 6, proj_size=2)).names
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
    assert Weights(layers={nn.Linear: "in_out"}, split={"weight": {"q": 2, "k": 2}}).select(layer).names == [
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
        ({Unread: "gates"}, "`layers` has 'gates' for Unread, not a recurrent layer of torch"),
        (["w"], "`layers` must be a mapping"),
        ({"(": "out_in"}, "not a regular expression"),
    ],
)
def test_errors_of_a_declared_layout(layers, message):
    with pytest.raises(ValueError, match=message):
        Weights(layers=layers).select(Unread(w=(6, 4), b=(6,)))


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
