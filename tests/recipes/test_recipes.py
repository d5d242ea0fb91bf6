"""Every recipe is parsed, and runs for two batches on small files in the formats of its data set."""

import math
import re
from pathlib import Path

import pytest
import torch
import yaml
from image_files import write_cifar10, write_cifar100, write_fashion_mnist, write_tiny_imagenet
from jsonargparse import Namespace
from recipe_files import EVERY, ROOT, Unbuilt, acting, arguments_of, diagonal, methods_of, name_of

import lightning_fire.data
from lightning_fire.cli import main
from lightning_fire.methods import FIRE, L2Init, ReDo
from lightning_fire.nets import ResNet
from lightning_fire.recipe.cli import RecipeCLI
from lightning_fire.recipe.parser import callbacks_of
from lightning_fire.recipe.recipe import find_recipe, shipped_recipes
from lightning_fire.when import EveryNEpochs

OTHERS = {
    "board",
    "language",
    "reinforcement_learning",
    "slowly_changing_regression.yaml",
}  # each has its own test file
OF_IMAGES = [path for path in EVERY if not OTHERS & set(path.parts)]
METHODS = {"vanilla", "full_reset", "fire", "shrink_and_perturb", "l2_init", "parseval", "dash", "redo", "snr", "muon"}
METHODS |= {"continual_backprop"}  # those of the paper's vision experiments
FILES = {
    "CIFAR10DataModule": write_cifar10,
    "CIFAR100DataModule": write_cifar100,
    "FashionMNISTDataModule": write_fashion_mnist,
    "TinyImageNetDataModule": write_tiny_imagenet,
}
STREAMS = {"quick_start", "permuted_inputs", "permuted_labels", "slow_drift"}
pytestmark = [pytest.mark.filterwarnings(r"ignore:The .* does not have many workers:UserWarning")]


@pytest.fixture
def image_files(tmp_path, monkeypatch):
    """Return a function that writes small files for a DataModule and returns their folder."""

    def write(data: str) -> Path:
        root = tmp_path / "data"
        source = getattr(lightning_fire.data, data)
        files = FILES[data](root) or {}
        for name, value in files.items():
            monkeypatch.setattr(getattr(source, "source", source), name, value)
        return root

    return write


def test_there_are_recipes():
    assert len(PAPER_SIZED) == 8  # warm-start and continual: 3 nets each, class-incremental: 2
    assert len(OF_IMAGES) >= 14 and "vision/gpu" not in shipped_recipes()
    assert {path.stem for path in OF_IMAGES} >= STREAMS


@pytest.mark.parametrize("path", OF_IMAGES, ids=name_of)
def test_every_recipe_has_the_methods(path):
    assert set(methods_of(path)) >= METHODS


@pytest.mark.parametrize("path", EVERY, ids=name_of)
def test_every_recipe_starts_with_its_source_its_command_and_what_to_expect(path):
    text = path.read_text()
    assert text.startswith("# ")
    assert re.search(f"#   lightning-fire (compare|fit) {name_of(path)}", text)
    assert "# Expected:" in text


@pytest.fixture(scope="module")
def parser():
    return Unbuilt(find_recipe("quick_start").words("vanilla"), run=False).parser


def distinct(paths: list[Path]) -> list[tuple[Path, str]]:
    """Return pairs of recipe and method: of methods that are set alike the first, for each class that they set, too."""
    found: dict[tuple[str, ...], tuple[Path, str]] = {}
    for path in paths:
        recipe = find_recipe(path)
        classes = re.findall(r"class_path: ([\w.]+)", yaml.safe_dump(recipe.base.get("model")))
        for method in methods_of(path):
            words = recipe.words(method)[-1]
            found.setdefault((words, *(classes if "model" in words else ())), (path, method))
    assert {path for path, _ in found.values()} == set(paths)
    return list(found.values())


