"""Causal language models of Hugging Face, on files: the same matrices as in training, and the same new values."""

import json

import lightning.pytorch as pl
import pytest
import torch
import two_texts
from language_models import FAMILIES, VOCABULARY, for_each_family
from small_training import trainer

from lightning_fire import FIRECallback, Log, Weights, fire_
from lightning_fire.checkpoints.formats import open_checkpoint
from lightning_fire.checkpoints.weights import select_weights
from lightning_fire.cli import main
from lightning_fire.modules import LanguageModel
from lightning_fire.nets import GPT, causal_lm

pytest.importorskip("safetensors")


def parts(selection, renamed=()):
    names = {view.name: dict(renamed).get(view.name, view.name) for view in selection}
    return {(names[view.name], view.shape, view.layout, view.rows, view.blocks) for view in selection}


@for_each_family
def test_reinit_of_a_folder_is_fire_on_the_model(name, tmp_path):
    family = FAMILIES[name]
    model = family.build()
    model.save_pretrained(tmp_path / "old")
    tied = ["--tied"] if family.tied else []
    tally = main(["reinit", str(tmp_path / "old"), "-o", str(tmp_path / "new"), "--steps", "5", *tied])
    assert tally.changed == family.matrices
    new = type(model).from_pretrained(tmp_path / "new", dtype=torch.float32)
    fire_(model, steps=5)
    state = new.state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key


@for_each_family
def test_the_same_matrices_are_taken_from_a_file_as_from_the_module(name, tmp_path):
    """Of a model on its own, and of one that is part of a LightningModule, whose checkpoint lacks the settings."""
    family = FAMILIES[name]
    model = family.build()
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    of_file = select_weights(checkpoint.tensors, Weights(), checkpoint.config, tied=family.tied)
    of_module = Weights().select(model)
    embedding = {value: key for key, value in model.named_parameters()}[model.get_input_embeddings().weight]
    head = next(view.name for view in of_module if view.parameter is model.get_output_embeddings().weight)
    own = "embed_out.weight" if family.kind == "gpt_neox" else head  # as files name it
    assert parts(of_file) == parts(of_module, {head: embedding if family.tied else own})
    torch.save({"state_dict": {f"net.{key}": value for key, value in model.state_dict().items()}}, tmp_path / "a.pt")
    (tmp_path / "config.json").rename(tmp_path / "settings.json")
    words = ["--config", str(tmp_path / "settings.json"), *(["--tied"] if family.tied else [])]
    rows = main(["diagnose", str(tmp_path / "a.pt"), *words])
    names = {embedding if family.tied and view.name == head else view.name for view in of_module}
    assert {row.name.removeprefix("net.") for row in rows} == names


class Around(pl.Callback):
    """Saves a checkpoint where the last epoch begins, before callbacks that follow act, and keeps what they make."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_start(self, trainer, pl_module):
        trainer.save_checkpoint(self.path)

    def on_before_backward(self, trainer, pl_module, loss):
        if trainer.fit_loop.batch_idx == 0:
            self.state = {key: value.clone() for key, value in pl_module.state_dict().items()}


@pytest.mark.parametrize("name", ["GPT-NeoX (Pythia)", "Phi-3", "our GPT"])
def test_training_diagnose_and_reinit_take_the_same_matrices(name, tmp_path):
    """The checkpoint of a `LanguageModel` holds the settings of the network, by which the files are read."""
    data = two_texts.data(epochs=1, steps_per_epoch=2)
    if name == "our GPT":
        net, tied = GPT(vocab_size=VOCABULARY, block_size=8, depth=2, heads=2, dim=16), ["--tied"]
    else:
        net, tied = causal_lm(FAMILIES[name].kind, FAMILIES[name].config), []
    before, after = tmp_path / "before.ckpt", tmp_path / "after.ckpt"
    around, event = Around(before), FIRECallback(steps=5, log=Log(curvature=False))
    fit = trainer(around, event, folder=tmp_path, max_epochs=2, accelerator="cpu")
    fit.fit(LanguageModel(net, warmup=1), datamodule=data)
    assert event.num_events == 1
    head = "net.transformer.wte.weight" if tied else "net.lm_head.weight"  # names of a tied weight in files
    taken = {view.name.replace("net.lm_head.weight", head) for view in Weights().select(LanguageModel(net))}
    number = 15 if name == "Phi-3" else 13
    assert len(taken) == number
    assert {row.name for row in main(["diagnose", str(before), *tied])} == taken
    assert main(["reinit", str(before), "-o", str(after), "--steps", "5", *tied]).changed == number
    assert all(
        torch.equal(value, around.state[key])
        for key, value in torch.load(after, weights_only=True)["state_dict"].items()
    )
    initial = torch.load(before, weights_only=True)["state_dict"]
    changed = {key for key, value in initial.items() if not torch.equal(value, around.state[key])}
    assert changed - {"net.lm_head.weight"} == {key.partition("[")[0] for key in taken} - {"net.lm_head.weight"}


def test_a_tie_is_only_taken_if_there_is_one(tmp_path, capsys):
    FAMILIES["GPT-2"].build().save_pretrained(tmp_path / "tied")
    FAMILIES["Llama"].build().save_pretrained(tmp_path / "untied")
    main(["reinit", str(tmp_path / "tied"), "-o", str(tmp_path / "out")])
    assert "note: the token embedding transformer.wte.weight is kept" in capsys.readouterr().out
    main(["reinit", str(tmp_path / "untied"), "-o", str(tmp_path / "out"), "--force"])
    assert "note" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"--tied: lm_head\.weight is an output layer of its own"):
        main(["diagnose", str(tmp_path / "untied"), "--tied"])


def test_without_settings_an_interleaved_projection_is_left_alone_with_the_way_out(tmp_path, capsys):
    FAMILIES["GPT-NeoX (Pythia)"].build().save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    rows = main(["diagnose", str(tmp_path), "--preset", "gpt"])
    assert len(rows) == 7
    assert "2 fused query-key-value in an interleaved order, which config.json shows: give --config" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config\.json is not JSON"),
        ("[]", r"does not hold the settings of a Hugging Face model: it has no `architectures`"),
        ('{"architectures": []}', "has no `architectures`"),
        (None, "is not a file: name the config.json"),
    ],
)
def test_invalid_settings(content, message, tmp_path):
    FAMILIES["GPT-2"].build().save_pretrained(tmp_path / "model")
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(SystemExit, match=message):
        main(["diagnose", str(tmp_path / "model"), "--config", str(tmp_path)])


def test_a_file_of_other_settings_beside_a_checkpoint_is_passed_over(tmp_path):
    FAMILIES["GPT-2"].build().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"learning_rate": 0.1}))
    assert len(main(["diagnose", str(tmp_path)])) == 4  # queries and keys: not known to be a language model
