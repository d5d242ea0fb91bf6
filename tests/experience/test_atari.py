"""A game of the Atari 2600, as the paper's agents see it; its emulator comes with ale-py."""

import numpy as np
import pytest
import torch
from replay_training import quiet_trainer, small_data
from small_training import resumed_from

from lightning_fire import AtFraction, FIRECallback, FullReset, Log, Parameters, PlasticityCallback, Weights
from lightning_fire.experience import Atari
from lightning_fire.modules import DQN
from lightning_fire.nets import NatureCNN

pytest.importorskip("ale_py", reason="ale-py is not installed")
pytest.importorskip("cv2", reason="OpenCV is not installed")


def test_frames_are_small_and_grey_and_there_are_few_actions():
    env = Atari("Asterix")()
    frame, _ = env.reset(seed=0)
    assert frame.shape == (84, 84) and frame.dtype == np.uint8 and len(np.unique(frame)) > 3
    assert env.action_space.n == 9
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == 0.25


def test_an_episode_ends_with_the_time_limit():
    env = Atari("DemonAttack", max_steps=5)()
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("folder", [None, "replay"])
def test_a_training_with_an_event_resumes_in_the_midst_of_a_game(tmp_path, folder):
    def fit(where: str, checkpoint: str | None = None, stop_in: int | None = None) -> None:
        torch.manual_seed(0)
        module = StoppedDQN(NatureCNN(9, hidden=32), target_update_period=5, epsilon_steps=20)
        module.stop_in = stop_in
        half = AtFraction(0.5)
        events = [
            FIRECallback(half, where=Weights("dqn"), log=Log(curvature=False)),
            PlasticityCallback(FullReset(where=Parameters(include=["^net.head"])), half, log=Log(curvature=False)),
        ]
        data = small_data(Atari("Asterix"), steps_per_epoch=6, batch_size=4, initial_steps=8, stack=4, folder=folder)
        trainer = quiet_trainer(tmp_path / where, 4, callbacks=events, limit_val_batches=0)
        trainer.fit(module, data, **resumed_from(checkpoint))
        trainer.save_checkpoint(tmp_path / f"{where}.ckpt")

    class Stop(Exception):
        pass

    class StoppedDQN(DQN):
        def on_train_epoch_start(self):
            if self.current_epoch == self.stop_in:
                self.trainer.save_checkpoint(tmp_path / "saved.ckpt")
                raise Stop

    fit("whole")
    with pytest.raises(Stop):
        fit("first", stop_in=3)  # after the event
    fit("resumed", tmp_path / "saved.ckpt")
    whole, resumed = (torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in ("whole", "resumed"))
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, resumed["state_dict"][name]), name
    kept = [saved["ReplayDataModule"]["rounds"]["collector"] for saved in (whole, resumed)]
    assert kept[0]["steps"] == kept[1]["steps"] == 8 + 4 * 6
    assert torch.equal(kept[0]["actions"][0], kept[1]["actions"][0])
