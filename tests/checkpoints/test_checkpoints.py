"""`lightning-fire diagnose` and `reinit`: numbers against slow versions, and the bits of what is left alone."""

import itertools
import json
import math
import re
from pathlib import Path

import lightning.pytorch as pl
import pytest
import reference
import torch
import torchvision
from checkpoint_files import TAKEN, draw, error_of, header_of, load, raw, reinit, small_state, stored, write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import PlainData, PlainModule, resumed_from, trainer
from tolerances import assert_near
from torch import nn

from lightning_fire import Weights
from lightning_fire.checkpoints import Stored, diagnosis_of, select_weights
from lightning_fire.checkpoints.diagnosis import dfi_of_new, mean_ratio
from lightning_fire.checkpoints.weights import by_tensor
from lightning_fire.cli import main
from lightning_fire.experiments.compare import parser
from lightning_fire.functional import dfi_normalized, fire
from lightning_fire.nets import ResNet

# selection of weights by name and shape


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "reason"),
    [
        ("layer.fc.weight", (4, 3), "F32", "taken"),
        ("conv.weight", (4, 3, 3, 3), "BF16", "taken"),
        ("attn.in_proj_weight", (12, 4), "F32", "taken"),
        ("model._orig_mod.fc.weight", (4, 3), "F32", "taken"),
        ("weight", (4, 3), "F32", "taken"),
        ("patch_embed.proj.weight", (8, 3, 4, 4), "F32", "taken"),  # a convolution that cuts patches
        ("normals_head.weight", (4, 3), "F32", "taken"),
        ("embed_out.weight", (9, 4), "F32", "taken"),  # the output layer of GPT-NeoX
        ("embeds.proj.weight", (8, 48), "F32", "taken"),  # of patches, in timm's NaFlexViT
        ("encoder.embedding_hidden_mapping_in.weight", (8, 4), "F32", "taken"),  # of ALBERT
        ("value_embedding.value_projection.weight", (8, 15), "F32", "taken"),  # of a time series transformer
        ("fc.bias", (4,), "F32", "not a matrix"),
        ("fc.weight", (4, 3), "F8_E4M3", "quantized or complex (F8_E4M3)"),
        ("fc.weight", (4, 3), "I8", "quantized or complex (I8)"),
        ("fc.weight", (0, 3), "F32", "empty"),
        ("fc.parametrizations.weight.original1", (4, 3), "F32", "part of a parametrized weight"),
        ("fc.weight_v", (4, 3), "F32", "part of a parametrized weight"),
        ("rnn.weight_ih_l0", (4, 3), "F32", "not named as the weight of a layer"),
        ("relative_position_bias_table", (4, 3), "F32", "token or position embedding"),
        ("cls_token", (1, 1, 8), "F32", "token or position embedding"),
        ("pos_embed", (1, 5, 8), "F32", "token or position embedding"),
        ("norm1.weight", (4, 3, 3), "F32", "normalization"),
        ("ln_f.weight", (4, 3), "F32", "normalization"),
        (
            "conv.weight",
            (8, 1, 3, 3),
            "F32",
            "depthwise convolution, or one input channel: single columns",
        ),
        ("up.deconv.weight", (8, 4, 2, 2), "F32", "transposed convolution, which may be grouped"),
        ("block_sparse_moe.input_linear.weight", (4, 8, 6), "F32", "stack of experts in an order that is not known"),
        (
            "gpt.query_key_value.weight",
            (12, 4),
            "F32",
            "fused query-key-value in an interleaved order, which config.json shows: give --config",
        ),
        *(
            (name, (9, 4), "F32", "embedding")
            for name in (
                "wte.weight",
                "transformer.wpe.weight",
                "model.embed_tokens.weight",
                "embeddings.word_embeddings.weight",
                "embeddings.token_type_embeddings.weight",
                "tok_embeddings.weight",
                "tok_emb.0.weight",
                "encoder.relative_attention_bias.weight",
                "position.weight",
                "shared.weight",
            )
        ),
    ],
)
def test_reasons(name, shape, dtype, reason):
    always = Stored("other.weight", (2, 2), "F32")
    selection = select_weights([Stored(name, shape, dtype), always], Weights("cnn"))
    assert selection.rows[0].reason == reason
    assert (name in by_tensor(selection)) == (reason == "taken")