@pytest.mark.parametrize(
    ("path", "method"),
    distinct(EVERY),
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_every_method_of_every_recipe_is_parsed_and_built(parser, path, method):
    """Every class that it names is in the configuration."""
    words = find_recipe(path).words(method)
    parsed = parser.parse_args(words)
    parser.instantiate(Namespace(method=parsed.method))
    config = str(parsed)
    named = re.findall(r"(?:class_path|normalization|activation): ([\w.]+)", words[-1])
    assert named or "model" in words[-1]  # plain numbers of the module
    assert all(name.rsplit(".", 1)[-1] in config for name in named)


def settings_of(path: Path) -> tuple[str, dict]:
    data = find_recipe(path).base["data"]
    return data["class_path"].rsplit(".", 1)[1], data["init_args"]


FASTER = re.compile(r"# (channels_last|compile|precision): ")


@pytest.mark.parametrize("recipe", [path for path in OF_IMAGES if path.stem not in STREAMS], ids=name_of)
def test_the_configuration_for_a_gpu_suits_every_recipe_of_images(parser, recipe):
    """It is laid over each, and validates at the end of each chunk."""
    words = [*find_recipe(recipe).words("vanilla"), "-c", str(ROOT / "vision" / "gpu.yaml")]
    config = parser.parse_args(words)
    assert config.model.init_args.compile and config.trainer.precision == "bf16-mixed"
    epochs = find_recipe(recipe).base["data"]["init_args"]["protocol"]["init_args"]["epochs"]
    if "small" not in recipe.stem:
        assert all(
            n % config.trainer.check_val_every_n_epoch == 0 for n in (epochs if isinstance(epochs, list) else [epochs])
        )


def test_the_small_reset_shrinks_every_matrix_of_resnet18():
    recipe = find_recipe("vision/warm_start/fashion_mnist_resnet18")
    cli = Unbuilt(recipe.words("vanilla"), run=False)
    net = ResNet(**cli.config.model.init_args.net.init_args)
    (pattern,) = recipe.methods["small_reset"]["method"][1]["init_args"]["method"]["init_args"]["where"]["init_args"][
        "include"
    ]
    matrices = {name for name, weight in net.named_parameters() if weight.ndim > 1}
    assert {name for name, _ in net.named_parameters() if re.search(pattern, name)} == matrices
    assert len(matrices) == 22


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [path for path in OF_IMAGES if path.stem not in STREAMS], ids=name_of)
def test_what_makes_a_recipe_faster_is_there_as_comments(recipe, tmp_path):
    """Without their comment signs they are in force."""
    path = tmp_path / "faster.yaml"
    path.write_text(FASTER.sub(r"\1: ", recipe.read_text()))
    cli = RecipeCLI([*find_recipe(path).words("vanilla"), "--trainer.accelerator", "cpu"], run=False)
    assert (cli.model.memory_format == torch.channels_last) == ("vit" not in recipe.stem)
    assert cli.model.net._compiled_call_impl is not None
    assert cli.trainer.precision == "bf16-mixed"
    plain = find_recipe(recipe).base
    assert "compile" not in plain["model"]["init_args"]
    assert "precision" not in plain["trainer"]


PAPER_PROTOCOLS = {
    "warm_start": {"fraction": 0.1, "epochs": [1000, 100]},
    "continual": {"num_chunks": 10, "epochs": 100},
    "class_incremental": {"num_chunks": 20, "epochs": 100},
}


PAPER_SIZED = [path for path in OF_IMAGES if "fashion" not in path.stem and path.stem not in STREAMS]


@pytest.mark.parametrize("path", PAPER_SIZED, ids=name_of)
def test_paper_sized_recipes_carry_the_papers_numbers(path):
    """Table "Detailed settings in continual visual learning" and the appendix' text."""
    config = find_recipe(path).base
    assert config["data"]["init_args"]["protocol"]["init_args"] == PAPER_PROTOCOLS[path.parent.name]
    assert config["data"]["init_args"]["batch_size"] == 256
    assert config["trainer"]["gradient_clip_val"] == 0.5
    assert config["model"]["init_args"]["warmup"] == 0.1
    assert config["model"]["init_args"]["optimizer"] == {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}}
    fire = arguments_of(path, "fire")
    assert fire["steps"] == 10
    assert fire["where"]["init_args"]["preset"] == ("vit" if "vit" in path.stem else "cnn")


# tables "Hyperparameters for Warm-Start setting", "… Continual Setting", "… Class-Incremental Setting"
# λ of S&P; α, λ of DASH; λ of Parseval; λ of L2 Init; τ of ReDo; ρ, m of CBP; τ of SNR
TUNED = {
    "warm_start/cifar10_resnet18": (0.8, 0.3, 0.05, 1e-3, 1e-3, 0.5, 1e-4, 1000, 0.01),
    "warm_start/cifar100_vit_tiny": (0.8, 0.1, 0.05, 1e-5, 1e-3, 0.5, 1e-4, 100, 0.01),
    "warm_start/tiny_imagenet_vgg16": (0.8, 0.1, 0.05, 1e-3, 1e-3, 0.5, 1e-4, 1000, 0.08),
    "continual/cifar10_resnet18": (0.8, 0.3, 0.05, 1e-3, 1e-5, 0.05, 1e-5, 1000, 0.08),
    "continual/cifar100_vit_tiny": (0.8, 0.1, 0.05, 1e-5, 1e-4, 0.01, 1e-5, 1000, 0.04),
    "continual/tiny_imagenet_vgg16": (0.8, 0.1, 0.1, 1e-4, 1e-5, 0.01, 1e-5, 1000, 0.01),
    "class_incremental/cifar100_vit_tiny": (0.8, 0.3, 0.3, 1e-5, 1e-5, 0.01, 1e-5, 1000, 0.08),
    "class_incremental/tiny_imagenet_vgg16": (0.8, 0.3, 0.1, 1e-3, 1e-4, 0.05, 1e-4, 1000, 0.02),
}


