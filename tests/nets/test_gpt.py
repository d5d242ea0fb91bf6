"""`GPT`: Hugging Face's GPT-2, sizes and initial values, dropout, and selections of weights and units."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_fire import HiddenUnits, Weights
from lightning_fire.methods.initial_values import fresh_values, not_resettable
from lightning_fire.nets import GPT

TINY = {"vocab_size": 13, "block_size": 10, "depth": 2, "heads": 3, "dim": 12}
BLOCKS = [f"transformer.h.{block}" for block in range(2)]


def perturbed(net: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The same net with biases and norms away from 0 and 1, and attention away from uniform, evaluating."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net.to(dtype).eval()


def tokens(batch: int = 4, length: int = 10) -> torch.Tensor:
    return torch.randint(0, 13, (batch, length))


# --- training -------------------------------------------------------------------------------------------------------


def test_dropout_acts_in_training_on_embeddings_attention_and_both_residuals():
    net, plain = GPT(**TINY, dropout=0.5), GPT(**TINY)
    plain.load_state_dict(net.state_dict())
    batch = tokens()
    assert torch.equal(net.eval()(batch), plain(batch))
    dropouts = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Dropout)}
    assert sorted(dropouts) == sorted(
        ["transformer.drop", *(f"{b}.attn.resid_dropout" for b in BLOCKS), *(f"{b}.mlp.dropout" for b in BLOCKS)]
    )
    for name, layer in dropouts.items():
        assert layer.p == 0.5
        net.eval()
        layer.train()  # this one alone
        assert not torch.equal(net(batch), plain(batch)), name
    for block in net.eval().transformer.h:
        block.attn.training = True  # the weights of attention alone
        assert not torch.equal(net(batch), plain(batch))
        block.attn.training = False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0}, "every size must be at least 1, got vocab_size=0"),
        ({"block_size": 0}, "every size must be at least 1, got .*block_size=0"),
        ({"depth": 0}, "every size must be at least 1, got .*depth=0"),
        ({"heads": 0}, "every size must be at least 1, got .*heads=0"),
        ({"dim": -12}, "every size must be at least 1, got .*dim=-12"),
        ({"heads": 5}, "`dim` must be divisible by `heads`, got 12 and 5"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"`dropout` must be in \[0, 1\), got -0.1"),
        ({"dropout": math.nan}, r"`dropout` must be in \[0, 1\), got nan"),
    ],
)
def test_impossible_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GPT(**{**TINY, **arguments})


def test_impossible_tokens():
    net = GPT(**TINY)
    with pytest.raises(ValueError, match="`tokens` must be at most `block_size` = 10 long, got 11"):
        net(tokens(length=11))
    with pytest.raises(ValueError, match=r"`tokens` must have the shape \(batch, length\), got \(10,\)"):
        net(tokens()[0])
    assert net(tokens(length=1)).shape == (4, 1, 13)


@pytest.mark.slow
def test_compiled_in_one_graph_it_gives_the_same_logits_and_gradients():
    torch.compiler.reset()
    plain = GPT(**TINY, bias=True)
    compiled = GPT(**TINY, bias=True)
    compiled.load_state_dict(plain.state_dict())
    compiled.compile(fullgraph=True, backend="aot_eager")
    for length in (10, 6, 5):
        batch = tokens(length=length)
        torch.testing.assert_close(compiled(batch), plain(batch), rtol=1e-5, atol=1e-6)
    for net in (plain, compiled):
        cross_entropy(net(batch).flatten(0, 1), batch.flatten()).backward()
    for one, other in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)
    torch.compiler.reset()


# --- sizes and initial values ----------------------------------------------------------------------------------------


def test_gpt2_small_has_124_million_parameters():
    with torch.device("meta"):
        net, huggingface = GPT(), GPT(vocab_size=50257, bias=True)
    sizes = {name: parameter.numel() for name, parameter in net.named_parameters()}
    matrices = (3 + 1 + 4 + 4) * 768**2
    assert 50304 * 768 + 12 * (matrices + 2 * 768) + 768 == 123_587_328  # the head is the embedding
    assert sum(sizes.values()) - sizes["transformer.wpe.weight"] == 123_587_328
    assert sizes["transformer.wpe.weight"] == 1024 * 768
    assert net.flops_per_token(1024) == 6 * 123_587_328 + 12 * 12 * 768 * 1024 == 854_770_176
    assert net.flops_per_token(256) == 6 * 123_587_328 + 12 * 12 * 768 * 256
    assert sum(parameter.numel() for parameter in huggingface.parameters()) == 124_439_808


@pytest.mark.parametrize("length", [0, 11])
def test_flops_of_impossible_lengths(length):
    with pytest.raises(ValueError, match=rf"`length` must be in \[1, 10\], got {length}"):
        GPT(**TINY).flops_per_token(length)


def test_flops_count_every_matrix_product_of_a_step():
    """Against torch's counter, which counts matrix products only, without embedding look-ups."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    net, batch = GPT(**TINY), tokens(1, 10)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        net(batch).sum().backward()
    norms = sum(parameter.numel() for parameter in net.parameters() if parameter.ndim == 1)
    assert net.flops_per_token(10) * 10 == counter.get_total_flops() + 6 * norms * 10