def models() -> dict[str, nn.Module]:
    import timm
    import torchvision
    import transformers as hf

    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    return {
        "gpt2": hf.GPT2Model(hf.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=8)),
        "bert": hf.BertModel(hf.BertConfig(**tiny, vocab_size=11)),
        "llama": hf.LlamaModel(hf.LlamaConfig(**tiny, vocab_size=11, num_key_value_heads=1)),
        "hf_vit": hf.ViTModel(hf.ViTConfig(**tiny, image_size=8, patch_size=4)),
        "timm_vit": timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=12, img_size=32),
        "torchvision_vit": torchvision.models.VisionTransformer(32, 16, 1, 2, 8, 12),
        "resnet": ResNet(in_channels=3, widths=[4, 8], blocks=[1, 1], num_classes=3),
        "t5": hf.T5EncoderModel(hf.T5Config(d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, vocab_size=11)),
    }


@pytest.mark.parametrize("preset", ["auto", "cnn", "vit", "gpt"])
def test_the_same_weights_are_taken_from_the_file_as_from_the_module(preset):
    for name, model in models().items():
        if preset == "vit" and name == "resnet":
            continue
        of_module, of_file = Weights(preset).select(model), select_weights(stored(model.state_dict()), Weights(preset))
        assert {(v.name, v.shape, v.layout, v.rows) for v in of_file} == {
            (v.name, v.shape, v.layout, v.rows) for v in of_module
        }, name


def test_layout_of_c_attn_is_that_of_the_other_layers():
    shapes = {"c_attn": (24, 8), "c_proj": (8, 8), "mlp.c_fc": (32, 8), "mlp.c_proj": (8, 32), "lm": (5, 8)}
    linear = [Stored(f"{name}.weight", shape, "F32") for name, shape in shapes.items()]
    conv1d = [Stored(s.name, s.shape if s.name == "lm.weight" else s.shape[::-1], "F32") for s in linear]
    for tensors, layout in ((linear, "out_in"), (conv1d, "in_out")):
        selection = select_weights(tensors, Weights("gpt"))
        assert [view.shape for view in selection] == [(8, 8)] * 4 + [(32, 8), (8, 32), (5, 8)]
        assert {view.layout for view in selection if view.name != "lm.weight"} == {layout}
        assert selection[-1].layout == "out_in"


def test_packed_keys_of_fewer_heads_are_taken_as_one_matrix():
    tensors = [Stored("attn.qkv_proj.weight", (16, 8), "F32")]
    selection = select_weights(tensors, Weights("gpt"))
    assert [(view.name, view.shape) for view in selection] == [("attn.qkv_proj.weight", (16, 8))]
    assert selection.rows[0].reason.startswith("taken (as one matrix: fused query-key-value of width 16")
    with pytest.raises(ValueError, match=r"Weights\(preset='auto'.*: 1 not in preset vit"):
        select_weights(tensors, Weights())


@pytest.mark.parametrize(
    ("include", "taken"),
    [
        (None, ["model.fc.weight"]),
        (["model"], ["model.fc.weight"]),  # matches all names, and names none
        (["weight"], ["model.fc.weight"]),
        ([".", "w"], ["model.fc.weight"]),
        (["wte"], ["model.wte.weight"]),
        (["lm_head"], ["model.wte.weight"]),
        (["model.wte", "fc"], ["model.wte.weight", "model.fc.weight"]),
    ],
)
def test_an_embedding_is_taken_only_where_a_pattern_names_it(include, taken):
    table = Stored("model.wte.weight", (9, 4), "F32", aliases=("lm_head.weight",))
    selection = select_weights([table, Stored("model.fc.weight", (4, 4), "F32")], Weights(include=include))
    assert list(by_tensor(selection)) == taken
    assert "tied with lm_head.weight" in selection.rows[0].reason


def test_a_convolution_of_one_input_channel_is_taken_where_it_is_named():
    tensors = [Stored("stem.0.weight", (8, 1, 3, 3), "F32"), Stored("fc.weight", (4, 8), "F32")]
    assert list(by_tensor(select_weights(tensors, Weights(include=["."])))) == ["fc.weight"]
    assert list(by_tensor(select_weights(tensors, Weights(include=[".", "stem.0"])))) == ["stem.0.weight", "fc.weight"]


# measures


