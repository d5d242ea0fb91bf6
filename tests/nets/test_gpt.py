"""`GPT`: its formula, sizes and initial values, Hugging Face's GPT-2, and the methods on it."""

import json
import math
import socket
import subprocess
import sys

import lightning.pytorch as pl
import pytest
import reference
import torch
from small_training import GrowingData, fitted, snapshots_of
from tolerances import assert_near
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import FIRECallback, FullReset, HiddenUnits, ShrinkAndPerturb, Weights
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


# --- the formula -----------------------------------------------------------------------------------------------------


def slow_gpt(net: GPT, sequence: list[int], heads: int, approximate: str) -> torch.Tensor:
    """Logits of one sequence, by loops over heads and positions, with the mask written out, in float64."""
    w = {name: tensor.double() for name, tensor in net.state_dict().items()}

    def norm(x, name):
        return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w.get(f"{name}.bias"), eps=1e-5)

    def affine(x, name):
        return torch.einsum("oi,ti->to", w[f"{name}.weight"], x) + w.get(f"{name}.bias", 0.0)

    embedding = w["transformer.wte.weight"]
    x = torch.stack([embedding[token] + w["transformer.wpe.weight"][place] for place, token in enumerate(sequence)])
    length, dim = x.shape
    width = dim // heads
    for block in BLOCKS:
        fused = affine(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn")
        mixed = torch.zeros(length, dim, dtype=torch.float64)
        for head in range(heads):
            q, k, v = (fused[:, part * dim + head * width : part * dim + (head + 1) * width] for part in range(3))
            scores = torch.full((length, length), -math.inf, dtype=torch.float64)
            for late in range(length):
                for early in range(late + 1):
                    scores[late, early] = sum(q[late] * k[early]) / math.sqrt(width)
            mixed[:, head * width : (head + 1) * width] = scores.softmax(1) @ v
        x = x + affine(mixed, f"{block}.attn.c_proj")
        hidden = affine(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        x = x + affine(gelu(hidden, approximate=approximate), f"{block}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ embedding.T


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("name", "approximate"), [("exact", "none"), ("tanh", "tanh")])
def test_it_equals_a_slow_one(bias, name, approximate):
    net = perturbed(GPT(**TINY, bias=bias, gelu=name))
    batch = tokens(2, 7)
    expected = torch.stack([slow_gpt(net, sequence.tolist(), 3, approximate) for sequence in batch])
    torch.testing.assert_close(net(batch), expected, rtol=1e-10, atol=1e-10)


def test_a_later_token_changes_no_earlier_logit():
    net = perturbed(GPT(**TINY))
    batch = tokens()
    for place in range(10):
        other = batch.clone()
        other[:, place] = (other[:, place] + 1) % 13
        change = (net(other) - net(batch)).abs().amax((0, 2))
        assert (change[:place] == 0).all()
        assert (change[place:] > 1e-6).all()


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
        ({"gelu": "none"}, r"`gelu` must be one of \['exact', 'tanh'\], got 'none'"),
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


@pytest.fixture
def hf(monkeypatch):
    """The package transformers, without access to the network."""
    transformers = pytest.importorskip("transformers")

    def no_network(*_, **__):
        raise AssertionError("a test has asked the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    return transformers


def huggingface(hf, dtype=torch.float64, kind="GPT2LMHeadModel", **options):
    """A small random GPT-2."""
    sizes = {"vocab_size": 13, "n_positions": 10, "n_layer": 2, "n_head": 3, "n_embd": 12}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return perturbed(getattr(hf, kind)(hf.GPT2Config(**{**sizes, **ends, **options})), dtype)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh"])
def test_from_hugging_face_it_gives_the_same_logits(hf, activation, dtype, near):
    model = huggingface(hf, dtype, activation_function=activation)
    net = GPT.from_huggingface(model)
    batch = tokens()
    assert net.training and net.dropout == 0.1  # of the config
    logits = net.eval()(batch)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits, model(batch).logits, rtol=near, atol=near)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("name", "activation"), [("exact", "gelu"), ("tanh", "gelu_new")])
def test_to_hugging_face_it_gives_the_same_logits(hf, bias, name, activation, dtype, near):
    net = perturbed(GPT(**TINY, bias=bias, gelu=name, dropout=0.2), dtype)
    model = net.to_huggingface()
    config = model.config
    assert (config.activation_function, config.n_head) == (activation, 3)
    assert (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop) == (0.2, 0.2, 0.2)
    assert not model.training and net.train().to_huggingface().training
    assert model.lm_head.weight is model.transformer.wte.weight
    batch = tokens()
    logits = model(batch).logits
    assert logits.dtype == dtype
    torch.testing.assert_close(logits, net.eval()(batch), rtol=near, atol=near)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_there_and_back_every_bit_is_the_same(hf, dtype):
    net = perturbed(GPT(**TINY, bias=True), dtype)
    back = GPT.from_huggingface(net.to_huggingface()).state_dict()
    assert list(back) == list(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert back[name].dtype == dtype and torch.equal(back[name], tensor), name
    model = huggingface(hf, dtype)
    again = GPT.from_huggingface(model).to_huggingface().state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again[name], tensor), name
    assert again.keys() == model.state_dict().keys()


def test_a_net_without_biases_comes_back_with_zeros(hf):
    net = perturbed(GPT(**TINY))
    back = GPT.from_huggingface(net.to_huggingface())
    biases = {name for name in back.state_dict() if name.endswith(".bias")}
    assert len(biases) == 2 * 6 + 1
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, torch.zeros_like(tensor) if name in biases else net.state_dict()[name]), name