@pytest.mark.parametrize("recipe", sorted(TUNED))
def test_paper_sized_recipes_carry_the_papers_tuned_values(recipe):
    def settings(method):
        return arguments_of(ROOT / "vision" / f"{recipe}.yaml", method)

    shrink, alpha, minimum, parseval, l2, redo, rate, maturity, snr = TUNED[recipe]
    assert settings("shrink_and_perturb")["strength"] == shrink
    assert (settings("dash")["alpha"], settings("dash")["minimum"]) == (alpha, minimum)
    assert settings("parseval")["strength"] == parseval
    assert settings("l2_init")["strength"] == pytest.approx(l2 / 2)  # the authors' code has λ/2
    assert settings("redo")["threshold"] == redo
    assert settings("continual_backprop")["replacement_rate"] == rate
    assert settings("continual_backprop")["maturity"] == maturity
    assert settings("snr")["rejection"] == snr
    for method in ("parseval", "l2_init", "redo", "continual_backprop", "snr"):
        layer = find_recipe(f"vision/{recipe}").methods[method]
        assert layer.get("start_chunk", 0) == int(recipe.startswith("warm_start"))


UNIT_RESETS = [path for path in OF_IMAGES if path.parent.parent.name == "vision"]


@pytest.mark.parametrize("path", UNIT_RESETS, ids=name_of)
def test_unit_resets_score_as_in_the_code_for_which_the_papers_values_were_tuned(path):
    """The authors' code: outputs of layers, before normalization; ReDo by the last 512, at the end of each epoch."""
    redo, snr = arguments_of(path, "redo"), arguments_of(path, "snr")
    continual_backprop = arguments_of(path, "continual_backprop")
    assert {settings["score"] for settings in (redo, snr, continual_backprop)} == {"pre_activation"}
    assert redo["num_batches"] * find_recipe(path).base["data"]["init_args"]["batch_size"] == 512
    recipe = find_recipe(path)
    assert "when" not in {**recipe.base, **recipe.methods["redo"]} and ReDo.when == EveryNEpochs(1)
    assert continual_backprop["compensate"] is False


def test_the_search_space_is_that_of_the_paper():
    """Table "Hyperparameter search space for all experiments"; λ of L2 Init halved. Its points build the methods."""
    space = yaml.safe_load((ROOT / "vision" / "search_space.yaml").read_text())
    sizes = {method: math.prod(map(len, arguments.values())) for method, arguments in space.items()}
    assert sizes == {
        "shrink_and_perturb": 4,
        "dash": 6,
        "parseval": 3,
        "continual_backprop": 4,
        "redo": 4,
        "l2_init": 3,
        "snr": 4,
    }
    for recipe in TUNED:  # what was found best lies in it
        for method, arguments in space.items():
            chosen = arguments_of(ROOT / "vision" / f"{recipe}.yaml", method)
            for name, values in arguments.items():
                assert chosen[name] in [pytest.approx(value) for value in values]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "method"), diagonal(OF_IMAGES), ids=lambda value: value if isinstance(value, str) else name_of(value)
)
def test_recipes_and_methods_run_two_batches(path, method, tmp_path, monkeypatch, image_files):
    data, arguments = settings_of(path)
    words = ["fit", str(path), "--method", method, "--trainer.fast_dev_run", "2", "--data.init_args.batch_size", "4"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
    words += ["--trainer.accelerator", "cpu"]
    if "root" in arguments:
        words += ["--data.init_args.root", str(image_files(data))]
    if arguments.get("subset"):
        words += ["--data.init_args.subset", "60"]
    monkeypatch.chdir(tmp_path)
    cli = main(words)
    assert cli.trainer.global_step == 2
    named = acting(cli.trainer).keys()
    assert {"PlasticityMonitor", *([] if path.stem in STREAMS else ["OptimizerReset"])} <= named
    own = find_recipe(path).methods.get(method, {}).get("method", [])
    for one in own if isinstance(own, list) else [own]:
        one = one["init_args"]["method"] if one["class_path"] == "PlasticityCallback" else one
        assert one["class_path"] in named
    if method == "muon":
        assert type(cli.trainer.optimizers[0]).__name__ == "Muon"
        assert ("UseMuon" in named) == (path.parent.name == "warm_start")


def test_a_schedule_beside_nothing_but_methods_of_every_step_is_told_to_have_no_effect(caplog):
    callbacks_of([L2Init(1e-3), FIRE()], EveryNEpochs(1), 0, None)
    assert not caplog.messages
    callbacks_of(L2Init(1e-3), EveryNEpochs(1), 0, None)
    assert "`when` has no effect: L2Init has a schedule of its own, or acts at every step." in caplog.messages