def slow_diagnosis(weight: torch.Tensor, **options) -> dict[str, float]:
    taps = list(itertools.product(*(range(size) for size in weight.shape[2:])))
    matrices = [weight[(slice(None), slice(None), *tap)].double() for tap in taps]
    sigmas = [torch.linalg.svdvals(matrix) for matrix in matrices]
    error = (weight.double() - reference.fire(weight, **options)).square().sum()
    return {
        "dfi_normalized": sum(reference.dfi_normalized(matrix) for matrix in matrices).item() / len(taps),
        "condition": max(float(sigma[0] / sigma[-1]) for sigma in sigmas),
        "stable_rank": sum(float(m.square().sum() / s[0] ** 2) for m, s in zip(matrices, sigmas, strict=True))
        / len(taps),
        "norm": weight.double().square().sum().sqrt().item(),
        "sfe_normalized": (error / weight.double().square().sum()).item(),
    }


OPTIONS = [
    {},
    {"steps": 5, "coefficients": "quintic"},
    {"steps": 3, "coefficients": "muon", "scale": "none"},
    {"steps": "exact"},
    {"steps": 4, "scale": "procrustes"},
    {"steps": "exact", "scale": "procrustes"},
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(7, 7), (5, 9), (9, 5), (6, 4, 3, 3), (4, 6, 2)], ids=str)
def test_measures_equal_slow_ones(shape, options, dtype):
    weight = draw(*shape, dtype=dtype)
    measured = diagnosis_of(weight, **options)
    for measure, value in slow_diagnosis(weight, **options).items():
        assert getattr(measured, measure) == pytest.approx(value, rel=1e-9), measure
    sigma = torch.linalg.svdvals(weight.double().flatten(2).movedim(-1, 0) if weight.ndim > 2 else weight.double())
    assert measured.quantiles[0] == pytest.approx(sigma.min().item(), rel=1e-9)
    assert measured.quantiles[-1] == pytest.approx(sigma.max().item(), rel=1e-9)
    if sigma.numel() % 2:
        assert measured.quantiles[2] == pytest.approx(sigma.median().item(), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**16), st.sampled_from([1e-20, 1.0, 1e20]))
def test_condition_and_stable_rank_are_scale_invariant_and_bounded(m, n, seed, factor):
    weight = draw(m, n, seed=seed, dtype=torch.float64)
    one, other = diagnosis_of(weight), diagnosis_of(weight * factor)
    assert 1 - 1e-12 <= one.stable_rank <= min(m, n) + 1e-9
    assert one.condition >= 1
    assert other.stable_rank == pytest.approx(one.stable_rank, rel=1e-9)
    assert other.condition == pytest.approx(one.condition, rel=1e-6)
    assert other.dfi_normalized == pytest.approx(one.dfi_normalized, rel=1e-6, abs=1e-9)


def test_measures_of_special_matrices():
    isometry = diagnosis_of(3 * torch.eye(4, 7), steps="exact", scale="procrustes")
    assert (isometry.dfi_normalized, isometry.condition, isometry.stable_rank, isometry.norm) == (0, 1, 4, 6)
    assert isometry.sfe_normalized == 0
    zero = diagnosis_of(torch.zeros(3, 3))
    assert (zero.dfi_normalized, zero.condition, zero.stable_rank, zero.sfe_normalized) == (1, float("inf"), 0, 0)
    assert diagnosis_of(torch.ones(3, 4)).condition == float("inf")  # rank one: the rest is rounding
    for bad in (math.nan, math.inf):
        measured = diagnosis_of(torch.tensor([[1.0, bad], [0.0, 1.0]]))
        assert {measured.dfi_normalized, measured.condition, measured.norm, *measured.quantiles} == {math.inf}


