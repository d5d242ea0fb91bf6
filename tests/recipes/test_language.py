"""Recipes of language models: the paper's numbers, and some batches of each on small texts."""

import re
from functools import partialmethod

import numpy as np
import pytest
import torch
import yaml
from recipe_files import ROOT, acting, arguments_of, diagonal, methods_of, name_of
from token_files import write_tokens
from torch import nn

from lightning_fire.cli import main
from lightning_fire.modules.chunk_schedule import learning_rate_factors
from lightning_fire.prepare_text import parser as prepare_text_parser
from lightning_fire.recipe.recipe import find_recipe

PATHS = sorted((ROOT / "language").rglob("*.yaml"))
METHODS = {
    "fire": "FIRE",
    "fire_procrustes": "FIRE",
    "fire_query_key": "FIRE",
    "full_reset": "FullReset",
    "isometry_of_initial": "FullReset",
    "shrink_and_perturb": "ShrinkAndPerturb",
}
RUNS = diagonal(PATHS)


def kind_of(method: str) -> str:
    """Return the name without a start, as in `.30k`, and without a strength, as in `_0.5`."""
    return method.split(".")[0].removesuffix("_0")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Small texts where the recipes look for theirs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "text").mkdir(parents=True)
    (tmp_path / "data" / "text" / "kjv.txt").write_bytes(bytes(range(32, 127)) * 600)
    for name in ("wikitext103", "wikitext103_v1", "openwebtext"):
        write_tokens(tmp_path / "data" / name, np.arange(50_257), np.arange(3000), vocab_size=50_257)


def test_there_are_recipes():
    assert {path.stem for path in PATHS} == {
        "authors_gpt2",
        "king_james_python_huggingface",
        "king_james_python_small_gpt",
        "wikitext103_openwebtext_gpt2",
    }


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_every_recipe_has_its_methods_and_starts(path):
    own = (
        set() if path.stem == "king_james_python_small_gpt" else {"fire_procrustes", "isometry_of_initial"}
    )  # of studies
    assert {kind_of(method) for method in methods_of(path)} == {"vanilla", *METHODS} - own
    starts = find_recipe(path).starts
    epochs = find_recipe(path).base["data"]["init_args"]["epochs"]
    presets = {"fire": "gpt", "fire_query_key": "vit"}  # explicit, independent of `auto`
    for name, preset in presets.items():
        assert arguments_of(path, name)["where"]["init_args"] == {"preset": preset}
    early, late = (when for when in starts.values() if when != "best")
    assert next(iter(starts.values())) == "best" and early < late <= epochs[0]