def test_the_weights_are_copies_and_the_random_state_stays(hf):
    net = perturbed(GPT(**TINY, bias=True))
    before, state = {name: t.clone() for name, t in net.state_dict().items()}, torch.get_rng_state()
    model = net.to_huggingface()
    assert torch.equal(torch.get_rng_state(), state)
    back = GPT.from_huggingface(model)
    with torch.no_grad():
        for parameter in back.parameters():
            parameter.fill_(7.0)
        assert not any((parameter == 7.0).any() for parameter in model.parameters())
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_every_source_gives_the_same_net(hf, tmp_path):
    model = huggingface(hf, torch.float32)
    model.save_pretrained(tmp_path)
    state, inner = model.state_dict(), model.transformer.state_dict()
    masks = {"h.0.attn.bias": torch.ones(1, 1, 10, 10), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    expected = model(torch.tensor([[1, 2, 3]])).logits
    for source, heads in [
        (model, None),
        (model.transformer, None),
        (str(tmp_path), None),
        (tmp_path, 3),
        (state, 3),
        (inner, 3),
        ({**inner, **masks}, 3),  # as files of old releases
        ({name: tensor for name, tensor in state.items() if name != "lm_head.weight"}, 3),
    ]:
        net = GPT.from_huggingface(source, heads=heads, dropout=0.3)
        assert (net.dropout, net.gelu, net.heads) == (0.3, "tanh", 3)
        assert net.lm_head.weight is net.transformer.wte.weight
        torch.testing.assert_close(net.eval()(torch.tensor([[1, 2, 3]])), expected, rtol=1e-5, atol=1e-5)
    assert GPT.from_huggingface(state, heads=3).dropout == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale_attn_weights": False}, "whose scale_attn_weights is not True, got False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "whose scale_attn_by_inverse_layer_idx is not False, got True"),
        ({"add_cross_attention": True}, "whose add_cross_attention is not False, got True"),
        ({"tie_word_embeddings": False}, "whose tie_word_embeddings is not True, got False"),
        ({"layer_norm_epsilon": 1e-6}, "whose layer_norm_epsilon is not 1e-05, got 1e-06"),
        ({"n_inner": 47}, "whose n_inner is not 4 · n_embd, got 47"),
        ({"activation_function": "relu"}, "whose activation_function is not in .*, got 'relu'"),
        ({"attn_pdrop": 0.0}, r"GPT has one probability of dropout, got \{'embd_pdrop': 0.1, 'attn_pdrop': 0.0"),
    ],
)
def test_unsupported_settings_are_an_error(hf, options, message):
    with pytest.raises(ValueError, match=message):
        GPT.from_huggingface(huggingface(hf, **options))


def test_settings_that_change_nothing_are_accepted(hf):
    model = huggingface(hf, n_inner=48, reorder_and_upcast_attn=True, attn_pdrop=0.0)
    net = GPT.from_huggingface(model, dropout=0.0).eval()
    batch = tokens()
    torch.testing.assert_close(net(batch), model(batch).logits, rtol=1e-12, atol=1e-12)


def test_other_sources_are_an_error(hf):
    model = huggingface(hf, torch.float32)
    state = model.state_dict()

    def without(name):
        return {key: tensor for key, tensor in state.items() if key != name}

    for source, heads, message in [
        (state, None, "`heads` must be given with a state dict"),
        (state, 5, "`dim` must be divisible by `heads`, got 12 and 5"),
        (model, 4, "`heads` must be those of the model, 3, or None, got 4"),
        (nn.Linear(2, 2), None, "`source` must be a GPT-2 of Hugging Face, got a Linear"),
        (GPT(**TINY), None, "`source` must be a GPT-2 of Hugging Face, got a GPT"),
        (GPT(**TINY).state_dict(), 3, r"must store its weights \(in, out\), .* got \(36, 12\)"),
        (huggingface(hf, kind="GPT2ForSequenceClassification"), None, r"(?s)not a GPT-2: .*Unexpected .*score\.weight"),
        ({"model": state}, 3, "`source` is not a GPT-2: it has no transformer.wte.weight, transformer.wpe.weight"),
        (without("transformer.h.1.mlp.c_fc.bias"), 3, r"(?s)not a GPT-2: .*Missing .*h\.1\.mlp\.c_fc\.bias"),
        ({**state, "transformer.ln_f.bias": torch.zeros(5)}, 3, r"(?s)not a GPT-2: .*size mismatch .*ln_f\.bias"),
        ({**state, "lm_head.weight": torch.zeros(13, 12)}, 3, "lm_head.weight is not tied to transformer.wte.weight"),
        (7, None, "`source` must be a model, a state dict or a path, got int"),
    ]:
        with pytest.raises(ValueError, match=message):
            GPT.from_huggingface(source, heads=heads)


