"""Recipes of reinforcement learning: the paper's numbers, and some rollouts of each."""

import re
from importlib.util import find_spec

import pytest
from recipe_files import ROOT, acting, diagonal, methods_of, name_of

from lightning_fire.cli import main
from lightning_fire.experiments.branching import with_shared_starts
from lightning_fire.experiments.runs import plan
from lightning_fire.recipe.recipe import find_recipe

FOLDER = ROOT / "reinforcement_learning"
PATHS = sorted(FOLDER.rglob("*.yaml"))
METHODS = {
    "fire": "FIRE",
    "fire_everywhere": "FIRE",
    "fire_procrustes": "FIRE",
    "fire_reset_head": "FIRE",
    "full_reset": "FullReset",
    "optimizer_reset": "OptimizerReset",
    "plasticity_injection": "PlasticityInjection",
    "shrink_and_perturb": "ShrinkAndPerturb",
}
NEEDS = {
    "atari_nature_cnn": ("ale_py", "cv2"),
    "humanoid_simba": ("shimmy", "dm_control"),
    "h1_simba": ("humanoid_bench",),
    "lunar_lander_mlp": ("Box2D", "pygame"),
}
RUNS = diagonal([path for path in PATHS if all(map(find_spec, NEEDS.get(path.stem, ())))])
SMALL = (
    "--data.init_args.initial_steps 8 --data.init_args.batch_size 4"
    " --data.init_args.capacity 64 --trainer.max_epochs 2 --trainer.accelerator cpu --trainer.logger false"
    " --trainer.enable_progress_bar false --trainer.enable_model_summary false --trainer.limit_val_batches 0"
    " --trainer.enable_checkpointing false"
)


def test_there_are_recipes():
    methods = {path.stem: set(methods_of(path)) for path in PATHS}
    assert methods.pop("cartpole_solved") == {"vanilla"}
    assert set(methods) == {"atari_nature_cnn", "cartpole_mlp", "h1_simba", "humanoid_simba", "lunar_lander_mlp"}
    variants = {"fire_everywhere", "fire_procrustes", "fire_reset_head", "optimizer_reset"}
    assert all(there >= {"vanilla", *METHODS} - variants for there in methods.values())


@pytest.mark.slow
@pytest.mark.parametrize("path, method", RUNS, ids=[f"{name_of(path)} {method}" for path, method in RUNS])
def test_recipes_run_and_methods_act_once_at_half_of_training(tmp_path, path, method):
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package)  # without its warnings, which would be errors
    steps = 20 if path.stem == "cartpole_solved" else 8
    words = [*SMALL.split(), f"--data.init_args.steps_per_epoch={steps}", f"--trainer.default_root_dir={tmp_path}"]
    cli = main(["fit", str(path), "--method", method, *words])
    assert cli.datamodule.environment_steps == 8 + 2 * steps
    events = {name: c for name, c in acting(cli.trainer).items() if hasattr(c, "num_events")}
    assert all(callback.num_events == 1 for callback in events.values())
    assert method == "vanilla" or METHODS[method] in events


@pytest.mark.slow
def test_the_authors_setting_of_atari_is_one_override(tmp_path):
    """Four games at a time, and four updates for their four steps: its line at the head of the recipe."""
    for package in NEEDS["atari_nature_cnn"]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    path = FOLDER / "dqn" / "atari_nature_cnn.yaml"
    (override,) = re.findall(r"--set (data\.init_args\.num_envs=\d)", path.read_text())
    words = [*SMALL.split(), "--data.init_args.capacity=128", "--data.init_args.steps_per_epoch=8"]
    words += [f"--{override}", f"--trainer.default_root_dir={tmp_path}"]
    cli = main(["fit", str(path), "--method", "fire", *words])
    data, updates = cli.datamodule, cli.trainer.global_step
    assert (data.num_envs, data.updates, data.rounds_per_epoch) == (4, 4, 2)
    assert (data.environment_steps, updates) == (8 + 2 * 8, 2 * 8)
    steps = settings("dqn/atari_nature_cnn")[1]["steps_per_epoch"]
    assert steps % 4 == 0  # whole rollouts at its size


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in PATHS if path.stem != "cartpole_solved"], ids=name_of)
def test_all_methods_are_branches_of_one_training(tmp_path, path):
    runs = with_shared_starts(plan(find_recipe(path), methods_of(path), [0], tmp_path))
    assert [run.method for run in runs if run.start is None] == []


def settings(name: str) -> tuple[dict, dict, dict]:
    base = find_recipe(f"reinforcement_learning/{name}").base
    return base["model"]["init_args"], base["data"]["init_args"], base["trainer"]


def test_the_papers_numbers_on_atari():
    """Table "Hyperparameters used in the ALE environment with DQN algorithm"."""
    model, data, trainer = settings("dqn/atari_nature_cnn")
    assert model["optimizer"] == {
        "class_path": "torch.optim.Adam",
        "init_args": {"lr": 6.25e-5, "eps": 1.5e-4, "fused": True},
    }
    assert (model["epsilon"], model["evaluation_epsilon"], model["discount"]) == (0.01, 0.001, 0.99)
    assert model["target_update_period"] == 2000
    assert (data["capacity"], data["batch_size"], data["initial_steps"], data["replay_ratio"]) == (10**6, 32, 20000, 1)
    assert data["initial_steps"] + trainer["max_epochs"] * data["steps_per_epoch"] == 10 * 250_000
    assert trainer["devices"] == 1


@pytest.mark.parametrize("folder", ["h1_simba", "humanoid_simba"])
def test_the_papers_numbers_on_humanoids(folder):
    """Table "Hyperparameters used in HumanoidBench environments with SimBa"."""
    model, data, trainer = settings(f"sac/{folder}")
    assert model["optimizer"]["init_args"] == {"lr": 1e-4, "weight_decay": 0.01, "fused": True}
    actor, critic = model["actor"]["init_args"], model["critic"]["init_args"]
    assert (actor["hidden"], actor["blocks"], critic["hidden"], critic["blocks"]) == (128, 1, 512, 2)
    assert (model["discount"], model["tau"]) == (0.99, 0.005)
    assert (data["capacity"], data["batch_size"], data["initial_steps"], data["replay_ratio"]) == (10**6, 256, 5000, 2)
    assert data["environment"]["init_args"]["action_repeat"] == 2
    frames = 2 * (data["initial_steps"] + trainer["max_epochs"] * data["steps_per_epoch"])
    assert frames == 10**6  # figure "Reinforcement learning results" (b)
    assert trainer["devices"] == 1
