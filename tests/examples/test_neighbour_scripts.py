"""The watch over scripts of other libraries sees events that are lost, miss, or hit what is not trained."""

import importlib.util
from pathlib import Path

import pytest
import torch
from pages import ROOT, blocks_of
from torch import nn

from lightning_fire import FIRE, Change, Loop
from lightning_fire import methods as all_methods

FOLDER = Path(__file__).parent.parent.parent / "examples" / "neighbours"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.stem != "run")


@pytest.fixture
def run(monkeypatch):
    spec = importlib.util.spec_from_file_location("neighbours_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(all_methods.Change, "make", Change.make)  # what a watch replaces, and the fixture restores
    return module


def _trained(model, steps=1, rate=1e-3):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def _event(watched):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if watched:
        FIRE()(model, Loop())
    return model, before


def test_an_event_that_is_trained_on_has_no_fault(run):
    watch = run.Watch()
    model, _ = _event(True)
    _trained(model)
    assert (watch.events, len(watch.written), watch.faults()) == (1, 2, [])


def test_a_script_without_an_event_is_a_fault(run):
    watch = run.Watch()
    _trained(_event(False)[0])
    assert watch.faults() == ["no event changed a weight"]


def test_a_weight_that_nobody_trains_is_a_fault(run):
    watch = run.Watch()
    model, _ = _event(True)
    model[0].weight.requires_grad_(False)  # after the event, as a library that freezes when training begins
    _trained(model)
    assert watch.faults() == ["0.weight was changed, and has not been trained since"]


def test_a_change_that_is_loaded_over_is_a_fault(run):
    watch = run.Watch()
    model, before = _event(True)
    model.load_state_dict({name: value + 1e-3 for name, value in before.items()})  # and trained on
    assert watch.faults() == ["the change of 0.weight was lost", "the change of 2.weight was lost"]


def test_a_change_that_is_small_beside_training_is_left_open_and_not_the_only_one(run):
    """As of a second event, whose weights are near the orthogonal ones: which are nearer then is luck."""
    watch = run.Watch()
    model, _ = _event(True)
    _trained(model)
    FIRE()(model, Loop())
    with torch.no_grad():
        for name in ("0.weight", "2.weight"):
            weight = model.get_parameter(name)
            _, old, new = watch.written[weight]
            weight.add_(10 * (old - new))  # by training, towards the old value and beyond
    assert watch.events == 2 and watch.faults() == []
    watch = run.Watch()
    model, _ = _event(True)
    _trained(model, rate=1e3)
    assert watch.faults() == ["each weight was trained so far that no change can be seen"]


def test_a_change_that_is_lost_before_the_next_event_is_a_fault(run):
    watch = run.Watch()
    model, before = _event(True)
    model.load_state_dict({name: value + 1e-3 for name, value in before.items()})
    FIRE()(model, Loop())
    _trained(model)
    assert watch.faults() == ["the change of 0.weight was lost", "the change of 2.weight was lost"]


def test_own_lines_leave_out_imports_and_stand_ins(run):
    text = '"""x: y."""\n\nimport a\n\n# stand-in for b\nclass B:\n    b = 1\n\n    c = 2\n\n# said\nfire_(\n    a\n)\n'
    assert run.own_lines(text) == 3


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_has_at_most_15_own_lines(run, script):
    assert 0 < run.own_lines(script.read_text()) <= 15


def test_code_of_a_page_is_that_of_a_script():
    """It needs libraries that are not installed where the tests run, and names that the script makes."""
    texts = [path.read_text().splitlines() for path in FOLDER.rglob("*.py")]
    blocks = blocks_of(ROOT / "docs" / "detectors_and_forecasters.md", "python")
    assert len(blocks) > 5
    for block in blocks:
        lines = [line for line in block.code.splitlines() if not line.startswith(("import ", "from "))]
        in_order = (iter(text) for text in texts)
        assert any(all(line in rest for line in lines if line) for rest in in_order), block.code


def test_a_row_replaces_that_of_its_script_on_the_page(run, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    row = dict.fromkeys(run.HEAD.strip("| ").split(" | "), "1")
    old = "\n".join(f"| {name} {'| 0 ' * 7}|" for name in ("a", "b", "gone"))
    page.write_text(f"text\n\n{run.HEAD}\n|---|\n{old}\n\nmore\n")
    monkeypatch.setattr(run, "PAGE", page)
    run.write([row | {"script": "b"}, row | {"script": "c"}], ["a", "b", "c"])
    new = [f"| {name} {f'| {value} ' * 7}|" for name, value in (("a", 0), ("b", 1), ("c", 1))]
    assert page.read_text().splitlines() == ["text", "", run.HEAD, "|---|", *new, "", "more"]