def test_other_folders_are_an_error(hf, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must be a folder .* got 'gpt2'; nothing is downloaded"):
        GPT.from_huggingface("gpt2")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="must hold a model of type 'gpt2', got 'bert'"):
        GPT.from_huggingface(tmp_path)
    huggingface(hf, torch.float32).save_pretrained(tmp_path)
    state = huggingface(hf, torch.float32).state_dict()
    from safetensors.torch import save_file

    del state["transformer.h.0.ln_1.weight"], state["lm_head.weight"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"has no transformer\.h\.0\.ln_1\.weight$"):
        GPT.from_huggingface(tmp_path)


def test_without_transformers(hf, monkeypatch, tmp_path):
    model = huggingface(hf)
    monkeypatch.setitem(sys.modules, "transformers", None)
    GPT.from_huggingface(model)
    for exchange in (GPT(**TINY).to_huggingface, lambda: GPT.from_huggingface(tmp_path)):
        with pytest.raises(ImportError, match=r"needs transformers: pip install 'lightning-fire\[huggingface\]'"):
            exchange()


@pytest.mark.slow
def test_it_is_imported_only_when_needed():
    code = "import sys, lightning_fire.nets; print('transformers' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


# --- the methods -----------------------------------------------------------------------------------------------------


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
    assert selection.rows[0].reason == "taken (tied with transformer.wte.weight)"
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


class LanguageModel(pl.LightningModule):
    """A user's module: predicts each next token."""

    def __init__(self):
        super().__init__()
        self.net = GPT(**TINY)

    def training_step(self, batch, batch_idx):
        (text,) = batch
        return cross_entropy(self.net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Texts(GrowingData):
    """Random tokens, more in each chunk."""

    def train_dataloader(self):
        size = 8 * (self.chunk + 1)
        return DataLoader(TensorDataset(torch.randint(0, 13, (size, 11))), batch_size=4)


@pytest.mark.parametrize("steps", [10, "exact"])
def test_fire_orthogonalises_each_matrix_and_nothing_else(steps):
    callback = snapshots_of(FIRECallback)(where=Weights(preset="gpt"), steps=steps)
    module = fitted(callback, module=LanguageModel(), data=Texts())
    assert len(callback.seen) == 2
    for before, after, values in callback.seen:
        old, new = LanguageModel(), LanguageModel()
        old.load_state_dict(before)
        new.load_state_dict(after)
        views = dict(zip(Weights("gpt").select(old), Weights("gpt").select(new), strict=True))
        assert len(views) == 13
        for view, result in views.items():
            assert_near(result.read(), reference.fire(view.read(), steps=steps))
            if steps == "exact":
                values_of = torch.linalg.svdvals(result.read().double())
                assert values_of.max() / values_of.min() - 1 < 1e-5, view.name
        assert values["fire/dfi_normalized_after"] < values["fire/dfi_normalized_before"]
        same = [name for name in before if torch.equal(before[name], after[name])]
        assert same == [name for name in before if "ln_" in name or "wpe" in name]
        assert after["net.lm_head.weight"].equal(after["net.transformer.wte.weight"])
    assert all(parameter.isfinite().all() for parameter in module.parameters())
    assert module.net.lm_head.weight is module.net.transformer.wte.weight


@pytest.mark.parametrize("method", [FullReset, ShrinkAndPerturb])
def test_methods_that_re_initialize_use_the_initial_distribution(method):
    callback = snapshots_of(method)(fresh_seed=3)
    module = fitted(callback, module=LanguageModel(), data=Texts())
    assert len(callback.seen) == 2
    share = 0.8 if method is ShrinkAndPerturb else 1.0
    for event, (before, after, _) in enumerate(callback.seen, start=1):
        drawn = fresh_values(module, callback.fresh_seed + event)
        for name, value in drawn.items():
            torch.testing.assert_close(after[name], (1 - share) * before[name] + share * value, rtol=1e-5, atol=1e-7)
        assert after["net.lm_head.weight"].equal(after["net.transformer.wte.weight"])
