"""The command line: YAML, `--help`, overrides, errors, resume."""

import contextlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from recipe_files import acting
from tiny_recipe import BASE, FIRE, error_of, write_recipe
from torch import nn

from lightning_fire import methods
from lightning_fire.callbacks import ChunkProgressBar
from lightning_fire.cli import console, main
from lightning_fire.recipe.recipe import SHIPPED, find_recipe, shipped_recipes
from lightning_fire.when import AnyOf, AtEpochs, AtNewData, WhenMetric


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    Path("fire.yaml").write_text(FIRE)
    return ["fit", "-c", "base.yaml", "-c", "fire.yaml"]


def callback_of(cli, kind=methods.FIRE):
    return next(callback for callback in cli.trainer.callbacks if isinstance(getattr(callback, "method", None), kind))


def test_the_data_sets_the_length_of_training(recipe):
    cli = main(recipe)
    assert cli.trainer.current_epoch == 6
    assert cli.trainer.reload_dataloaders_every_n_epochs == 1
    assert callback_of(cli).num_events == 2


OWN_DATA = """
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset

class Images(LightningDataModule):
    loads = 0

    def train_dataloader(self):
        type(self).loads += 1
        return DataLoader(TensorDataset(torch.rand(8, 1, 28, 28), torch.arange(8)), batch_size=4)

class Monthly(Images):
    @property
    def chunk(self):  # raises before there is a Trainer
        return self.trainer.current_epoch // 2

class Counting(Images):
    def __init__(self):
        super().__init__()
        self.chunk = 0
"""


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize(
    ("kind", "words", "loads"),
    [("Monthly", [], 4), ("Monthly", ["--trainer.reload_dataloaders_every_n_epochs", "2"], 2), ("Counting", [], 4)],
)
def test_own_data_that_announces_chunks_is_loaded_in_every_epoch(kind, words, loads, recipe, tmp_path, monkeypatch):
    (tmp_path / "monthly.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    base = {**yaml.safe_load(BASE), "data": f"monthly.{kind}"}
    base["trainer"] = {"max_epochs": 4, "limit_val_batches": 0, "accelerator": "cpu", "enable_progress_bar": False}
    Path("base.yaml").write_text(yaml.safe_dump(base))
    main([*recipe, *words])
    assert getattr(sys.modules["monthly"], kind).loads == loads


def test_a_recipe_and_one_of_its_methods_are_the_same_files_one_after_the_other(recipe):
    write_recipe(Path("tiny.yaml"), BASE, {"fire": FIRE, "two": "[{class_path: FullReset}, {class_path: DASH}]"})
    words = ["--trainer.limit_val_batches", "0"]
    by_files, by_name = main([*recipe, *words]), main(["fit", "tiny.yaml", "--method", "fire", *words])
    assert callback_of(by_name).num_events == 2 and callback_of(by_name).method.steps == 5
    weights = by_files.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in by_name.model.state_dict().items())
    plain = main(["fit", "tiny.yaml", "--trainer.fast_dev_run", "1"])
    assert "FIRE" not in acting(plain.trainer)
    both = main(["fit", "tiny.yaml", "--method=two", "--trainer.fast_dev_run", "1"])
    assert {"FullReset", "DASH"} <= acting(both.trainer).keys()


def test_a_shipped_recipe_has_a_short_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cli = main(["fit", "quick_start", "--method", "fire", "--trainer.fast_dev_run", "1"])
    assert callback_of(cli).method.steps == 10


