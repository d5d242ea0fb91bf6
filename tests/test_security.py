"""Files that mean harm, and what the package must not do: unpickle, write elsewhere, swell, connect, inject."""

import ast
import builtins
import csv
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import yaml
from checkpoint_files import draw, error_of, small_state, write_safetensors
from history import HISTORY, named
from matplotlib.figure import Figure
from tiny_recipe import BASE, FIRE, write_recipe
from tiny_recipe import error_of as parser_error_of

from lightning_fire import data
from lightning_fire.cli import main
from lightning_fire.experiments.chunks import ChunkReport
from lightning_fire.experiments.figures import draw as draw_panels
from lightning_fire.experiments.runs import Run
from lightning_fire.experiments.training import perform
from studies import ablation_figures

PACKAGE = Path(__file__).parents[1] / "lightning_fire"


# what the sources may not hold


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "tarfile"}
FORBIDDEN_MODULES |= {"socket", "ssl", "http", "ftplib", "urllib", "requests", "httpx", "aiohttp", "webbrowser"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
FORBIDDEN_CALLS |= {"yaml.full_load", "subprocess.getoutput", "subprocess.getstatusoutput", "shutil.unpack_archive"}


def faults(source: str) -> list[str]:
    """Return violations of the rules by line: modules, calls, and loaders without their safe options."""
    found = []
    for node in ast.walk(ast.parse(source)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) else []
        found += [f"{node.lineno}: import {name}" for name in modules if name.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        told = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        bad = name in FORBIDDEN_CALLS or name.endswith((".extractall", ".extract"))
        bad |= told.get("shell", "False") != "False"
        bad |= name == "torch.load" and told.get("weights_only") not in ("True", "not unsafe")
        bad |= name == "np.load" and told.get("allow_pickle") != "False"
        if bad:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_the_rules_find_what_breaks_them():
    lines = ["import pickle", "from urllib import request", "os.system('ls')", "subprocess.run('ls', shell=True)"]
    lines += ["torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path)", "yaml.load(text, Loader)"]
    lines += ["archive.extractall(folder)", "eval(word)"]
    assert [int(fault.split(":")[0]) for fault in faults("\n".join(lines))] == list(range(1, len(lines) + 1))
    assert not faults("torch.load(path, weights_only=True); yaml.safe_load(text); module.eval()")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_source_breaks_the_rules(path):
    assert not faults(path.read_text())


# pickles


class Attack:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def attacks(marker: Path) -> dict[str, Attack]:
    """Ways to leave a file behind."""
    code = f"open({str(marker)!r}, 'w').close()"
    return {
        "exec": Attack(exec, code),
        "eval": Attack(eval, f"({code})"),
        "os.mkdir": Attack(os.mkdir, str(marker)),
        "subprocess": Attack(subprocess.Popen, ["touch", str(marker)]),
        "open": Attack(builtins.open, str(marker), "w"),
        "getattr": Attack(getattr, Attack(exec, code), "x"),
        "torch": Attack(torch.serialization.load, str(marker)),
        "Tensor": Attack(torch.Tensor.tofile if hasattr(torch.Tensor, "tofile") else np.ndarray.tofile, marker),
    }


def around(attack: Attack, place: str) -> dict:
    """A Lightning checkpoint with the attack somewhere in it."""
    content = {"pytorch-lightning_version": "2.6.6", "state_dict": small_state(), "epoch": 3}
    if place == "among the weights":
        return {**content, "state_dict": {**small_state(), "x.weight": attack}}
    if place == "in the optimizer":
        return {**content, "optimizer_states": [{"state": {0: {"step": attack}}, "param_groups": []}]}
    if place == "in a callback":
        return {**content, "callbacks": {"FIRECallback": {"events": [attack]}}}
    return {**content, "hyper_parameters": {"lr": attack}}


def write_attack(path: Path, content: object, form: str) -> Path:
    if form == "a bare pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    return path


PLACES = ["among the weights", "in the optimizer", "in a callback", "in the hyper-parameters"]


@pytest.mark.parametrize("form", ["zip", "legacy", "a bare pickle"])
@pytest.mark.parametrize("place", PLACES)
def test_no_command_unpickles_a_checkpoint(tmp_path, form, place):
    marker = tmp_path / "done"
    good = write_safetensors(tmp_path / "good.safetensors", small_state())
    for attack in attacks(marker).values():
        path = write_attack(tmp_path / "in.ckpt", around(attack, place), form)
        out = tmp_path / "out.ckpt"
        error_of("diagnose", path)
        error_of("reinit", path, "-o", out)
        error_of("reinit", good, "-o", tmp_path / "out.safetensors", "--method", "full_reset", "--initial", path)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["good.safetensors", "in.ckpt"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "test"])
def test_no_training_continues_from_a_checkpoint_that_runs_code(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    for attack in attacks(tmp_path / "done").values():
        write_attack(tmp_path / "in.ckpt", around(attack, PLACES[0]), "zip")
        message = parser_error_of([command, "-c", "base.yaml", "--ckpt_path", "in.ckpt"], capsys)
        assert re.search(r"in\.ckpt (would run|holds Python objects|is not a complete checkpoint)", message)
        assert not (tmp_path / "done").exists()


def test_a_checkpoint_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE + "ckpt_path: gone.ckpt\n")
    assert "ckpt_path: gone.ckpt does not exist" in parser_error_of(["fit", "-c", "base.yaml"], capsys)


def test_the_checkpoint_that_a_killed_run_left_is_not_unpickled(tmp_path):
    run = Run("vanilla", 0, tmp_path / "run", [{}])
    run.folder.mkdir()
    run.log.touch()
    (run.folder / "begun.json").write_text(json.dumps({"settings": run.fingerprint()}))
    torch.save({"loops": Attack(os.mkdir, str(tmp_path / "done"))}, run.folder / "last.ckpt")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        perform(run, lambda words: None)
    assert not (tmp_path / "done").exists()


def test_the_packaged_images_are_not_unpickled(tmp_path, monkeypatch):
    arrays = {
        f"{part}_{kind}": np.array([Attack(os.mkdir, str(tmp_path / "done"))])
        for part in ("train", "test")
        for kind in ("images", "labels")
    }
    np.savez(tmp_path / "fashion_mnist_small.npz", **arrays)
    monkeypatch.setattr(data.image_sets, "__file__", str(tmp_path / "image_sets.py"))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded when allow_pickle=False"):
        data.SmallFashionMNISTDataModule().setup()
    assert not (tmp_path / "done").exists()


# recipes


@pytest.mark.parametrize("place", ["method", "net", "when", "where", "protocol", "data", "logger"])
def test_a_class_of_another_kind_raises_before_it_is_called(tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    evil = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(tmp_path / "done")]}}
    fire = {"class_path": "FIRECallback", "init_args": {place: evil}}
    overlay = {
        "method": {"method": evil},
        "net": {"model": {"init_args": {"net": evil}}},
        "protocol": {"data": {"init_args": {"protocol": evil}}},
        "data": {"data": evil},
        "logger": {"trainer": {"logger": evil}},
    }.get(place, {"method": fire})
    Path("evil.yaml").write_text(yaml.safe_dump(overlay))
    for command in ("fit", "select"):
        assert place in parser_error_of([command, "-c", "base.yaml", "-c", "evil.yaml"], capsys)
        assert not (tmp_path / "done").exists()