@pytest.mark.slow
@pytest.mark.parametrize("path, method", RUNS, ids=[f"{name_of(path)} {method}" for path, method in RUNS])
def test_recipes_and_methods_run_over_both_phases(texts, path, method, monkeypatch):
    """Two steps of each phase, with a network as small as it gets; the method acts once, where the phase changes."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    small = "--data.init_args.steps_per_epoch 2 --data.init_args.val_blocks 2 --data.init_args.epochs [1,1]"
    small += " --data.init_args.batch_size 2 --trainer.accumulate_grad_batches 1 --trainer.accelerator cpu"
    small += " --trainer.enable_progress_bar false --trainer.enable_model_summary false"
    small += " --trainer.enable_checkpointing false --trainer.logger false"
    base = yaml.safe_load(path.read_text())
    base["trainer"]["callbacks"] = [c for c in base["trainer"]["callbacks"] if "LearningRateMonitor" not in str(c)]
    if path.stem in ("authors_gpt2", "wikitext103_openwebtext_gpt2"):
        base["trainer"]["precision"] = "bf16-mixed"  # 16-mixed needs a GPU
        base["model"]["init_args"]["warmup"] = 0.1  # of two steps
        base["model"]["init_args"]["net"]["init_args"] |= {"depth": 1, "dim": 8, "heads": 2}
        base["data"]["init_args"]["block_size"] = 64  # 1024 tokens × 50304 logits take a GB
    with open("small.yaml", "w") as file:
        yaml.safe_dump(base, file)
    cli = main(["fit", "small.yaml", "--method", method, *small.split()])
    torch.compiler.reset()
    assert cli.trainer.global_step == 4
    acted = {name: getattr(callback, "num_events", None) for name, callback in acting(cli.trainer).items()}
    assert acted["OptimizerReset"] == 1
    if method != "vanilla":
        assert acted[METHODS[kind_of(method)]] == 1


def test_the_papers_numbers():
    """Table "Detailed settings in continual pretraining of LLMs", the text below it, and "Hyperparameters for …"."""
    path = ROOT / "language" / "continual_pretraining" / "wikitext103_openwebtext_gpt2.yaml"
    base = find_recipe(path).base
    model, data, trainer = base["model"]["init_args"], base["data"]["init_args"], base["trainer"]
    assert (model["learning_rate"], model["min_learning_rate"], model["weight_decay"]) == (6e-4, 6e-5, 0.1)
    assert (model["warmup"], model["decay"]) == ([2000, 0.1], "linear")
    assert data["batch_size"] * trainer["accumulate_grad_batches"] == 480 and trainer["gradient_clip_val"] == 1.0
    assert data["phases"] == [{"wikitext103": 1.0}, {"openwebtext": 9.0, "wikitext103": 0.1}]
    starts = find_recipe(path).starts
    assert {name: when if when == "best" else when * data["steps_per_epoch"] for name, when in starts.items()} == {
        "best": "best",
        "30k": 30_000,
        "60k": 60_000,
    }
    fire = arguments_of(path, "fire")
    assert fire["steps"] == 5 and fire["where"]["init_args"]["preset"] == "gpt"
    strengths = {name: arguments_of(path, name)["strength"] for name in methods_of(path) if "shrink" in name}
    assert strengths == {"shrink_and_perturb": 0.5, "shrink_and_perturb.30k": 0.8}


def rates_of(name):
    """Return the learning rate as a function of the optimizer steps done."""
    base = find_recipe(ROOT / "language" / "continual_pretraining" / f"{name}.yaml").base
    model, data = base["model"]["init_args"], base["data"]["init_args"]
    steps, warmup = [data["steps_per_epoch"] * epochs for epochs in data["epochs"]], model["warmup"]
    warmup, peak = warmup if isinstance(warmup, list) else [warmup], model["learning_rate"]
    factor = learning_rate_factors(steps, warmup, model["decay"], model["min_learning_rate"] / peak)
    return lambda step: peak * factor(step)


def test_the_learning_rates_where_phase_2_begins():
    """By the authors' code, one cosine of about 96,000 steps, and by the paper, linear over 60,000."""
    authors, paper = rates_of("authors_gpt2"), rates_of("wikitext103_openwebtext_gpt2")
    assert (authors(30_000), authors(60_000)) == pytest.approx((4.9e-4, 2.3e-4), abs=0.05e-4)
    assert (paper(30_000), paper(59_999)) == pytest.approx((3.4e-4, 6e-5), abs=0.05e-4)
    for rate, steps in ((authors, 96_000), (paper, 60_000)):  # both warm up over 2000 steps of phase 2
        assert [rate(steps + step) for step in (0, 1000, 2000)] == pytest.approx([0, 3e-4, 6e-4])


def test_the_authors_numbers():
    """Passes of 118 million tokens of WikiText-103 and 9.04 billion of OpenWebText, in steps of 491,520 tokens."""
    base = find_recipe(ROOT / "language" / "continual_pretraining" / "authors_gpt2.yaml").base
    model, data, trainer = base["model"]["init_args"], base["data"]["init_args"], base["trainer"]
    tokens = data["batch_size"] * trainer["accumulate_grad_batches"] * data["block_size"]
    assert data["phases"] == [{"wikitext103": 1.0}, {"openwebtext": 1.0}]
    passes = [steps * 1000 * tokens / size for steps, size in zip(data["epochs"], (118e6, 9.04e9), strict=True)]
    assert passes == pytest.approx([400, 2], rel=0.01)
    assert trainer["precision"] == "16-mixed" and model["tf32"] and model["compile"]


def test_the_authors_text_is_what_prepare_text_does_by_default():
    """End-of-text after each row, and 0.05 % of the training rows held out."""
    path = ROOT / "language" / "continual_pretraining" / "authors_gpt2.yaml"
    commands = re.findall(r"#   lightning-fire prepare-text (.*)", path.read_text())
    given = [prepare_text_parser().parse_args(command.split()) for command in commands]
    assert [options.dataset for options in given] == ["Salesforce/wikitext:wikitext-103-v1", "Skylion007/openwebtext"]
    for options in given:
        assert (options.end_of_text, options.val_share, options.val_split) == (None, 0.0005, None)
        assert options.tokenizer == "gpt2"