def test_recipes_are_listed_one_a_line(capsys):
    main(["recipes"])
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == shipped_recipes() and len(lines) > 20
    assert lines["quick_start"].strip().startswith("Random labels, the quick start: 600 images of Fashion-MNIST")
    for name, line in lines.items():
        comment = Path(SHIPPED, f"{name}.yaml").read_text().splitlines()[0]
        assert 20 < len(line.strip()) < 130 and line.strip() in comment and line[-1] not in ",;:."


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("x", []),  # within "wikitext", "h1_simba" has none
        (
            "permuted",
            [f"{folder}/permuted_{what}" for folder in ("board", "streams") for what in ("inputs", "labels")],
        ),
        ("cifar10_resnet18", ["vision/continual/cifar10_resnet18", "vision/warm_start/cifar10_resnet18"]),
        ("quickstart", ["quick_start"]),
        ("cartpole_solve", ["reinforcement_learning/dqn/cartpole_solved"]),
        ("nothing.yaml", []),
        ("f(x", []),
    ],
)
def test_an_unknown_recipe_is_answered_with_the_names_that_are_meant(name, near):
    with pytest.raises(FileNotFoundError) as error:
        find_recipe(name)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    assert str(error.value) == f"unknown recipe {name}: neither a file nor a name of `lightning-fire recipes`{meant}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny.yaml", "--method", "fier"], "tiny.yaml has no method fier; there are vanilla, fire"),
        (["tinny.yaml"], "unknown recipe tinny.yaml: neither a file nor a name of `lightning-fire recipes`"),
        (["-c", "tiny.yaml"], "is a recipe with methods: give it without -c, as in fit tiny.yaml --method NAME"),
        (["broken.yaml"], "broken.yaml, line 1: "),
        (["list.yaml"], "list.yaml must hold keys with values, got [1]"),
        (["three.yaml"], "`methods` in three.yaml must give each method by its name, got [1]"),
        (["five.yaml"], "five.yaml: `method` is one callback of all runs, with a class_path; did you mean `methods`?"),
        (["four.yaml"], "four.yaml: the method fire must be a class_path with init_args, or keys, got 10"),
    ],
)
def test_an_unknown_recipe_or_method_is_an_error(recipe, words, message, capsys):
    write_recipe(Path("tiny.yaml"), BASE, {"fire": FIRE})
    texts = {
        "broken": "{a: [",
        "list": "[1]",
        "three": "methods: [1]",
        "four": "methods: {fire: 10}",
        "five": "method: {fire: {}}",
    }
    for name, text in texts.items():
        Path(f"{name}.yaml").write_text(text)
    for command in ("fit", "select"):
        with pytest.raises(SystemExit) as error:
            main([command, *words])
        assert error.value.code == 2
        assert message in capsys.readouterr().err


def test_the_command_line_overrides_the_method(recipe):
    cli = main([*recipe, "--trainer.fast_dev_run", "1", "--method.init_args.steps", "exact"])
    assert callback_of(cli).method.steps == "exact"
    words = ["fit", "-c", "base.yaml", "--method", "FullReset", "--trainer.fast_dev_run", "1"]
    assert callback_of(main(words), methods.FullReset).method.fresh_seed is None


def test_several_schedules_and_callbacks_in_yaml(recipe):
    Path("more.yaml").write_text(
        """
trainer:
  callbacks+:
    - class_path: FIRECallback
      init_args:
        when:
          - {class_path: AtNewData}
          - {class_path: AtEpochs, init_args: {epochs: [3]}}
"""
    )
    cli = main(["fit", "-c", "base.yaml", "-c", "more.yaml"])
    callback = callback_of(cli)
    assert callback.when == AnyOf([AtNewData(), AtEpochs([3])])
    assert callback.num_events == 3
    assert {"OptimizerReset", "FIRECallback"} <= acting(cli.trainer).keys()


def test_a_schedule_by_a_metric_in_yaml(recipe):
    Path("when.yaml").write_text(
        "when: {class_path: WhenMetric, init_args: {metric: val/accuracy, below: 2.0}}\n"
        "trainer: {callbacks+: [{class_path: PlasticityMonitor, init_args: {data_every_n_steps: 4}}]}"
    )
    cli = main([*recipe, "-c", "when.yaml"])
    assert callback_of(cli).when == WhenMetric("val/accuracy", below=2.0)
    assert callback_of(cli).num_events == 1  # never back at 2
    assert 0 <= cli.trainer.callback_metrics["plasticity/dormant_fraction"] <= 1