RUNS = "!!python/object/apply:os.mkdir [done]"


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "-c", "tiny/evil.yaml"],
        ["fit", "-c", "tiny/base.yaml", "--trainer.logger", RUNS],
        ["select", "-c", "tiny/base.yaml", "-c", "tiny/evil.yaml"],
        ["fit", "evil.yaml", "--method", "evil"],
        ["compare", "evil.yaml", "--methods", "evil"],
        ["compare", "tiny.yaml", "--methods", "fire", "--set", f"trainer.logger={RUNS}"],
        ["sweep", "tiny.yaml", "--method", "fire", "--space", "tiny/evil.yaml"],
    ],
    ids=lambda words: " ".join(words[:4]),
)
def test_yaml_makes_no_objects(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    for name, text in {"base": BASE, "fire": FIRE, "evil": f"method: {RUNS}\nfire: {RUNS}\n"}.items():
        Path("tiny", f"{name}.yaml").write_text(text)
    write_recipe(Path("tiny.yaml"), BASE, {"fire": FIRE})
    Path("evil.yaml").write_text(f"{BASE}methods:\n  evil:\n    method: {RUNS}\n")
    message = parser_error_of(words, capsys)
    assert re.search(r"python/object/apply|has no search space", message)
    assert not Path("done").exists()


def test_the_docs_warn_that_a_recipe_is_code():
    assert "A recipe is code" in (PACKAGE.parent / "docs" / "compare.md").read_text()


# archives


# sizes


def sharded(folder: Path) -> Path:
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", small_state())
    index = {"weight_map": dict.fromkeys(small_state(), "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    "file", ["/etc/passwd", "..", ".", "", "../in/model.safetensors", "sub/model.safetensors", "a\0b"]
)
def test_an_index_names_files_of_its_folder_only(tmp_path, file):
    folder = sharded(tmp_path / "in")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": file}}))
    assert re.search("not a file of its folder|which its index names", error_of("diagnose", folder))


# the network


GUARDED = """
import socket, sys, urllib.request
sys.path.insert(0, {tests!r})

class Blocked(BaseException):
    pass

def block(*args, **options):
    raise Blocked(f"a connection: {{args}}")

for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, block)
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = block
try:
    urllib.request.urlopen("http://localhost:9/")
except Blocked:
    print("the guard works")

import lightning_fire.data, lightning_fire.metrics, lightning_fire.nets, lightning_fire.optim
from lightning_fire.cli import main
from tiny_recipe import BASE, FIRE
from pathlib import Path

SAVE = "    - class_path: lightning.pytorch.callbacks.ModelCheckpoint\\n      init_args: {{dirpath: saved}}\\n"
Path("base.yaml").write_text(BASE.replace("num_chunks: 3, epochs: 2", "num_chunks: 2, epochs: 1") + SAVE)
Path("fire.yaml").write_text(FIRE)
recipe = ["-c", "base.yaml", "-c", "fire.yaml"]
datamodule = lightning_fire.data.SmallFashionMNISTDataModule()
datamodule.prepare_data()
datamodule.setup()
main(["select", *recipe])
main(["fit", *recipe])
(checkpoint,) = Path("saved").glob("*.ckpt")
main(["test", "-c", "base.yaml", "--ckpt_path", str(checkpoint)])
main(["diagnose", str(checkpoint)])
main(["reinit", str(checkpoint), "-o", "new.ckpt"])
print("done")
"""


@pytest.mark.slow
def test_nothing_connects(tmp_path):
    """In a process of its own, with every way to connect blocked, from the first import to a fit."""
    code = GUARDED.format(tests=str(Path(__file__).parent / "support"))
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.startswith("the guard works") and result.stdout.endswith("done\n")


# what is shown


MARKUP = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "<a href='javascript:alert(1)'>fire</a>",
    "a & b",
    "**bold** [x](http://x) | `y`",
    "$\\frac$",
    "$x$",
    "_hidden",
    "=1+1",
    'quote"s, and commas',
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MARKUP)
def test_names_are_text_in_figures_and_tables(tmp_path, name, monkeypatch):
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    for others in (0, 6):  # the legend inside, and outside
        report = ChunkReport(named({name: {0: HISTORY}, **{f"m{i}": {0: HISTORY} for i in range(others)}}), name)
        draw_panels(report.panels(), tmp_path / "comparison.png", title=name)
        figure = figures.pop()
        legend = figure.legends[0] if figure.legends else None
        first = legend.get_texts()[0] if legend else figure.axes[0].texts[0]
        texts = [first, figure._suptitle]
        assert [text.get_text().strip().startswith(name) for text in texts] == [True, True]
        assert not any(text.get_parse_math() for text in texts)
    report = ChunkReport(named({name: {0: HISTORY}}), name)
    ablation_figures.draw(report, {name: name}, {"10": name}, tmp_path / "ablation.png", title=name)
    labels = [text for axes in figures.pop().axes for text in axes.get_xticklabels() if text.get_text() == name]
    assert len(labels) == 3 and not any(text.get_parse_math() for text in labels)
    monkeypatch.undo()
    plt.close("all")
    report.publish(tmp_path, name)
    with open(tmp_path / "results.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["method"], row["seed"]) == (name, "0")
    assert report.table().splitlines()[2].split("  ")[0] == name


def test_names_in_a_checkpoint_do_not_steer_the_terminal(tmp_path, capsys):
    names = ["\x1b[2J\x1b[31mfc.weight", "a\rb.weight", "c\x07.weight", "d\u202eevil.weight", "$\\frac$.weight"]
    torch.save({name: draw(3, 3) for name in names}, tmp_path / "in.pt")
    main(["diagnose", str(tmp_path / "in.pt"), "--all"])
    shown = capsys.readouterr().out
    assert r"\x1b[2J\x1b[31mfc.weight" in shown and r"d\u202eevil.weight" in shown
    assert all(character.isprintable() for character in shown.replace("\n", ""))
    torch.save({name: torch.ones(3) for name in names}, tmp_path / "in.pt")
    assert error_of("diagnose", tmp_path / "in.pt").isprintable()
