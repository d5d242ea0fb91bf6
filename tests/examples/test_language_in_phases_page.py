"""docs/language_in_phases.md: its callback, its commands on files, the families tested."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

for library in ("accelerate", "pytorch_lightning", "safetensors", "torchrl", "transformers"):
    pytest.importorskip(library)

import own_trainings  # noqa: E402
from language_models import FAMILIES  # noqa: E402
from pages import ROOT, blocks_of  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments, set_seed  # noqa: E402

from lightning_fire import fire_  # noqa: E402
from lightning_fire.cli import main  # noqa: E402
from lightning_fire.functional import dfi_normalized  # noqa: E402
from lightning_fire.integrations.huggingface import PlasticityCallback  # noqa: E402
from lightning_fire.where import Weights  # noqa: E402

PAGE = ROOT / "docs" / "language_in_phases.md"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def deviation(model):
    return sum(float(dfi_normalized(view.read())) for view in Weights("gpt").select(model.transformer))


def test_the_callback_and_the_commands(tmp_path, monkeypatch, capsys):
    """One event, where the second training begins; on files every matrix becomes nearly isometric."""
    monkeypatch.chdir(tmp_path)
    theirs = own_trainings.names(tmp_path)
    names = {"model": theirs["language_model"], "arguments": theirs["arguments"], "phases": theirs["texts"]}
    exec(blocks_of(PAGE, "python")[0].code, names)
    (entry,) = [entry for entry in names["trainer"].state.log_history if "fire/sfe" in entry]
    assert entry["step"] == 0
    assert entry["fire/dfi_normalized_after"] < 0.2 < entry["fire/dfi_normalized_before"]

    model = type(names["model"])(names["model"].config)
    model.save_pretrained("runs/phase1/model")
    capsys.readouterr()
    for line in blocks_of(PAGE, "bash")[0].code.splitlines():
        assert line.startswith("lightning-fire ")
        main(shlex.split(line, comments=True)[1:])
    assert "replaced 6 weight matrices" in capsys.readouterr().out  # the tied output layer stays
    after = type(model).from_pretrained("runs/phase1/fire")
    assert deviation(model) > 6 * 0.3
    assert deviation(after) < 0.4 * deviation(model)


def test_the_table_is_that_of_the_tests():
    rows = dict(re.findall(r"^\| (its own|tied)[^|]* \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE))
    for output, families in rows.items():
        tested = [name.partition(",")[0] for name, family in FAMILIES.items() if family.tied == (output == "tied")]
        assert families.split(", ") == list(dict.fromkeys(tested))
    assert list(rows) == ["its own", "tied"]


def test_the_script_of_a_month_is_interrupted_and_continues(tmp_path, monkeypatch):
    """One event at the begin of each month but the first, in TensorBoard once; the bits are those of a whole month."""
    theirs = own_trainings.names(tmp_path)
    theirs["language_model"].save_pretrained(tmp_path / "base")
    settings = {"max_steps": 4, "save_steps": 2, "logging_steps": 1, "use_cpu": True}
    names = {"base": "base", "months": [*theirs["texts"], theirs["texts"][0]], "settings": settings}
    block = blocks_of(PAGE, "python")[1].code
    weights = {}
    for place in ("whole", "interrupted"):
        shutil.copytree(tmp_path / "base", tmp_path / place / "base")
        monkeypatch.chdir(tmp_path / place)
        for month in (0, 1):
            if (place, month) == ("interrupted", 1):
                with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                    patch.setattr(PlasticityCallback, "on_log", interrupt_after_a_checkpoint)
                    exec(block, names)
                assert Path("runs/month1/checkpoint-2").is_dir()
            exec(block, names)
            events = [entry["step"] for entry in names["trainer"].state.log_history if "fire/sfe" in entry]
            assert events == [0] * month
        weights[place] = names["model"].state_dict()
        curves = [EventAccumulator(str(file)).Reload() for file in Path("runs").rglob("*tfevents*")]
        assert sum("train/fire/sfe" in each.Tags()["scalars"] for each in curves) == 1
    for name, value in weights["whole"].items():
        assert torch.equal(value, weights["interrupted"][name]), name


def interrupt_after_a_checkpoint(callback, args, state, *_, **__):
    """`on_log` of a callback; settings log each step."""
    if state.global_step == 3:
        raise KeyboardInterrupt


def test_a_month_of_lora_is_interrupted_and_continues(tmp_path):
    """A checkpoint of the Trainer lacks the base, which a second `fire_` makes equal."""
    peft = pytest.importorskip("peft")
    theirs = own_trainings.names(tmp_path)
    theirs["language_model"].save_pretrained(tmp_path / "base")
    lora = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")

    def month(folder, steps, resume=None):
        set_seed(0)
        model = GPT2LMHeadModel.from_pretrained(tmp_path / "base")
        fire_(model, Weights(exclude=["lm_head"]), steps=5)
        adapted = peft.get_peft_model(model, lora)
        options = {"save_steps": 2, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
        arguments = TrainingArguments(
            str(folder), max_steps=steps, lr_scheduler_type="constant", learning_rate=1e-2, **options
        )
        Trainer(adapted, arguments, train_dataset=theirs["texts"][0]).train(resume_from_checkpoint=resume)
        return adapted.merge_and_unload().state_dict()

    whole = month(tmp_path / "whole", 4)
    first = month(tmp_path / "interrupted", 2)
    assert not (tmp_path / "interrupted/checkpoint-2/model.safetensors").exists()
    again = month(tmp_path / "interrupted", 4, str(tmp_path / "interrupted/checkpoint-2"))
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    assert not all(torch.equal(value, first[name]) for name, value in whole.items())