def test_diagnose_prints_and_writes(tmp_path, capsys):
    state = small_state() | {"broken.weight": torch.full((2, 2), float("nan"))}
    path = write_safetensors(tmp_path / "model.safetensors", state)
    rows = main(["diagnose", str(path), "--sort", "condition", "--steps", "5", "--json", str(tmp_path / "d.json")])
    text = capsys.readouterr().out
    assert f"{path}: safetensors file, 8 tensors" in text
    assert next(row.name for row in rows) == "broken.weight"
    known = rows[1:]
    assert {row.name for row in known} == set(TAKEN)
    conditions = [row.condition for row in known]
    assert conditions == sorted(conditions, reverse=True)
    counted = next(line for line in text.splitlines() if "weight matrices: mean DfI" in line)
    assert f" (of {len(known)} of {len(rows)}), SFE/‖W‖² of these together" in counted
    assert counted.endswith("; NaN or Inf in broken.weight")
    line = next(line.split() for line in text.splitlines() if line.startswith("fc.weight"))
    slow = slow_diagnosis(state["fc.weight"], steps=5)
    assert line[:2] == ["fc.weight", "5×6"]
    dfi, *others = slow.values()
    expected = [dfi, dfi / dfi_of_new((5, 6)), *others]
    assert [float(cell) for cell in line[2:]] == pytest.approx(expected, rel=1e-3)
    assert "broken.weight  2×2" in text and "NaN or Inf" in text
    assert "not taken: 2 not a matrix (fc.bias, norm.weight); " not in text  # three of them: the counter as well
    assert "3 not a matrix (fc.bias, norm.num_batches_tracked and 1 more)" in text
    assert "1 embedding (embed.weight)" in text
    content = json.loads((tmp_path / "d.json").read_text())
    entry = next(entry for entry in content["weights"] if entry["name"] == "fc.weight")
    assert {key: entry[key] for key in slow} == pytest.approx(slow, rel=1e-9)
    assert content["weights"][0] == {
        "name": "broken.weight",
        "shape": [2, 2],
        "finite": False,
        **dict.fromkeys(slow),
        "dfi_reference": dfi_of_new((2, 2)),
        "dfi_ratio": None,
        "singular_values": dict.fromkeys(("min", "10%", "median", "90%", "max")),
    }
    assert content["fire"] == {"steps": 5, "coefficients": "cubic", "scale": "paper"}
    assert {"name": "embed.weight", "shape": [9, 4], "reason": "embedding"} in content["not_taken"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.json", "model.safetensors"]


def test_diagnose_prints_json(tmp_path, capsys):
    state = small_state() | {"broken.weight": torch.full((2, 2), float("nan")), "\x1b[2Jbad.weight": draw(3, 3)}
    path = tmp_path / "model.pt"
    torch.save(state, path)
    main(["diagnose", str(path), "--sort", "norm", "--json", str(tmp_path / "d.json")])
    capsys.readouterr()
    rows = main(["diagnose", str(path), "--sort", "norm", "--json"])
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == json.loads((tmp_path / "d.json").read_text())["weights"]
    assert [entry["name"] for entry in json.loads(text)] == [row.name for row in rows]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.json", "model.pt"]


def test_diagnose_lists_every_tensor_on_request(tmp_path, capsys):
    path = write_safetensors(tmp_path / "model.safetensors", small_state())
    main(["diagnose", str(path), "--all"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["embed.weight", "9×4", "9×4", "embedding"] for line in lines)
    assert "3 of 3 weight matrices taken, preset cnn" in lines


# comparison with new weights or a reference


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (12, 12), (4, 30, 3)])
def test_dfi_of_new_weights_is_the_mean_over_many_draws(shape):
    draws = torch.randn(4000, *shape[:2], dtype=torch.float64)
    values = dfi_normalized(draws)
    error = values.std() / len(draws) ** 0.5
    assert abs(values.mean() - dfi_of_new(shape)) < 4 * error


def test_the_mean_ratio_is_a_geometric_mean_of_what_is_known():
    assert mean_ratio([2.0, 8.0, math.nan, math.inf]) == pytest.approx(4.0)
    assert mean_ratio([0.0, 1.0]) == pytest.approx(0.1)  # an exact isometry counts as 0.01
    assert math.isnan(mean_ratio([math.nan]))


def test_an_isometry_is_no_reference(tmp_path, capsys):
    path = write_safetensors(tmp_path / "model.safetensors", {"a.weight": draw(5, 5)})
    isometry = write_safetensors(tmp_path / "isometry.safetensors", {"a.weight": torch.eye(5)})
    (row,) = main(["diagnose", str(path), "--reference", str(isometry)])
    assert math.isnan(row.dfi_ratio)
    assert "DfI has no reference: each weight is an isometry there, or not finite" in capsys.readouterr().out


def test_weights_of_one_row_are_not_taken(tmp_path):
    path = write_safetensors(tmp_path / "model.safetensors", {"a.weight": torch.ones(1, 5)})
    with pytest.raises(SystemExit, match=r"1 one row or column: only its length would change \(a.weight\)"):
        main(["diagnose", str(path)])


