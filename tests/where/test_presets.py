"""Which preset `auto` means, what is never taken, what is said of it, and splits declared by the user."""

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import nn

from lightning_fire import Weights, fire_
from lightning_fire.where.projections import unknown_rows


def names(selection):
    return [view.name for view in selection]


def reasons(selection):
    return {row.name: row.reason for row in selection.rows if len(row.shape) > 1}


def block(**layers):
    module = nn.Module()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return module


def attention(width=16):
    return block(**{name: nn.Linear(width, width) for name in ("query", "key", "value", "out")})


def transformer(depth=2, width=16):
    parts = {"patches": nn.Conv2d(3, width, 4, 4)}
    for number in range(depth):
        parts[f"attention{number}"] = attention(width)
        parts[f"mlp{number}"] = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
    return block(**parts, head=nn.Linear(width, 5))


def convolutions(number):
    return nn.Sequential(*(nn.Conv2d(16, 16, 3) for _ in range(number)))


KINDS = {
    "transformer": (lambda: transformer(), "vit", 4, 14),
    "of one block": (lambda: transformer(1), "vit", 2, 8),
    "with position networks": (  # Swin 2
        lambda: block(body=transformer(4), positions=nn.ModuleList(nn.Linear(2, 8) for _ in range(9))),
        *("vit", 8, 35),
    ),
    "U-Net with one attention": (
        lambda: block(down=convolutions(4), mid=attention(), up=convolutions(4)),
        *("cnn", 12, 12),
    ),
    "classifier with one attention": (
        lambda: block(body=convolutions(8), mid=attention(), head=nn.Linear(16, 5)),
        *("cnn", 13, 13),
    ),
    "image out of a transformer": (lambda: block(body=transformer(), out=nn.Conv2d(16, 3, 1)), "cnn", 15, 15),
}


@pytest.mark.parametrize("kind", KINDS)
def test_auto_asks_for_the_kind_of_network_and_says_how_many_of_how_many(kind):
    build, preset, taken, total = KINDS[kind]
    selection = Weights().select(build())
    assert selection.summary == f"{taken} of {total} weight matrices, preset {preset}"
    assert str(selection).splitlines()[-1] == f"{taken} of {total} weight matrices taken, preset {preset}"
    assert len(selection) == taken


@pytest.mark.parametrize("name", ["swin_v2_t", "vit_b_32"])
def test_transformers_of_torchvision_are_such(name):
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        selection = Weights().select(getattr(models, name)())
    assert selection.preset == "vit"
    assert len(selection) == 24


@pytest.mark.parametrize("kind", ["SegformerForSemanticSegmentation", "DPTForDepthEstimation"])
def test_networks_around_a_transformer_are_taken_whole(kind):
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, kind)
    with torch.device("meta"):
        selection = Weights().select(model(model.config_class()))
    assert selection.preset == "cnn"
    assert selection.summary.startswith(f"{len(selection)} of {len(selection)} ")


# --- one row or column -----------------------------------------------------------------------------------------------

VECTORS = {
    "value head": nn.Linear(8, 1),
    "prescaler": nn.Linear(1, 8),
    "integral of YOLO": nn.Conv2d(16, 1, 1, bias=False),
    "transposed": nn.ConvTranspose2d(1, 8, 1),
    "one row for each group": nn.Conv2d(8, 2, 1, groups=2),
    "scalar": nn.Linear(1, 1),
}


@pytest.mark.parametrize("kind", VECTORS)
def test_a_weight_of_one_row_or_column_is_left_out(kind):
    module = block(vector=VECTORS[kind], body=nn.Linear(4, 4))
    selection = Weights("cnn", include=["vector", "body"]).select(module)
    assert reasons(selection)["vector.weight"] == "one row or column: only its length would change"
    assert names(selection) == ["body.weight"]
    assert selection.summary == "1 of 1 weight matrices, preset cnn"
    both = Weights(vectors=True).select(module)
    assert names(both) == ["vector.weight", "body.weight"] and both.summary.startswith("2 of 2 weight matrices")
    with pytest.raises(ValueError, match=r"1 one row or column: only its length would change \(weight\)"):
        Weights().select(VECTORS[kind])


def test_a_kernel_on_one_channel_is_taken():
    assert names(Weights().select(nn.Conv2d(1, 8, 3))) == ["weight"]


# --- layers of other libraries ---------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A Linear layer that is not torch's."""

    def __init__(self, shape, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)
        self.weight = nn.Parameter(torch.randn(shape))


