"""`lightning-fire diagnose` and `reinit` on invalid input: arguments, files broken anywhere, too little memory."""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoint_files import draw, error_of, load, small_state, write_safetensors
from fuzz import fuzz
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_fire.cli import main

# errors


def broken_files(folder: Path) -> dict[str, Path]:
    good = write_safetensors(folder / "good.safetensors", small_state())
    torch.save(small_state(), folder / "good.pt")
    files = {
        "empty.safetensors": b"",
        "half.safetensors": good.read_bytes()[:-10],
        "long.safetensors": good.read_bytes() + b"more",
        "lfs.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "empty.pt": b"",
        "half.pt": (folder / "good.pt").read_bytes()[:-100],
        "text.pt": b"hello",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    torch.save({"fc.bias": torch.ones(2)}, folder / "biases.pt")
    torch.save([1, 2], folder / "list.pt")
    write_safetensors(folder / "biases.safetensors", {"fc.bias": torch.ones(2)})
    (folder / "folder").mkdir()
    shutil.copy(good, folder / "folder" / "part.safetensors")
    for name, index in {
        "no_json": "{",
        "no_map": "{}",
        "outside": json.dumps({"weight_map": {"a": "../good.safetensors"}}),
        "missing": json.dumps({"weight_map": {"a": "gone.safetensors"}}),
        "lost": json.dumps({"weight_map": {"a": "model.safetensors"}}),
    }.items():
        (folder / name).mkdir()
        (folder / name / "model.safetensors.index.json").write_text(index)
        shutil.copy(good, folder / name / "model.safetensors")
    return {file.name: file for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.safetensors", "does not exist"),
        ("empty.safetensors", "not a complete safetensors file: .*[Hh]eader ?[Tt]oo ?[Ss]mall"),
        ("half.safetensors", "not a complete safetensors file: "),
        ("long.safetensors", "not a complete safetensors file: "),
        ("lfs.safetensors", "pointer of Git LFS"),
        ("empty.pt", "not a complete checkpoint of torch: "),
        ("half.pt", "not a complete checkpoint of torch: "),
        ("text.pt", "not a complete checkpoint of torch: "),
        ("list.pt", "holds no tensors by name, but list"),
        ("biases.pt", "selects no weight of the file: 1 not a matrix"),
        ("biases.safetensors", "selects no weight of the file: 1 not a matrix"),
        ("folder", r"folder has no model.safetensors or pytorch_model.bin, .*: name .*part.safetensors"),
        ("no_json", "is not an index, a `weight_map` from tensors to files: JSONDecodeError"),
        ("no_map", "is not an index, a `weight_map` from tensors to files: KeyError"),
        ("outside", "not a file of its folder"),
        ("missing", "lacks gone.safetensors, which its index names"),
        ("lost", "does not hold a, as the index says"),
    ],
)
def test_broken_files_give_an_error_of_one_line(tmp_path, name, message):
    files = broken_files(tmp_path)
    path = files.get(name, tmp_path / name)
    before = sorted(tmp_path.iterdir())
    out = tmp_path / f"out{path.suffix}"
    assert re.search(message, error_of("diagnose", path, "--json", tmp_path / "d.json"))
    assert re.search(message, error_of("reinit", path, "-o", out))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "gone/out.safetensors"], "the folder of gone/out.safetensors does not exist"),
        (["-o", "out.pt"], "must be of the same kind as in.safetensors, got out.pt"),
        (["-o", "folder.safetensors", "--force"], "folder.safetensors is a folder: name a file"),
        (["-o", "out.safetensors", "--include", "nothing"], "`include` has 'nothing', which matches no weight"),
        (["-o", "out.safetensors", "--exclude", "("], "not a regular expression"),
        (["-o", "out.safetensors", "--preset", "vit"], "selects no weight of the file: .*3 not in preset vit"),
        (["-o", "out.safetensors", "--strength", "0.5"], "--strength does not belong to --method fire"),
        (["-o", "out.safetensors", "--method", "full_reset"], "needs initial values: --initial FILE"),
        (
            ["-o", "out.safetensors", "--method", "full_reset", "--initial", "in.safetensors", "--steps", "3"],
            "--steps does not belong to --method full_reset",
        ),
        (
            ["-o", "out.safetensors", "--method", "full_reset", "--initial", "other.safetensors"],
            r"other.safetensors lacks 6 of 7 tensors \(embed.weight.*\) and has 1 of 7 in another shape \(head.weight: "
            r"\(1, 1\), not \(3, 5\)\): give initial values of the same model, or leave .* out with --exclude",
        ),
        (
            ["-o", "out.safetensors", "--method", "full_reset", "--initial", "other.safetensors", "--include", "head"],
            r"other.safetensors has 1 of 1 in another shape \(head.weight: \(1, 1\), not \(3, 5\)\): ",
        ),
        (
            [
                "-o",
                "out.safetensors",
                "--method",
                "shrink_and_perturb",
                "--initial",
                "in.safetensors",
                "--strength",
                "2",
            ],
            r"`strength` must be in \[0, 1\], got 2.0",
        ),
    ],
)
def test_invalid_arguments(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write_safetensors(Path("in.safetensors"), small_state())
    write_safetensors(Path("other.safetensors"), {"head.weight": torch.ones(1, 1)})
    Path("folder.safetensors").mkdir()
    before = sorted(Path().iterdir())
    assert re.search(message, error_of("reinit", "in.safetensors", *words))
    assert sorted(Path().iterdir()) == before


def test_the_output_of_diagnose_does_not_replace_the_checkpoint(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", small_state())
    (tmp_path / "link").symlink_to(path)
    for checkpoint, output in ((path, path), (tmp_path / "link", path)):
        message = error_of("diagnose", checkpoint, "--json", output)
        assert message.endswith("m.safetensors is the checkpoint: name another file")
        assert torch.equal(load(path)["fc.weight"], small_state()["fc.weight"])


@pytest.mark.parametrize("words", [["--steps", "0"], ["--steps", "many"], ["--preset", "rnn"], ["--colour"]])
def test_errors_of_the_parser(words, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["diagnose", "in.pt", *words])
    assert leaving.value.code == 2
    assert "lightning-fire diagnose: error:" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["diagnose", "reinit"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: lightning-fire {command}" in text
    assert "--unsafe-pickle" in text and "DANGER" in text


def test_without_safetensors(tmp_path, monkeypatch):
    path = write_safetensors(tmp_path / "m.safetensors", small_state())
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert "needs safetensors: pip install 'lightning-fire[safetensors]'" in error_of("diagnose", path)


# files broken anywhere


def in_bytes(name: str) -> dict[str, bytes]:
    """The files of a checkpoint."""
    state, index = small_state(), "model.safetensors.index.json"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        if name == "folder":  # of two files of safetensors, and their index
            path = Path(folder, index)
            files = {key: ("a" if number < 4 else "b") + ".safetensors" for number, key in enumerate(state)}
            for file in ("a.safetensors", "b.safetensors"):
                write_safetensors(Path(folder, file), {key: state[key] for key in state if files[key] == file})
            path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
        elif path.suffix == ".safetensors":
            write_safetensors(path, state, {"format": "pt"})
        else:
            torch.save({"state_dict": state, "epoch": 1}, path, _use_new_zipfile_serialization=name != "old.pt")
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


GOOD = {name: in_bytes(name) for name in ("model.safetensors", "model.ckpt", "old.pt", "folder")}
FILES = [(name, file) for name, files in GOOD.items() for file in sorted(files)]
files, places = st.sampled_from(FILES), st.integers(0, 2**20)


def attempt(name: str, file: str, content: bytes) -> None:
    """Either a result that can be read again, or one line and no output."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        source = Path(folder, "in")
        source.mkdir()
        for each, whole in {**GOOD[name], file: content}.items():
            (source / each).write_bytes(whole)
        path = source if name == "folder" else source / file
        out = Path(folder, f"out{path.suffix}")
        try:
            main(["reinit", str(path), "-o", str(out), "--steps", "1"])
        except SystemExit as refusal:
            assert str(refusal).startswith("lightning-fire reinit: error: ")
            assert not out.exists()
        else:
            main(["diagnose", str(out)])
        assert {each.name for each in Path(folder).iterdir()} <= {"in", out.name}
        assert {each.name for each in source.iterdir()} == set(GOOD[name])


@fuzz(100)
@given(files, places)
@example(("folder", "model.safetensors.index.json"), 0)
def test_files_cut_anywhere(which, place):
    name, file = which
    attempt(name, file, GOOD[name][file][: place % len(GOOD[name][file])])


@pytest.mark.slow
@fuzz(100)
@given(files, st.lists(st.tuples(places, st.integers(0, 7)), min_size=1, max_size=3))
@example(("model.safetensors", "model.safetensors"), [(0, 0)])
@example(("model.safetensors", "model.safetensors"), [(7, 7)])
def test_files_with_flipped_bits(which, flips):
    name, file = which
    content = bytearray(GOOD[name][file])
    size = 8 + int.from_bytes(content[:8], "little") if file.endswith("safetensors") else len(content)
    for place, bit in flips:
        content[place % size] ^= 1 << bit
    attempt(name, file, bytes(content))


# memory


def peak_memory(path: Path, out: Path) -> int:
    """In MiB, of a process of its own. Its `ru_maxrss` would begin with the memory of the process that starts it."""
    code = (
        "import re, sys; from lightning_fire.checkpoints.reinit import main; main(sys.argv[1:]);"
        " print(int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) // 1024)"
    )
    words = [sys.executable, "-c", code, str(path), "-o", str(out), "--steps", "1"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_the_largest_tensor(tmp_path):
    weight = draw(2048, 1024)  # 8 MiB
    peaks = []
    for count in (1, 20):
        state = {f"layers.{index}.weight": weight for index in range(count)}
        path = write_safetensors(tmp_path / f"{count}.safetensors", state)
        peaks.append(peak_memory(path, tmp_path / f"{count}_out.safetensors"))
    assert peaks[1] - peaks[0] < 64, peaks  # MiB, of 152 more in the file