@pytest.mark.parametrize("weight", [torch.eye(12), draw(12, 12), torch.ones(12, 12)], ids=["0.01", "1", "11"])
def test_diagnose_does_not_conclude(tmp_path, capsys, weight):
    """Whatever the ratio, the text about it is the same, and names the command that decides."""
    path = write_safetensors(tmp_path / "model.safetensors", {"fc.weight": weight})
    (row,) = main(["diagnose", str(path)])
    *_, first, second, third, fourth, fifth, command = capsys.readouterr().out.splitlines()
    assert first == f"DfI × {max(row.dfi_ratio, 0.01):.3g} that of new weights (geometric mean)"
    about = f"{second} {third} {fourth} {fifth}"
    assert "follows the length of training" in about and "does not show whether" in about
    _, _, recipe, *words = command.split()
    assert recipe == "RECIPE"
    options = parser().parse_args(["quick_start", *words])
    assert (options.methods, options.seeds) == (["fire"], 5)  # vanilla and scratch are added


@pytest.mark.parametrize("steps", [[], ["--steps", "5"], ["--steps", "exact"]], ids=["default", "5", "exact"])
def test_the_total_of_both_commands_is_of_the_same_steps(tmp_path, capsys, steps):
    path = write_safetensors(tmp_path / "model.safetensors", {"fc.weight": draw(12, 12)})
    (row,) = main(["diagnose", str(path), *steps])
    tally = reinit(path, "-o", tmp_path / "out.safetensors", *steps)
    assert row.sfe_normalized == pytest.approx(tally.sfe_normalized, rel=1e-4)
    printed = capsys.readouterr().out
    totals = re.findall(r"SFE/‖W‖² of all together ([\d.]+) \((--steps \w+)\)", printed)
    assert [words for _, words in totals] == [" ".join(steps or ["--steps", "10"])] * 2
    assert float(totals[0][0]) == pytest.approx(float(totals[1][0]), abs=1e-4)


def test_diagnose_compares_with_a_reference(tmp_path, capsys):
    """A weight with DfI 0.36 and one of 0.64, against a reference of 0.04 and 0.16: × 9 and × 4, together × 6."""

    def with_dfi(*values):  # of a 2×2 matrix with singular values 1 ± √DfI, squared
        squared = [torch.tensor([1 - value**0.5, 1 + value**0.5]) for value in values]
        return {name: torch.diag(sigma.sqrt()) for name, sigma in zip(("a.weight", "b.weight"), squared, strict=True)}

    path = write_safetensors(tmp_path / "model.safetensors", with_dfi(0.36, 0.64))
    earlier = write_safetensors(tmp_path / "earlier.safetensors", with_dfi(0.04, 0.16))
    rows = main(["diagnose", str(path), "--reference", str(earlier), "--json", str(tmp_path / "d.json")])
    assert [row.dfi_ratio for row in rows] == pytest.approx([9.0, 4.0], rel=1e-5)
    text = capsys.readouterr().out
    assert "DfI × 6 that of the reference (geometric mean)" in text
    content = json.loads((tmp_path / "d.json").read_text())
    assert content["dfi_ratio"] == pytest.approx(6.0, rel=1e-5)
    assert [entry["dfi_reference"] for entry in content["weights"]] == pytest.approx([0.04, 0.16], rel=1e-5)
    other = write_safetensors(tmp_path / "other.safetensors", {"a.weight": torch.eye(3), "b.weight": torch.eye(2)})
    with pytest.raises(SystemExit, match=r"other\.safetensors has no a\.weight of shape \(2, 2\)"):
        main(["diagnose", str(path), "--reference", str(other)])
    state = {**with_dfi(1, 1), "a.weight": torch.full((2, 2), math.nan)}
    broken = write_safetensors(tmp_path / "broken.safetensors", state)
    with pytest.raises(SystemExit, match=r"NaN or Inf in a\.weight of the reference"):
        main(["diagnose", str(path), "--reference", str(broken)])