def test_what_is_passed_over_is_said():
    experts = block(experts=block(), shared=nn.Linear(8, 8))
    experts.experts.gate_up_proj = nn.Parameter(torch.randn(4, 16, 8))
    module = block(
        cell=nn.GRU(4, 8),
        unknown=Layer((6, 4)),
        qkv=nn.Linear(4, 12),
        table=nn.Embedding(5, 4),
        moe=experts,
        head=nn.Linear(8, 4),
    )
    module.position = nn.Parameter(torch.randn(1, 9, 8))
    selection = Weights("cnn").select(module)
    assert names(selection) == ["moe.shared.weight", "head.weight"]
    assert selection.left_out == [
        "cell.weight_ih_l0: recurrent: Weights(layers={'GRU': 'gates'}) takes each gate",
        "cell.weight_hh_l0: recurrent: Weights(layers={'GRU': 'gates'}) takes each gate",
        "unknown.weight: Layer is unknown: Weights(layers={'Layer': 'out_in'}) takes it as (out, in)",
        f"qkv.weight: {unknown_rows('qkv')}",
        "moe.experts.gate_up_proj: Module is unknown:"
        " Weights(layers={'Module': 'stacked_out_in'}) takes it as (matrices, out, in)",
    ]
    assert selection.summary.startswith("2 of 7 ")
    assert Weights("cnn", include=["^head"]).select(module).left_out == []
    assert Weights("cnn", exclude=["cell", "unknown", "qkv", "moe"]).select(module).left_out == []
    with pytest.warns(UserWarning, match=r"the change leaves out cell\.weight_ih_l0: recurrent: .*; unknown\.weight: "):
        fire_(module, where=Weights("cnn"))


# --- splits declared by the user -------------------------------------------------------------------------------------


def test_a_declared_split_replaces_the_guess():
    module = block(attn=block(mixed=nn.Linear(8, 20), qkv=nn.Linear(8, 24)), head=nn.Linear(8, 8))
    split = {r"mixed\.weight$": {"q": 8, "k": 6, "v": 6}, "qkv": {"q": 1, "k": 1, "gate": 4, "blocks": 4}}
    views = {view.name: view for view in Weights("cnn", split=split).select(module)}
    assert {name: (view.rows, view.blocks, view.role) for name, view in views.items() if "attn" in name} == {
        "attn.mixed.weight[q]": ((0, 8), 1, "q"),
        "attn.mixed.weight[k]": ((8, 14), 1, "k"),
        "attn.mixed.weight[v]": ((14, 20), 1, "v"),
        "attn.qkv.weight[q]": ((0, 1), 4, "q"),
        "attn.qkv.weight[k]": ((1, 2), 4, "k"),
        "attn.qkv.weight[gate]": ((2, 6), 4, "gate"),
    }
    expected = module.attn.qkv.weight.detach().clone()
    expected.view(4, 6, 8)[:, 2:].fill_(7.0)
    views["attn.qkv.weight[gate]"].write(torch.full((16, 8), 7.0))
    assert torch.equal(module.attn.qkv.weight, expected)
    assert names(Weights("vit", split=split).select(module)) == [name for name in views if name[-3:] in ("[q]", "[k]")]


def test_a_declared_split_takes_what_could_not_be_split():
    module = block(qkv=nn.Linear(8, 20), out=nn.Linear(8, 8))
    assert Weights("cnn").select(module).left_out[0].startswith("qkv.weight: fused")
    selection = Weights("cnn", split={"qkv": {"q": 8, "k": 6, "v": 6}}).select(module)
    assert len(selection) == 4
    assert selection.left_out == []
    frozen = block(qkv=nn.Linear(8, 20).requires_grad_(False), out=nn.Linear(8, 8))
    assert names(Weights("cnn", split={"qkv": {"q": 8, "k": 6, "v": 6}}).select(frozen)) == ["out.weight"]


def test_a_declared_split_from_a_recipe():
    parser = ArgumentParser()
    parser.add_argument("--where", type=Weights)
    arguments = {"preset": "cnn", "split": {"qkv": {"q": 8, "k": 6, "v": 6}}}
    parsed = parser.parse_object({"where": {"class_path": "lightning_fire.Weights", "init_args": arguments}})
    where = parser.instantiate(parsed).where
    assert where == Weights("cnn", split={"qkv": {"q": 8, "k": 6, "v": 6}}) != Weights("cnn")
    assert "split={'qkv'" in repr(where)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"qkv": {"q": 8, "k": 6}}, r"`split` gives qkv\.weight 1 · \(8 \+ 6\) = 14 rows, but it has 20"),
        ({"qkv": {"q": 8, "k": 2, "blocks": 3}}, r"3 · \(8 \+ 2\) = 30 rows, but it has 20"),
        ({"attn": {"q": 20}}, "`split` has 'attn', which matches no weight; there are: qkv.weight"),
        ({"(": {"q": 20}}, r"`split` has '\(', not a regular expression"),
        ({"qkv": (8, 6, 6)}, r"`split` must have numbers of rows, .* got \(8, 6, 6\) for 'qkv'"),
        ({"qkv": {"q": 0, "k": 20}}, "must have numbers of rows"),
        ({"qkv": {"blocks": 2}}, "must have numbers of rows"),
        ([8, 6, 6], "`split` must be a mapping such as"),
    ],
)
def test_a_wrong_split_is_an_error(split, message):
    with pytest.raises(ValueError, match=message):
        Weights("cnn", split=split).select(block(qkv=nn.Linear(8, 20)))