@pytest.mark.parametrize(("kind", "others"), [("FIRE", ()), ("FIRECallback", ("when", "log"))])
def test_help_documents_every_key_of_the_method(capsys, kind, others):
    with pytest.raises(SystemExit):
        main(["fit", "--method.help", kind])
    text = capsys.readouterr().out
    for key in ("where", "steps", "coefficients", "scale", "optimizer_state", *others):
        assert f"--method.{key} " in text or f"--method.init_args.{key} " in text, key
    assert "Newton–Schulz steps" in text  # from the class docstring


def test_print_config_is_a_recipe_again(recipe, capsys):
    with pytest.raises(SystemExit):
        main([*recipe, "--print_config"])
    Path("whole.yaml").write_text(capsys.readouterr().out)
    callback = callback_of(main(["fit", "-c", "whole.yaml", "--trainer.fast_dev_run", "1"]))
    assert (callback.when, callback.method.steps, callback.method.where.exclude) == (AtNewData(), 5, ["net.head"])


def test_a_run_can_be_resumed_and_tested_from_its_checkpoint(recipe):
    save = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"dirpath": "saved", "filename": "{epoch}", "save_top_k": -1, "save_on_train_epoch_end": True},
    }
    Path("save.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks+": [save]}}))
    words = [*recipe, "-c", "save.yaml"]
    whole = main(words)
    resumed = main([*words, "--ckpt_path", "saved/epoch=1.ckpt"])
    for a, b in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert callback_of(resumed).num_events == 2
    tested = main(["test", "-c", "base.yaml", "-c", "save.yaml", "--ckpt_path", "saved/epoch=5.ckpt"])
    assert "test/accuracy" in tested.trainer.callback_metrics


def test_the_progress_bar_names_the_chunk(recipe, capsys):
    cli = main([*recipe, "--trainer.enable_progress_bar", "true"])
    assert isinstance(cli.trainer.progress_bar_callback, ChunkProgressBar)
    assert "Epoch 5 (chunk 3/3)" in capsys.readouterr().out


def test_a_users_own_module_and_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["fit", "--model", "small_training.PlainModule", "--data", "small_training.GrowingData"]
    words += ["--trainer.max_epochs", "6", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    cli = main([*words, "--method.class_path", "FIRE"])
    assert callback_of(cli).num_events == 2


def test_select_shows_the_weights_of_a_recipe_and_trains_nothing(recipe, capsys, tmp_path):
    main(["select", *recipe[1:]])
    text = capsys.readouterr().out
    assert "FIRE(where=Weights(preset='cnn', include=None, exclude=['net.head']))" in text
    assert re.search(r"net\.stem\.0\.weight +4×1×3×3 +4×1×3×3 +taken", text)
    assert re.search(r"net\.head\.0\.weight .* excluded", text)
    assert not (tmp_path / "lightning_logs").exists()
    rows = {row["name"]: row for row in json.loads(main(["select", *recipe[1:], "--json"]))}
    stem = {"method": "FIRE", "name": "net.stem.0.weight", "shape": [4, 1, 3, 3], "matrices": "4×1×3×3"}
    assert rows["net.stem.0.weight"] == {**stem, "reason": "taken"}
    assert "excluded" in rows["net.head.0.weight"]["reason"]
    assert "no method that selects weights" in error_of(["select", "-c", "base.yaml"], capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--when", "AtEpochs", "--when.epochs", "[500]"], r"can never act: training ends after"),
        (["--method.where.include", '["layer9"]'], r"`include` has 'layer9', which matches no weight"),
        (["--data.protocol.num_chunks", "20000"], "chunks"),
        (["--trainer.max_epochs", "5"], "takes 6 epochs in all, but the Trainer has max_epochs=5"),
    ],
)
def test_an_error_before_training_is_one_line_without_a_traceback(recipe, words, message, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["lightning-fire", *recipe, *words])
    with pytest.raises(SystemExit) as refusal:
        console()
    assert refusal.value.__suppress_context__
    assert re.fullmatch(f"lightning-fire: error: .*{message}.*", refusal.value.code)  # the interpreter prints it
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("gpu", "searched"), [(False, "0"), (True, "1")])
def test_without_a_gpu_no_step_of_an_optimizer_searches_for_one(gpu, searched, monkeypatch):
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as Lightning sets it
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(sys, "argv", ["lightning-fire", "compare", "--help"])
    with pytest.raises(SystemExit):
        console()
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == searched