# reinit of safetensors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"steps": "exact", "scale": "none"}, {"steps": 4, "coefficients": "quintic"}])
def test_reinit_is_fire_on_what_is_taken_and_leaves_every_other_bit(tmp_path, dtype, options):
    state = small_state(dtype)
    path = write_safetensors(tmp_path / "in.safetensors", state, {"format": "pt", "note": "é"})
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    tally = reinit(path, "-o", tmp_path / "out.safetensors", *words)
    new = load(tmp_path / "out.safetensors")
    assert header_of(tmp_path / "out.safetensors") == header_of(path)  # order, types, metadata
    for name, tensor in state.items():
        expected = fire(tensor, **options) if name in TAKEN else tensor
        assert raw(new[name]) == raw(expected), name
        if name in TAKEN:
            assert_near(new[name], reference.fire(tensor, **options), dtype)
    moved = sum((state[name].double() - new[name].double()).square().sum() for name in TAKEN)
    norm = sum(state[name].double().square().sum() for name in TAKEN)
    assert tally.sfe_normalized == pytest.approx((moved / norm).item(), rel=1e-5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.safetensors", "out.safetensors"]


def test_reinit_agrees_with_diagnose(tmp_path):
    path = write_safetensors(tmp_path / "in.safetensors", small_state(torch.float64))
    rows = main(["diagnose", str(path)])
    tally = reinit(path, "-o", tmp_path / "out.safetensors")
    norm = sum(row.norm**2 for row in rows)
    expected = sum(row.sfe_normalized * row.norm**2 for row in rows) / norm
    assert tally.sfe_normalized == pytest.approx(expected, rel=1e-9)


def test_conv1d_and_linear_files_come_out_transposed_equal(tmp_path):
    shapes = {"h.0.attn.c_attn": (24, 8), "h.0.attn.c_proj": (8, 8), "h.0.mlp.c_fc": (32, 8), "h.0.mlp.c_proj": (8, 32)}
    linear = {f"{name}.weight": draw(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    conv1d = {name: weight.T.contiguous() for name, weight in linear.items()}
    for name, state in (("linear", linear), ("conv1d", conv1d)):
        path = write_safetensors(tmp_path / f"{name}.safetensors", state)
        reinit(path, "-o", tmp_path / f"{name}_new.safetensors", "--preset", "gpt", "--steps", 5)
    a, b = load(tmp_path / "linear_new.safetensors"), load(tmp_path / "conv1d_new.safetensors")
    for name, weight in linear.items():
        assert_near(b[name].T, a[name])
        parts = weight.chunk(3) if "c_attn" in name else [weight]
        assert torch.equal(a[name], torch.cat([fire(part, steps=5) for part in parts]))


def test_only_the_parts_of_a_fused_projection_that_are_taken_change(tmp_path):
    weight = draw(24, 8)
    path = write_safetensors(tmp_path / "in.safetensors", {"attn.qkv.weight": weight, "fc.weight": draw(8, 8)})
    assert reinit(path, "-o", tmp_path / "out.safetensors").changed == 2  # queries and keys: preset auto
    new = load(tmp_path / "out.safetensors")
    q, k, v = weight.chunk(3)
    assert torch.equal(new["attn.qkv.weight"], torch.cat([fire(q), fire(k), v]))
    assert torch.equal(new["fc.weight"], draw(8, 8))
    reinit(path, "-o", tmp_path / "v.safetensors", "--preset", "gpt", "--include", r"\[v\]")
    assert torch.equal(load(tmp_path / "v.safetensors")["attn.qkv.weight"], torch.cat([q, k, fire(v)]))


def test_in_place_needs_force_and_leaves_one_file(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", small_state())
    before = path.read_bytes()
    assert "m.safetensors exists: --force replaces it" in error_of("reinit", path, "-o", path)
    assert path.read_bytes() == before
    path.chmod(0o640)
    reinit(path, "-o", path, "--force")
    assert torch.equal(load(path)["fc.weight"], fire(small_state()["fc.weight"]))
    assert path.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path):
    blob = write_safetensors(tmp_path / "blob.safetensors", small_state())
    before = blob.read_bytes()
    link = tmp_path / "m.safetensors"
    link.symlink_to(blob)
    reinit(link, "-o", link, "--force")
    assert blob.read_bytes() == before
    assert not link.is_symlink()
    assert torch.equal(load(link)["fc.weight"], fire(small_state()["fc.weight"]))


# pickles


@pytest.mark.parametrize("key", [None, "state_dict", "model"])
def test_pickles_keep_all_else(tmp_path, key):
    state = small_state()
    state["tied.weight"] = state["fc.weight"]
    content = state if key is None else {key: state, "epoch": 7, "extra": {"numbers": [1, 2.5, torch.ones(2)]}}
    torch.save(content, tmp_path / "in.pt")
    tally = reinit(tmp_path / "in.pt", "-o", tmp_path / "out.pt")
    new = torch.load(tmp_path / "out.pt", weights_only=True)
    assert tally.changed == 3
    if key is not None:
        assert list(new) == list(content)
        assert new["epoch"] == 7
        assert new["extra"]["numbers"][:2] == [1, 2.5]
        new = new[key]
    assert list(new) == list(state)
    for name, tensor in small_state().items():
        assert raw(new[name]) == raw(fire(tensor) if name in TAKEN else tensor)
    assert new["tied.weight"].data_ptr() == new["fc.weight"].data_ptr()
    assert raw(torch.load(tmp_path / "in.pt")["stem.weight"] if key is None else state["stem.weight"]) == raw(
        small_state()["stem.weight"]
    )


def test_views_and_legacy_files(tmp_path):
    flat = torch.cat([draw(24, seed=1), draw(16, seed=2)])
    state = {"a.weight": flat[:24].view(6, 4), "b.weight": flat[24:].view(4, 4).T, "c.weight": flat[20:36].view(4, 4)}
    expanded = {"d.weight": torch.ones(1, 3).expand(3, 3)}
    rows = select_weights(stored({**state, **expanded, "e.weight": torch.eye(3)}), Weights()).rows
    assert [row.reason for row in rows] == [
        "sharing memory with c.weight",
        "sharing memory with c.weight",
        "sharing memory with a.weight",
        "expanded from fewer values",
        "taken",
    ]
    del state["c.weight"]
    torch.save(state, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    reinit(tmp_path / "old.bin", "-o", tmp_path / "new.bin")
    new = torch.load(tmp_path / "new.bin", weights_only=True)
    for name, tensor in state.items():
        assert torch.equal(new[name], fire(tensor))
        assert new[name].stride() == tensor.stride()


class Stranger:
    """Class that `torch.load` does not load by default."""


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        import os

        return os.system, (self.command,)


def test_a_file_that_runs_commands_is_recognized(tmp_path):
    torch.save({"fc.weight": draw(3, 3), "x": Attack(f"touch {tmp_path}/done")}, tmp_path / "in.pt")
    message = error_of("diagnose", tmp_path / "in.pt")
    assert "would run posix.system when it is loaded" in message
    assert "--unsafe-pickle" not in message
    assert not (tmp_path / "done").exists()


def test_python_objects_are_loaded_only_on_request(tmp_path):
    torch.save({"state_dict": {"fc.weight": draw(3, 3)}, "hyper_parameters": Stranger()}, tmp_path / "in.ckpt")
    message = error_of("reinit", tmp_path / "in.ckpt", "-o", tmp_path / "out.ckpt")
    assert "holds Python objects (test_checkpoints.Stranger)" in message
    assert "runs any code that the file contains" in message
    assert message.endswith("--unsafe-pickle")
    reinit(tmp_path / "in.ckpt", "-o", tmp_path / "out.ckpt", "--unsafe-pickle")
    new = torch.load(tmp_path / "out.ckpt", weights_only=False)
    assert torch.equal(new["state_dict"]["fc.weight"], fire(draw(3, 3)))
    assert isinstance(new["hyper_parameters"], Stranger)
    torch.save(nn.Sequential(nn.Linear(3, 2)), tmp_path / "module.pt")
    reinit(tmp_path / "module.pt", "-o", tmp_path / "module2.pt", "--unsafe-pickle")
    old, new = (torch.load(tmp_path / name, weights_only=False)[0].weight for name in ("module.pt", "module2.pt"))
    assert torch.equal(new, fire(old))


# through the programs that write and read such files


def trained_checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    run = trainer(max_epochs=1)
    run.fit(PlainModule(), datamodule=PlainData())
    run.save_checkpoint(folder / "in.ckpt")
    return folder / "in.ckpt"


def assert_same(one, other, path=""):
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}/{index}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    else:
        assert one == other, path


def test_notes_that_a_resume_continues_from_weights_other_than_the_changed_average(tmp_path, capsys):
    weights = {"net.weight": torch.randn(4, 4)}
    torch.save({"state_dict": weights, "current_model_state": weights}, tmp_path / "average.ckpt")
    reinit(tmp_path / "average.ckpt", "-o", tmp_path / "out.ckpt")
    assert "a resumed fit continues from `current_model_state`, which is not changed" in capsys.readouterr().out


@pytest.mark.parametrize("drop", [False, True])
def test_a_lightning_checkpoint_is_rewritten_and_trained_on(tmp_path, capsys, drop):
    path = trained_checkpoint(tmp_path)
    words = ["--exclude", "net.5", *(["--drop-optimizer-states"] if drop else [])]
    assert reinit(path, "-o", tmp_path / "out.ckpt", *words).changed == 2
    text = capsys.readouterr().out
    assert ("note: optimizer states are dropped" in text) == drop
    assert ("note: optimizer states are kept" in text) != drop
    old, new = torch.load(path, weights_only=False), torch.load(tmp_path / "out.ckpt", weights_only=False)
    assert old["optimizer_states"][0]["state"]
    for name in ("net.0.weight", "net.3.weight"):
        assert torch.equal(new["state_dict"][name], fire(old["state_dict"][name]))
        old["state_dict"][name] = new["state_dict"][name]
    if drop:
        assert new["optimizer_states"][0]["state"] == {}
        old["optimizer_states"][0]["state"] = {}
    assert_same(old, new)
    module, run = PlainModule(), trainer(max_epochs=2)
    seen = {}

    class Look(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            seen.update({name: tensor.clone() for name, tensor in pl_module.state_dict().items()})

    run.callbacks.append(Look())
    run.fit(module, datamodule=PlainData(), **resumed_from(tmp_path / "out.ckpt", weights_only=False))
    assert_same(dict(new["state_dict"]), seen)
    assert run.current_epoch == 2
    steps = 4 if drop else 8  # of Adam: 4 batches an epoch
    assert run.optimizers[0].state[module.net[0].weight]["step"] == steps


def tiny_gpt2():
    import transformers as hf

    torch.manual_seed(0)
    config = hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=31, n_positions=8, bos_token_id=0, eos_token_id=0)
    return hf.GPT2LMHeadModel(config)


def assert_is_fire_of(new: nn.Module, old: nn.Module, steps: int) -> None:
    """Queries, keys and values, and the other Conv1D layers, stored (in, out); the embedding and its tied head stay."""
    expected = dict(old.state_dict())
    for name, tensor in expected.items():
        if "c_attn.weight" in name:
            expected[name] = torch.cat([fire(part.T, steps=steps).T for part in tensor.chunk(3, dim=1)], dim=1)
        elif "c_fc.weight" in name or "c_proj.weight" in name:
            expected[name] = fire(tensor.T, steps=steps).T
    assert new.lm_head.weight is new.transformer.wte.weight
    for name, tensor in new.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_saved_gpt2_of_several_files_is_rewritten_and_loaded(tmp_path):
    import transformers as hf

    old = tiny_gpt2()
    old.save_pretrained(tmp_path / "in", max_shard_size="8KB")
    source, target = tmp_path / "in", tmp_path / "out"
    assert len(list(source.glob("*.safetensors"))) > 2
    words = ["--preset", "gpt", "--steps", 5]
    assert reinit(source / "model.safetensors.index.json", "-o", target, *words).changed == 12
    assert_is_fire_of(hf.GPT2LMHeadModel.from_pretrained(target), old, steps=5)
    assert {file.name for file in target.iterdir()} == {file.name for file in source.iterdir()}
    for file in source.glob("*.json"):
        assert (target / file.name).read_bytes() == file.read_bytes()
    for file in source.glob("*.safetensors"):
        assert header_of(target / file.name) == header_of(file)
    assert "exists: --force" in error_of("reinit", source, "-o", source)
    assert "is a folder, so --output must name one" in error_of("reinit", source, "-o", tmp_path / "out.safetensors")
    reinit(source, "-o", source, "--force", *words)
    assert_is_fire_of(hf.GPT2LMHeadModel.from_pretrained(source), old, steps=5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "out"]


def test_the_preset_of_a_file_does_not_depend_on_the_order_of_its_tensors(tmp_path, capsys):
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16, "num_classes": 10}
    state = torchvision.models.VisionTransformer(image_size=8, patch_size=4, **sizes).state_dict()
    last = {"conv_proj.weight": draw(16, 8, 4, 4)}
    for ordered in (state, {name: value for name, value in state.items() if name not in last} | last):
        torch.save(ordered, tmp_path / "vit.pt")
        main(["diagnose", str(tmp_path / "vit.pt")])
        assert "preset vit" in capsys.readouterr().out
