"""The logs of DQN and SAC, and their axis."""

import csv
from pathlib import Path

import pytest
import torch
from environments import Corridor, Slope
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from replay_training import quiet_trainer, small_data, small_dqn, small_sac
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_fire import AtFraction, FIRECallback
from lightning_fire.callbacks import PlasticityMonitor
from lightning_fire.modules import DQN


class Remembering(Logger):
    """Any logger."""

    name, version = "remembering", 0

    def __init__(self):
        super().__init__()
        self.rows: list[tuple[int, str, float]] = []

    def log_metrics(self, metrics, step=None):
        self.rows += [(step, key, float(value)) for key, value in metrics.items()]

    def log_hyperparams(self, *args, **kwargs):
        pass

    def of(self, key: str) -> list[tuple[int, float]]:
        return [(step, value) for step, name, value in self.rows if name == key]


def steps(rows: list[tuple[int, float]]) -> list[int]:
    return [step for step, _ in rows]


def test_every_logger_writes_over_environment_steps(tmp_path):
    """10 initial steps, then two epochs of 40; each rollout has 2 · 2 steps, each epoch 10 rollouts."""
    loggers = [Remembering(), TensorBoardLogger(tmp_path, name="tb"), CSVLogger(tmp_path, name="csv")]
    callbacks = [FIRECallback(AtFraction(0.5)), PlasticityMonitor(), LearningRateMonitor("step")]
    fit = quiet_trainer(tmp_path, 2, logger=loggers, callbacks=callbacks, log_every_n_steps=5)
    data = small_data(Corridor, num_envs=2, steps_per_round=2)
    fit.fit(small_dqn(), data)
    ends, seen = [50, 90], loggers[0]
    for key in ("val/episode_return", "train/loss", "train/environment_steps", "plasticity/dfi_normalized"):
        assert sorted(set(steps(seen.of(key)))) == ends, key
    for key in ("fire/event", "fire/dfi_normalized_after", "fire/lambda_max_before"):
        assert steps(seen.of(key)) == [54], key  # with the first rollout of the epoch in hand
    assert steps(seen.of("lr-Adam")) == [4, 9, 14, 19]  # Lightning's own callback counts rollouts
    assert [value for _, value in seen.of("train/environment_steps")] == ends

    log = EventAccumulator(str(tmp_path / "tb" / "version_0"), size_guidance={"scalars": 0, "histograms": 0}).Reload()
    drawn = [key for key in log.Tags()["scalars"] if key.startswith("events/")]
    assert drawn and all([event.step for event in log.Scalars(key)] == [53, 54] for key in drawn)
    histograms = log.Tags()["histograms"]
    assert histograms and all({event.step for event in log.Histograms(key)} == {54} for key in histograms)
    with open(tmp_path / "csv" / "version_0" / "metrics.csv") as file:
        rows = {(int(row["step"]), key) for row in csv.DictReader(file) for key in row if row[key] and key != "step"}
    in_tensorboard = {(e.step, key) for key in log.Tags()["scalars"] for e in log.Scalars(key)}
    assert rows == {(step, key) for step, key, _ in seen.rows}
    assert rows == {(step, key) for step, key in in_tensorboard if key not in (*drawn, "hp_metric")}

    fit.test(fit.lightning_module, data, verbose=False)
    assert steps(seen.of("test/episode_return")) == [90]


