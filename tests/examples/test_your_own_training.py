"""Each snippet of docs/your_own_training.md and docs/continual_rl.md runs as its section describes."""

import copy
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

for library in ("accelerate", "pytorch_lightning", "stable_baselines3", "torchrl", "transformers"):
    pytest.importorskip(library)

import own_trainings  # noqa: E402
import stable_baselines3  # noqa: E402
from pages import blocks_of, names_of_the_reader, undefined_names  # noqa: E402
from small_training import PlainModule  # noqa: E402

from lightning_fire import Weights  # noqa: E402
from lightning_fire.functional import dfi_normalized  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "your_own_training.md").read_text() + "\n" + (DOCS / "continual_rl.md").read_text()
SECTIONS = {title: body for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run one snippet of a section alone, with the names that the section calls the reader's; return all names."""
    monkeypatch.chdir(tmp_path)

    def run_section(title, number=0, shorter=()):
        of_the_reader = own_trainings.names(tmp_path)
        if title == "CleanRL":
            of_the_reader["optimizer"] = of_the_reader["q_optimizer"]
        snippet = list(re.finditer(r"```python\n(.*?)```", SECTIONS[title], re.DOTALL))[number]
        code = snippet[1]
        for long, short in shorter:
            assert long in code
            code = code.replace(long, short)
        names = {name: of_the_reader[name] for name in names_of_the_reader(SECTIONS[title][: snippet.start()])}
        exec(compile(code, title, "exec"), names)
        return names

    return run_section


def deviation(model):
    """The largest normalized deviation from isometry of a weight that FIRE takes; 0.5 to 1 for new layers."""
    return max(float(dfi_normalized(view.read())) for view in Weights().select(model))


def steps_of(optimizer, model):
    """Steps that Adam has counted for each parameter."""
    return {name: int(optimizer.state[p]["step"]) for name, p in model.named_parameters() if p in optimizer.state}


@pytest.mark.parametrize(("title", "module"), [("A plain loop", "model"), ("Fabric", "wrapped")])
def test_plain_loop_and_fabric(run, title, module, capsys):
    names = run(title)
    counted = {name.rpartition("_module.")[2]: n for name, n in steps_of(names["optimizer"], names[module]).items()}
    assert counted == {"0.weight": 4, "0.bias": 8, "2.weight": 4, "2.bias": 8}  # two months of 4 batches
    assert deviation(names["model"]) < 0.05


def test_pytorch_lightning(run):
    names = run("pytorch_lightning")
    assert deviation(names["own_module"]) < 0.05
    counted = steps_of(names["trainer"].optimizers[0], names["own_module"])
    assert counted == {"net.0.weight": 8, "net.0.bias": 16, "net.2.weight": 8, "net.2.bias": 16}


def ppo(environment):
    return stable_baselines3.PPO("MlpPolicy", environment, n_steps=32, batch_size=32, n_epochs=1, device="cpu", seed=0)


def test_every_snippet_on_environments_can_be_copied_alone():
    for block in blocks_of(DOCS / "continual_rl.md", "python"):
        assert not undefined_names(block.code) - block.yours, block.code


def test_stable_baselines3_between_two_trainings(run, tmp_path):
    ppo("CartPole-v1").learn(64).save(tmp_path / "agent")
    names = run("Stable-Baselines3", shorter=[("10_240", "64")])
    agent = names["agent"]
    steps = steps_of(agent.policy.optimizer, agent.policy)
    assert agent.num_timesteps == 128
    assert {name: 4 - 2 * (p.ndim == 2 and len(p) > 1) for name, p in agent.policy.named_parameters()} == steps
    assert deviation(agent.policy) < 0.05
    said = re.search(r"Shrink and perturb: `(.*?)`, then `(.*?)`", " ".join(SECTIONS["Stable-Baselines3"].split()))
    before = copy.deepcopy(agent.policy.state_dict())
    exec(f"from lightning_fire import initial_values, shrink_and_perturb_\n{said[1]}\n{said[2]}", names)
    for name, value in agent.policy.state_dict().items():
        torch.testing.assert_close(value, (before[name] + names["initial"][name]) / 2)
    assert not agent.policy.optimizer.state


def test_stable_baselines3_dqn_between_two_trainings(run, tmp_path):
    old = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", learning_starts=50, device="cpu", seed=0)
    old.learn(200).save(tmp_path / "agent")
    agent = run("Stable-Baselines3", 1, shorter=[("10_240", "200")])["agent"]
    assert agent.num_timesteps == agent.replay_buffer.size() == 200  # both count from 0 again
    steps = steps_of(agent.policy.optimizer, agent.q_net)
    assert steps["q_net.0.bias"] > steps["q_net.0.weight"] > 0
    for name, value in agent.q_net_target.state_dict().items():  # of the event: copied again after 10,000 timesteps
        assert name.endswith("bias") or float(dfi_normalized(value)) < 0.1


@pytest.mark.parametrize("with_adam", [False, True])
def test_stable_baselines3_decides(run, tmp_path, with_adam):
    """Also with the state of Adam, as the page says."""
    agent = ppo("CartPole-v1").learn(32)
    agent.save(tmp_path / "agent")
    text, start = " ".join(SECTIONS["How to decide"].split()), "start(agent.policy)"
    zipped = re.search(r"`(zipfile\..*?)`", text)[1]
    os.rename(eval(zipped, {"zipfile": zipfile}), "old.pt")
    if with_adam:
        state, start = re.search(r"with its state, save `(.*?)` and call `(.*?)`", text).groups()
        torch.save(eval(state, {"agent": agent}), "old.pt")
    shorter = [("10_240", "32"), ("=40", "=1"), ("seeds=5", "seeds=1"), ("def train", "begun = {}\n\ndef train")]
    shorter += [('device="cpu"', 'device="cpu", n_steps=32, batch_size=32, n_epochs=1')]
    shorter += [("start(agent.policy)", f"{start}\n    begun[start.name] = len(agent.policy.optimizer.state)")]
    begun = run("How to decide", shorter=shorter)["begun"]
    expected = {"vanilla": 12, "scratch": 0, "fire": 7, "shrink_and_perturb": 0}
    assert begun == (expected if with_adam else dict.fromkeys(expected, 0))


def test_stable_baselines3(run, caplog):
    names = run("Stable-Baselines3", 2)
    agent = names["agent"]
    assert "fire acted at timestep 200 (dfi_normalized " in caplog.text
    steps = steps_of(agent.policy.optimizer, agent.q_net)
    assert steps["q_net.0.bias"] > steps["q_net.0.weight"] == steps["q_net.4.weight"]
    assert agent.replay_buffer.size() == 200
    said = re.search(r"\*\*ReDo\*\*: `(.*?)`, after `(.*?)`", " ".join(SECTIONS["Stable-Baselines3"].split()))
    exec(f"{said[2]}\nredo = {said[1].replace('4000', '200')}", names)
    agent.learn(200, callback=names["redo"], reset_num_timesteps=False)
    assert "redo acted at timestep " in caplog.text


def test_rsl_rl(run):
    """With networks and an optimizer where the runner of the library has them; the real one: examples/neighbours."""
    algorithm = run("rsl_rl")["algorithm"]
    for part in algorithm.actor, algorithm.critic:
        assert steps_of(algorithm.optimizer, part) == {"0.weight": 10, "0.bias": 20, "2.weight": 10, "2.bias": 20}


def test_cleanrl(run):
    """After the second half: its 100 steps are counted for weights, all 200 for biases; targets were copied since."""
    names = run("CleanRL")
    q_network = names["q_network"]
    assert steps_of(names["optimizer"], q_network) == {"0.weight": 100, "0.bias": 200, "2.weight": 100, "2.bias": 200}
    for value, target in zip(q_network.parameters(), names["target_network"].parameters(), strict=True):
        assert torch.equal(value, target)  # at step 200


def test_torchrl(run):
    names = run("torchrl")
    loss, actor = names["loss_module"], names["actor"]
    assert deviation(actor) < 1e-5
    for key in (("module", "0", "module", "0", "weight"), ("module", "0", "module", "2", "weight")):
        weight = dict(actor.named_parameters())[f"module.0.module.{key[3]}.weight"]
        assert torch.equal(loss.value_network_params[key], weight)
        assert torch.equal(loss.target_value_network_params[key], weight)


@pytest.mark.slow
@pytest.mark.parametrize("short", [False, True])
def test_lightning_cli(tmp_path, short):
    (yaml,) = re.findall(r"```yaml\n(.*?)```", SECTIONS["Your own LightningCLI"], re.DOTALL)
    yaml = yaml.replace("[20, 40]", "[2]").replace("trainer:", "trainer:\n  max_epochs: 4\n  logger: false")
    if short:
        yaml = yaml.replace("lightning_fire.", "")
    (tmp_path / "config.yaml").write_text(yaml)
    (tmp_path / "train.py").write_text(
        f"{'import lightning_fire.callbacks' if short else ''}\n"
        "from lightning.pytorch.cli import LightningCLI\n"
        "from small_training import GrowingData, PlainModule\n"
        "LightningCLI(PlainModule, GrowingData, save_config_callback=None)\n"
    )
    said = told_by_cli(tmp_path, "fit", "--config", "config.yaml")
    assert "FIRECallback acted at epoch 2, step 4" in said
    assert "RestartSchedulers acted at epoch 2, step 4" in said


@pytest.mark.slow
def test_lightning_cli_in_a_process_each_week(tmp_path):
    text = SECTIONS["Your own LightningCLI"]
    (when,) = re.findall(r"^# in a process each week .* when: (.*)", text, re.MULTILINE)
    callback = f"{{class_path: lightning_fire.FIRECallback, init_args: {{when: {when}}}}}"
    options = "max_epochs: 1, logger: false, enable_checkpointing: false"
    (tmp_path / "weekly.yaml").write_text(f"trainer: {{{options}, callbacks: [{callback}]}}\n")
    torch.save({"state_dict": PlainModule().state_dict()}, tmp_path / "last_week.ckpt")
    made, loaded, fitted = (
        re.search(rf"`({start}.*)`", text)[1].split("`")[0] for start in ("cli = ", "cli.m", "cli.t")
    )
    (tmp_path / "train.py").write_text(
        "import torch\nfrom lightning.pytorch.cli import LightningCLI\n"
        "from small_training import PlainData as Weeks, PlainModule as Network\n"
        f"{made}\n{loaded}\n{fitted}\n"
    )
    assert "FIRECallback acted at epoch 0, step 0" in told_by_cli(tmp_path, "--config", "weekly.yaml")


def told_by_cli(folder, *words):
    """Run train.py; return what it says."""
    support = str(Path(__file__).parents[1] / "support")
    done = subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{support}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
