"""Files and folders of other formats are named, with what to do; folders of trainings and of shards are read."""

import json
import pickle
import re
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from checkpoint_files import TAKEN, draw, error_of, reinit, small_state, write_safetensors
from torch import nn

from lightning_fire.checkpoints.earlier_training import read_earlier_training
from lightning_fire.checkpoints.pickled import warning_of_torch
from lightning_fire.cli import main
from lightning_fire.functional import fire
from lightning_fire.recipe.check import check_recipe

FIRST_BYTES = {
    "model.gguf": (b"GGUF" + bytes(64), "is GGUF"),
    "model.onnx": (bytes(64), "is ONNX"),
    "model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "is HDF5"),
    "model.tflite": (bytes(4) + b"TFL3" + bytes(64), "is TensorFlow Lite"),
    "model.msgpack": (bytes(64), "is msgpack"),
    "model.pt.gz": (b"\x1f\x8b" + bytes(64), "is compressed by gzip: unpack it first"),
    "page.bin": (b"<!DOCTYPE html><html>", "is a web page or XML, not weights: a download may have failed"),
    "config.json": (b'{"hidden_size": 8}', "is JSON text, not weights"),
    "lfs.bin": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
}


def other_files(folder):
    for name, (content, message) in FIRST_BYTES.items():
        (folder / name).write_bytes(content)
        yield folder / name, message
    np.save(folder / "weight.npy", np.zeros((4, 4)))
    yield folder / "weight.npy", "is a NumPy array"
    np.savez(folder / "weights.npz", a=np.zeros((4, 4)))
    yield folder / "weights.npz", "is an archive of NumPy arrays"
    torch.jit.save(torch.jit.trace(nn.Linear(4, 4), torch.ones(1, 4)), folder / "script.pt")
    yield folder / "script.pt", "is TorchScript, a program"
    with zipfile.ZipFile(folder / "any.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    yield folder / "any.pt", "is a zip archive, but not of torch.save"
    with zipfile.ZipFile(folder / "agent.zip", "w") as archive:
        archive.writestr("policy.pth", "")
    extracted = 'zipfile.ZipFile("agent.zip").extract("policy.pth")'
    yield folder / "agent.zip", f"is an agent of Stable-Baselines3: its weights are {extracted}"
    with tarfile.open(folder / "model.nemo", "w") as archive:
        archive.add(folder / "weight.npy")
    yield folder / "model.nemo", "is a tar archive: unpack it first"
    write_safetensors(folder / "renamed.bin", small_state())
    yield folder / "renamed.bin", "is of safetensors: give it the ending .safetensors"
    torch.save(small_state(), folder / "renamed.safetensors")
    yield folder / "renamed.safetensors", "is of torch.save: give it the ending .pt"
    (folder / "plain.pkl").write_bytes(pickle.dumps({"a": 1}))
    yield folder / "plain.pkl", "is not a complete checkpoint of torch"


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_other_formats_are_named_without_unsafe_advice(tmp_path):
    for path, message in other_files(tmp_path):
        for unsafe in ([], ["--unsafe-pickle"]):
            text = error_of("diagnose", path, *unsafe)
            if not (unsafe and path.suffix == ".pkl"):  # which then holds no tensors
                assert f"{path} {message}" in text, text
            assert "weights_only" not in text


def test_a_pickle_is_an_error_with_its_cause(tmp_path):
    (tmp_path / "list.pkl").write_bytes(pickle.dumps([1]))
    assert re.search("is not a complete checkpoint of torch: .*: .+$", error_of("diagnose", tmp_path / "list.pkl"))


# folders of torch.save


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_folders_of_torch_save_are_read_and_written(tmp_path, name):
    source, state = tmp_path / "in", small_state()
    source.mkdir()
    (source / "config.json").write_text("{}")
    if name == "pytorch_model.bin":
        torch.save(state, source / name)
    else:
        files = {key: f"part-{index % 2}.bin" for index, key in enumerate(state)}
        for file in set(files.values()):
            torch.save({key: state[key] for key in state if files[key] == file}, source / file)
        (source / name).write_text(json.dumps({"weight_map": files}))
    path = source / name if name.endswith("json") else source
    assert {row.name for row in main(["diagnose", str(path)])} == set(TAKEN)
    assert reinit(path, "-o", tmp_path / "out").changed == 3
    assert {file.name for file in (tmp_path / "out").iterdir()} == {file.name for file in source.iterdir()}
    new = {key: value for file in (tmp_path / "out").glob("*.bin") for key, value in torch.load(file).items()}
    for key, value in state.items():
        assert torch.equal(new[key], fire(value) if key in TAKEN else value), key


def test_a_folder_names_the_weights_in_it(tmp_path):
    """Those that can be given: neither the files in a folder that is read as one, nor states of a training."""
    for name in ("checkpoint-500", "checkpoint-1000", "checkpoint-90", "model"):
        trainer_folder(tmp_path / name)
        torch.save({}, tmp_path / name / "rng_state.pth")
        (tmp_path / name / "training_args.bin").touch()
    (tmp_path / "training_args.bin").touch()
    (tmp_path / "checkpoint-2000").mkdir()  # removed by save_total_limit, or not written yet
    message = error_of("diagnose", tmp_path)
    names = [f"{tmp_path}/{name}" for name in ("model", "checkpoint-1000", "checkpoint-500")]
    assert message.endswith(f"whole or with an index: name {', '.join(names)} and 1 more")
    (tmp_path / "checkpoint-90" / "model.safetensors").unlink()
    write_safetensors(tmp_path / "checkpoint-500" / "adapter.safetensors", small_state())
    assert error_of("diagnose", tmp_path).endswith(f": name {', '.join(names)}")
    write_safetensors(tmp_path / "checkpoint-90" / "adapter_model.safetensors", small_state())
    torch.save(small_state(), tmp_path / "last.pt")
    assert error_of("diagnose", tmp_path).endswith(f": name {', '.join(names)} and 2 more")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "part.safetensors")
    (tmp_path / "model" / "model.safetensors.index.json").touch()
    assert error_of("diagnose", tmp_path).endswith(f": name {', '.join(names)} and 2 more")
    logs = tmp_path / "logs"
    (logs / "version_0" / "checkpoints").mkdir(parents=True)
    torch.save(small_state(), logs / "version_0" / "checkpoints" / "last.ckpt")
    assert error_of("diagnose", logs).endswith(f": name {logs}/version_0/checkpoints/last.ckpt")
    (tmp_path / "empty").mkdir()
    assert error_of("diagnose", tmp_path / "empty").endswith("whole or with an index")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:`torch.distributed")
def test_a_distributed_checkpoint_is_named_with_the_command_that_converts_it(tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp.save({"model": small_state()}, checkpoint_id=tmp_path / "shards", no_dist=True)
    message = error_of("diagnose", tmp_path / "shards")
    command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
    assert message.endswith(f"convert it to one file by {command} {tmp_path / 'shards'} shards.pt")
    dcp_to_torch_save(tmp_path / "shards", tmp_path / "shards.pt")  # what the command calls
    assert {row.name for row in main(["diagnose", str(tmp_path / "shards.pt")])} == set(TAKEN)
    (tmp_path / "shards" / "meta.pt").touch()
    assert "consolidate_checkpoint" in error_of("diagnose", tmp_path / "shards")


# settings beside the weights


def test_many_brackets_in_json_are_an_error(tmp_path):
    path = write_safetensors(tmp_path / "model.safetensors", small_state())
    deep = "[" * 200_000 + "]" * 200_000
    (tmp_path / "config.json").write_text(deep)
    assert "config.json is not JSON of settings: " in error_of("diagnose", path)
    (tmp_path / "good.json").write_text('{"architectures": ["BertModel"]}')
    assert len(main(["diagnose", str(path), "--config", str(tmp_path / "good.json")])) == 3
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "deep.json").write_text(deep)
    assert "deep.json is not JSON of settings: " in error_of("diagnose", path, "--config", tmp_path / "deep.json")
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        (tmp_path / name).write_text(deep)
        assert "is not an index" in error_of("diagnose", tmp_path / name)
        (tmp_path / name).unlink()


# folders of Hugging Face's Trainer and Accelerate


def trainer_folder(folder, name="optimizer.pt"):
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", small_state())
    parameter = nn.Parameter(draw(3, 3))
    optimizer = torch.optim.AdamW([parameter], lr=0.5)
    parameter.sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / name)
    torch.save({"last_epoch": 3}, folder / "scheduler.pt")
    return optimizer.state_dict()


@pytest.mark.parametrize("name", ["optimizer.pt", "optimizer.bin", "optimizer_1.bin"])
def test_optimizer_states_of_a_trainer_are_dropped(tmp_path, capsys, name):
    old = trainer_folder(tmp_path / "in", name)
    reinit(tmp_path / "in", "-o", tmp_path / "kept")
    assert "note: optimizer states are kept" in capsys.readouterr().out
    assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()
    reinit(tmp_path / "in", "-o", tmp_path / "out", "--drop-optimizer-states")
    assert f"note: optimizer states are dropped from {name}" in capsys.readouterr().out
    assert torch.load(tmp_path / "out" / name) == {"state": {}, "param_groups": old["param_groups"]}
    assert (tmp_path / "out" / "scheduler.pt").read_bytes() == (tmp_path / "in" / "scheduler.pt").read_bytes()


@pytest.mark.parametrize("name", ["global_step40", "optimizer_0", "rank0-of-2-optimizer.pt"])
def test_optimizer_states_that_cannot_be_dropped(tmp_path, capsys, name):
    trainer_folder(tmp_path / "in")
    (tmp_path / "in" / name).mkdir()
    message = error_of("reinit", tmp_path / "in", "-o", tmp_path / "out", "--drop-optimizer-states")
    assert f"the optimizer states in {name} cannot be dropped here" in message
    assert not (tmp_path / "out").exists()
    reinit(tmp_path / "in", "-o", tmp_path / "out")
    assert f"{name} in the folder are kept: a resumed training may continue from old weights" in capsys.readouterr().out


def test_optimizer_states_beside_a_file_are_named(tmp_path, capsys):
    trainer_folder(tmp_path / "in")
    words = "reinit", tmp_path / "in" / "model.safetensors", "-o", tmp_path / "out.safetensors"
    message = error_of(*words, "--drop-optimizer-states")
    assert "the optimizer states are in optimizer.pt beside the file: name the folder to drop them" in message
    reinit(*words[1:])
    assert "note: optimizer states in optimizer.pt beside the file belong to the old" in capsys.readouterr().out


def test_other_weights_in_a_folder_are_named(tmp_path, capsys):
    trainer_folder(tmp_path / "in")
    torch.save(small_state(), tmp_path / "in" / "pytorch_model.bin")
    (tmp_path / "in" / "unet_ema").mkdir()
    write_safetensors(tmp_path / "in" / "unet_ema" / "model.safetensors", small_state())
    reinit(tmp_path / "in", "-o", tmp_path / "out")
    names = "pytorch_model.bin, unet_ema/model.safetensors"
    assert f"note: also in the folder, and not changed: {names}\n" in capsys.readouterr().out


def test_a_folder_without_optimizer_states(tmp_path, capsys):
    trainer_folder(tmp_path / "in")
    (tmp_path / "in" / "optimizer.pt").unlink()
    reinit(tmp_path / "in", "-o", tmp_path / "out", "--drop-optimizer-states")
    assert "note: no optimizer states to drop" in capsys.readouterr().out


@pytest.mark.slow
def test_hugging_face_resumes_from_a_folder_without_moments(tmp_path):
    import transformers as hf

    class KeepFirst(hf.TrainerCallback):
        def on_train_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
            self.states, self.rate = len(optimizer.state), lr_scheduler.get_last_lr()[0]

    def train(steps, **options):
        torch.manual_seed(0)
        config = hf.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=11, n_positions=8)
        arguments = hf.TrainingArguments(
            str(tmp_path / "out"), max_steps=steps, save_steps=2, report_to="none", use_cpu=True, disable_tqdm=True
        )
        rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 64
        trainer = hf.Trainer(hf.GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[keep := KeepFirst()])
        trainer.train(**options)
        return keep, trainer

    train(4)
    folder = tmp_path / "out" / "checkpoint-2"
    whole, _ = train(4, resume_from_checkpoint=str(folder))
    reinit(folder, "-o", tmp_path / "new", "--drop-optimizer-states", "--steps", 5)
    keep, trainer = train(4, resume_from_checkpoint=str(tmp_path / "new"))
    assert (whole.states > 0, keep.states, keep.rate) == (True, 0, whole.rate)
    assert trainer.state.global_step == 4
    assert {int(each["step"]) for each in trainer.optimizer.state.values()} == {2}


# torch with a known weakness


@pytest.mark.parametrize(("version", "safe"), [("2.6.0", 0), ("2.9.1+cu128", 0), ("2.10.0", 1), ("3.0.0a0", 1)])
def test_torch_before_2_10_is_warned_of(version, safe):
    assert bool(warning_of_torch(version)) != safe


READERS = {
    "diagnose": lambda path, other: main(["diagnose", str(path)]),
    "diagnose --reference": lambda path, other: main(["diagnose", str(other), "--reference", str(path)]),
    "reinit": lambda path, other: main(["reinit", str(path), "-o", f"{path}.new{path.suffix}"]),
    "reinit --initial": lambda path, other: main(
        ["reinit", str(other), "-o", f"{path}.safetensors", "--method", "full_reset", "--initial", str(path)]
    ),
    "compare --from, decide": lambda path, other: read_earlier_training(path),
    "fit --ckpt_path": lambda path, other: check_recipe({"trainer": {}, "seed_everything": 0, "ckpt_path": path}, ()),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pickle_under_an_old_torch_gives_a_warning(tmp_path, monkeypatch, reader):
    monkeypatch.setattr("lightning_fire.checkpoints.pickled.warning_of_torch", lambda: warning_of_torch("2.9.1"))
    torch.save(small_state(), tmp_path / "in.pt")
    safe = write_safetensors(tmp_path / "in.safetensors", small_state())
    with pytest.warns(UserWarning, match="GHSA-63cw-57p8-fm3p"):
        READERS[reader](tmp_path / "in.pt", safe)
    main(["diagnose", str(safe)])  # warnings are errors
