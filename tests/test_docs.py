"""The Python in the README and in docs/ runs as a reader has it: from top to bottom, with no other names."""

import importlib
import os
import re
import runpy
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from jsonargparse import ArgumentParser
from pages import PAGES, ROOT, blocks_of, names_of_the_reader, pages_with, undefined_names
from small_training import GrowingData, PlainData, PlainModule

from lightning_fire.recipe.parser import add_method_keys

# in tests/examples
OWN_TEST = {"continual_rl", "detectors_and_forecasters", "your_own_training"}
OF_WHOLE_BLOCKS = ROOT / "docs" / "decide.md"  # a reader copies the block of one library
OF_SCRIPTS = {"fine_tuning_again", "language_in_phases"}  # of examples/neighbours, which need other libraries
REPOSITORY = "lightning-fire/lightning-fire"
ABSOLUTE = re.compile(rf"https://(github\.com/{REPOSITORY}/blob|raw\.githubusercontent\.com/{REPOSITORY})/main/")


def test_there_is_something_to_run():
    assert sum(len(blocks_of(page, "python")) for page in PAGES) >= 60


@pytest.mark.parametrize("page", pages_with("python"), ids=lambda page: page.stem)
def test_code_has_all_its_names(page):
    """Each is built in, defined or imported above on the page, or said to be the reader's: "your `model`"."""
    code = ""
    for block in blocks_of(page, "python"):
        code = block.code if page == OF_WHOLE_BLOCKS else code + block.code
        missing = undefined_names(code) - block.yours
        assert not missing, f"{page.name}: {sorted(missing)} are missing in\n{block.code}"


def test_missing_names_are_found():
    code = "import a\ndef f(x):\n  y = [a, x, b]\n  return lambda: (y, c, len)\nclass D(E):\n  n = 1\n  m = n + o\nf(D)"
    assert undefined_names(code) == {"b", "c", "E", "o"}
    text = "Give your `model` and\n`optimizer`, or your `a`, `b` and the `c`"
    assert names_of_the_reader(text) == {"model", "optimizer", "a", "b"}


class QuietTrainer(pl.Trainer):
    """A short training on the CPU that prints nothing."""

    def __init__(self, **options):
        options["max_epochs"] = min(options.get("max_epochs", 1), 20)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        super().__init__(**{"accelerator": "cpu", **quiet, "enable_model_summary": False, **options})


@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader` but have no `validation_step`")
@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("python") if page.stem not in OWN_TEST | OF_SCRIPTS],
    ids=lambda page: page.stem,
)
def test_code_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pl, "Trainer", QuietTrainer)
    model = PlainModule()
    of_the_reader = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "datamodules": [PlainData(seed) for seed in range(2)],
        "datamodule": GrowingData(),
        "loader": PlainData().train_dataloader(),
    }
    names = {}
    for block in blocks_of(page, "python"):
        names = {} if page == OF_WHOLE_BLOCKS else names
        names |= {name: of_the_reader[name] for name in block.yours - names.keys()}
        exec(compile(block.code, str(page), "exec"), names)


def test_the_page_on_selections_shows_what_is_printed(capsys):
    names, printed = {}, ""
    for block in blocks_of(ROOT / "docs" / "selections.md", "python", "text"):
        if block.language == "text":
            assert block.code == printed
        else:
            exec(compile(block.code, "selections", "exec"), names)
            printed = capsys.readouterr().out


def test_every_method_in_any_loop_runs(tmp_path):
    """The other sections of that page have tests of their own, one by one."""
    section, page = tmp_path / "section.md", (ROOT / "docs" / "your_own_training.md").read_text()
    section.write_text(page.partition("## Every method in any loop\n")[2])
    blocks = blocks_of(section, "python")
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        exec(compile(block.code, "your_own_training", "exec"), names)


@pytest.mark.parametrize("page", sorted(OF_SCRIPTS))
def test_code_is_that_of_a_script(page):
    """`make test-neighbours` runs the scripts."""
    scripts = [path.read_text() for path in (ROOT / "examples" / "neighbours").glob("*.py")]
    for block in blocks_of(ROOT / "docs" / f"{page}.md", "python"):
        code = re.sub(r"\A(?:(?:from|import) .*\n|\n)+", "", block.code)
        assert any(code in script for script in scripts), f"{page}: in no script:\n{code}"


def own_method(monkeypatch, tmp_path):
    """Return the module `mine` that the page on own methods shows."""
    code = [block.code for block in blocks_of(ROOT / "docs" / "own_method.md", "python") if "Method)" in block.code]
    (tmp_path / "mine.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("mine")


@pytest.mark.parametrize(("kind", "arguments"), [("HalveSmallest", {"fraction": 0.2}), ("NoiseOnIdle", {})])
def test_the_own_method_is_saved_in_the_configuration_of_a_run(kind, arguments, monkeypatch, tmp_path):
    own_method(monkeypatch, tmp_path)
    parser = ArgumentParser(exit_on_error=False)
    add_method_keys(parser)
    given = {"method": {"class_path": f"mine.{kind}", "init_args": arguments}}
    saved = parser.dump(parser.parse_object(given))
    assert kind in saved
    assert "Unable" not in saved


def test_the_own_method_halves_filters_of_fused_and_transposed_weights(monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=8)
    )
    weight = model.transformer.h[0].attn.c_attn.weight  # (in, out), query, key and value side by side
    before = weight.detach().clone()
    own_method(monkeypatch, tmp_path).HalveSmallest()(model)
    halved = (weight == before / 2).all(0)
    assert [int(part.sum()) for part in halved.chunk(3)] == [2, 2, 2]  # of 16 filters each
    assert torch.equal(weight[:, ~halved], before[:, ~halved])


def links_of(page: Path) -> list[tuple[str, str]]:
    """Return what a page links to or shows, as path and anchor; addresses of this repository as paths in it."""
    links = [link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    return [(ABSOLUTE.sub(f"{os.path.relpath(ROOT, page.parent)}/", path), anchor) for path, _, anchor in links]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page: its own, and those that GitHub and the site make of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return made.union(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_exist(page):
    for path, anchor in links_of(page):
        if not re.match("https?:", path):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {path}"
            if target.suffix == ".md" and anchor and not anchor.startswith("lightning_fire."):
                assert anchor in anchors_of(target), f"{page.name} links to {path}#{anchor}"


def test_links_of_the_readme_hold_on_every_site():
    """A package index shows it without the files beside it."""
    assert not re.findall(r"\]\((?!https:|#)", (ROOT / "README.md").read_text())


SCRIPTS = [path for path in sorted((ROOT / "docs").glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_refuse_arguments_that_they_do_not_have(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script.name, "a.pdf", "--anything"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(script), run_name="__main__")
    assert "error: unrecognized arguments: " in capsys.readouterr().err