def test_the_head_is_the_embedding_and_counts_once():
    net = GPT(**TINY)
    assert net.lm_head.weight is net.transformer.wte.weight
    names = [name for name, _ in net.named_parameters()]
    assert names[0] == "transformer.wte.weight" and "lm_head.weight" not in names
    assert "lm_head.weight" in net.state_dict()
    net(tokens()).sum().backward()
    assert net.lm_head.weight.grad is net.transformer.wte.weight.grad is not None


WIDE = {"vocab_size": 400, "block_size": 60, "depth": 3, "heads": 4, "dim": 80, "bias": True}


def assert_initial(values: dict[str, torch.Tensor]) -> None:
    """Means and standard deviations of GPT-2, each to five of its own standard errors."""
    assert len(values) == 2 + 3 * 12 + 2
    for name, value in values.items():
        if value.ndim == 1:
            start = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
            assert torch.equal(value, torch.full_like(value, start)), name
            continue
        expected = 0.02 / math.sqrt(6) if name.endswith("c_proj.weight") else 0.02
        assert abs(value.std() / expected - 1) < 5 / math.sqrt(2 * value.numel()), name
        assert abs(value.mean()) < 5 * expected / math.sqrt(value.numel()), name


def test_initial_values():
    assert_initial(dict(GPT(**WIDE).named_parameters()))


def test_fresh_values_are_initial_values():
    """Targets of `FullReset(fresh_seed=0)` and shrink-and-perturb; the tied weight keeps the draw of the head."""
    net = GPT(**WIDE)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(7.0)
    drawn = fresh_values(net, seed=1)
    assert not_resettable(net) == []
    assert_initial(drawn)
    assert all((parameter == 7.0).all() for parameter in net.parameters())
    torch.manual_seed(1)
    for (name, parameter), value in zip(GPT(**WIDE).named_parameters(), drawn.values(), strict=True):
        assert torch.equal(parameter, value), name  # as in a newly built net


# --- Hugging Face ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("bias", [False, True])
def test_it_gives_the_logits_of_hugging_face(bias, dtype, near):
    """Names are the same; Conv1D stores weights (in, out). New biases are 0."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 13, "n_positions": 10, "n_layer": 2, "n_head": 3, "n_embd": 12}
    ends = {"bos_token_id": None, "eos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends, activation_function="gelu"))
    net = perturbed(GPT(**TINY, bias=bias), dtype)
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    state = {key: w.T if key.endswith(turned) else w for key, w in net.state_dict().items()}
    missing = model.load_state_dict(state, strict=bias).missing_keys
    assert all(key.endswith(".bias") for key in missing)
    batch = tokens()
    torch.testing.assert_close(model.to(dtype).eval()(batch).logits, net(batch), rtol=near, atol=near)


# --- selections -------------------------------------------------------------------------------------------------------


MATRICES = ["attn.c_attn.weight[q]", "attn.c_attn.weight[k]", "attn.c_attn.weight[v]", "attn.c_proj.weight"]
MATRICES += ["mlp.c_fc.weight", "mlp.c_proj.weight"]


@pytest.mark.parametrize("preset", ["gpt", "auto"])
def test_the_preset_for_gpt_takes_every_matrix_once(preset):
    net = GPT(**TINY)
    selection = Weights(preset=preset).select(net)
    assert [view.name for view in selection] == [f"{b}.{name}" for b in BLOCKS for name in MATRICES] + [
        "lm_head.weight"
    ]
    shapes = {view.name.removeprefix(f"{BLOCKS[0]}."): view.shape for view in selection}
    assert [shapes[name] for name in MATRICES] == [(12, 12)] * 4 + [(48, 12), (12, 48)]
    assert selection.rows[-1].reason == "taken (tied with transformer.wte.weight)"
    x = torch.randn(5, 12)
    for part, output in zip(selection[:3], net.transformer.h[0].attn.c_attn(x).chunk(3, dim=1), strict=True):
        torch.testing.assert_close(x @ part.read().T, output)


def test_the_preset_for_attention_takes_queries_and_keys():
    assert [view.name for view in Weights(preset="vit").select(GPT(**TINY))] == [
        f"{block}.{name}" for block in BLOCKS for name in MATRICES[:2]
    ]


def test_hidden_units_are_those_of_the_mlps():
    net = GPT(**TINY, bias=True)
    units = HiddenUnits().select(net, lambda: net(tokens()))
    assert [unit.name for unit in units] == [f"{block}.mlp.c_fc" for block in BLOCKS]