COMMANDS = {
    "reinit net.pt -o new.pt": "SFE/?W?? of all together",
    "diagnose net.pt": "SFE/?W??",
    "select -c base.yaml -c fire.yaml": "4?1?3?3",
    "compare --help": "mean ? standard",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_characters_that_the_terminal_lacks_are_replaced(recipe, words, monkeypatch):
    torch.save(nn.Linear(3, 2).state_dict(), "net.pt")
    monkeypatch.setattr(sys, "argv", ["lightning-fire", *words.split()])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with contextlib.suppress(SystemExit):  # of --help
        console()
    sys.stdout.flush()
    assert COMMANDS[words] in sys.stdout.buffer.getvalue().decode("ascii")


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_closed_pipe_is_not_an_error(recipe, words, at_once, monkeypatch, capfd):
    """As after `| head`: printing fails within a command, or when it has ended."""
    torch.save(nn.Linear(3, 2).state_dict(), "net.pt")
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb", buffering=0 if at_once else -1) as raw, monkeypatch.context() as patch:
        output = io.TextIOWrapper(raw, write_through=at_once)  # as with and without `python -u`
        patch.setattr(sys, "argv", ["lightning-fire", *words.split()])
        patch.setattr(sys, "stdout", output)
        try:
            code = console()
        except SystemExit as leaving:
            code = leaving.code
    assert code in ((141, 0) if at_once else (None, 0))  # argparse does not care whether its help is read
    assert "rror" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        ("{class_path: ShrinkAndPerturb}", r"net.head.2.bias +10 +taken"),
        ("{class_path: Parseval, init_args: {strength: 0.1, norms: true}}", "and the scales of normalization layers"),
        ("{class_path: SpectralRegularization, init_args: {strength: 0.1}}", "and the biases of their layers"),
        ("{class_path: FullReset}", "FullReset acts on every parameter and buffer"),
        ("{class_path: ReDo}", r"finds its units when training starts, .*HiddenUnits\(.*\).select\(model, lambda"),
    ],
)
def test_select_shows_what_the_siblings_act_on(recipe, capsys, overlay, line):
    Path("sibling.yaml").write_text(f"method: {overlay}\n")
    main(["select", "-c", "base.yaml", "-c", "sibling.yaml"])
    text = capsys.readouterr().out
    assert re.search(line, text)
    assert "tensor(" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["nonsense"],
            "no command 'nonsense'; there are init, recipes, recipe, fit, validate, test, select, compare, sweep,"
            " board, aggregate, diagnose, reinit, prepare-text",
        ),
        ([], "a command is needed"),
    ],
)
def test_unknown_commands(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_do_not_import_torch(word):
    code = "import sys; from lightning_fire.cli import main\ntry:\n    main([sys.argv[1]])\nfinally:\n"
    code += "    assert not {'torch', 'lightning', 'numpy', 'matplotlib'} & set(sys.modules)"
    words = [sys.executable, "-c", code, word]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    version = importlib.metadata.version("lightning-fire")
    assert result.stdout.strip() == version if word == "--version" else "fit quick_start --method fire" in result.stdout


@pytest.mark.parametrize("command", ["compare", "sweep", "board"])
def test_help_of_commands_over_recipes_does_not_import_torch(command):
    """It takes a second, with torch several."""
    code = "import sys; from lightning_fire.cli import main\ntry:\n    main([sys.argv[1], '--help'])\nfinally:\n"
    code += "    assert not {'torch', 'lightning', 'pandas', 'matplotlib'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and f"usage: lightning-fire {command}" in result.stdout, result.stderr


def test_select_prints_its_usage(capsys):
    for words, code in ((["--help"], 0), ([], 2)):
        with pytest.raises(SystemExit) as leaving:
            main(["select", *words])
        assert leaving.value.code == code
        assert "usage: lightning-fire select RECIPE --method NAME" in capsys.readouterr().out