class Counted(Corridor):
    """Counts all steps of all its copies, those included that begin an episode, and notes the episodes."""

    calls, episodes = 0, []

    def reset(self, **options):
        type(self).calls += 1
        self.total, self.number = 0.0, 0
        return super().reset(**options)

    def step(self, action):
        type(self).calls += 1
        observation, reward, terminated, truncated, info = super().step(action)
        self.total, self.number = self.total + reward, self.number + 1
        if terminated or truncated:
            self.episodes.append((type(self).calls, self.total, self.number))
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("num_envs", [1, 3])
def test_each_episode_is_logged_at_the_step_with_which_it_ended(tmp_path, num_envs):
    Counted.calls, Counted.episodes = -num_envs, []  # the first resets are not steps
    log = Remembering()
    fit = quiet_trainer(tmp_path, 2, logger=log, limit_val_batches=0)
    fit.fit(small_dqn(), small_data(Counted, num_envs=num_envs, steps_per_epoch=240, steps_per_round=2))
    initial = -(-10 // num_envs) * num_envs
    expected = [episode for episode in Counted.episodes if episode[0] > initial]
    assert Counted.calls == initial + 480 and len(expected) > 20
    returns, lengths = log.of("charts/episodic_return"), log.of("charts/episodic_length")
    assert returns == [(end, total) for end, total, _ in expected]
    assert lengths == [(end, number) for end, _, number in expected]


@pytest.mark.parametrize(("every", "at"), [(1, range(14, 91, 4)), (12, [22, 34, 46, 58, 70, 82]), (1000, [])])
def test_losses_and_epsilon_every_so_many_updates(tmp_path, every, at):
    """A rollout is four steps and four updates; ε is that of the last action, two environments earlier."""
    last: dict[int, float] = {}

    class Watched(DQN):
        def update(self, transitions, generator):
            values = super().update(transitions, generator)
            last[self.trainer.datamodule.environment_steps] = values["loss"].item()
            return values

    log, module = Remembering(), Watched(small_dqn().net, epsilon=0.1, epsilon_steps=100)
    fit = quiet_trainer(tmp_path, 2, logger=log, log_every_n_steps=every, limit_val_batches=0)
    fit.fit(module, small_data(Corridor, num_envs=2, steps_per_round=2))
    assert log.of("losses/loss") == [(step, last[step]) for step in at]
    assert log.of("charts/epsilon") == [(step, module.epsilon_at(step - 10 - 2)) for step in at]
    assert steps(log.of("charts/SPS")) == list(at)
    assert all(0 < value < 1e6 for _, value in log.of("charts/SPS"))


def test_sac_logs_the_same_under_its_names(tmp_path):
    log = Remembering()
    fit = quiet_trainer(tmp_path, 1, logger=log, log_every_n_steps=30)  # three optimizers: each ten updates
    fit.fit(small_sac(), small_data(Slope))
    assert steps(log.of("charts/episodic_return")) == [20, 41]  # one step begins an episode
    for name in ("critic_loss", "actor_loss", "q", "entropy", "temperature"):
        assert steps(log.of(f"losses/{name}")) == [20, 30, 40, 50], name


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
def test_checkpoints_are_named_after_environment_steps(tmp_path):
    within = ModelCheckpoint(tmp_path / "within", every_n_train_steps=13, save_top_k=-1, save_on_train_epoch_end=False)
    ends = ModelCheckpoint(tmp_path / "ends", save_top_k=-1)
    fit = quiet_trainer(tmp_path, 2, callbacks=[within, ends], enable_checkpointing=True)
    fit.fit(small_dqn(), small_data(Corridor))
    names = {folder: sorted(path.name for path in Path(tmp_path / folder).iterdir()) for folder in ("within", "ends")}
    assert names["ends"] == ["epoch=0-step=50.ckpt", "epoch=1-step=90.ckpt"]
    assert names["within"] == [f"epoch={(13 * i - 1) // 40}-step={10 + 13 * i}.ckpt" for i in range(1, 7)]
    saved = torch.load(tmp_path / "within" / names["within"][3], weights_only=True)
    assert saved["ReplayDataModule"]["environment_steps"] == 10 + 52


def test_logging_changes_no_weight(tmp_path):
    weights = []
    for logger in (False, [Remembering(), CSVLogger(tmp_path)]):
        torch.manual_seed(0)
        module = small_dqn()
        quiet_trainer(tmp_path, 2, logger=logger, log_every_n_steps=1).fit(module, small_data(Corridor, num_envs=2))
        weights.append(torch.cat([parameter.flatten() for parameter in module.parameters()]))
    assert torch.equal(*weights)
