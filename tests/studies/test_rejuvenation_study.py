"""The study of rejuvenation: its task, REINFORCE, and the command on tiny trainings."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Generator, nn

from lightning_fire.methods import initial_values
from lightning_fire.nets import GPT
from studies import rejuvenation as study


@pytest.fixture
def tiny(monkeypatch):
    """Trainings of a few steps, of a smaller network."""
    short = {"BASE_STEPS": 2, "STEPS": 3, "TESTED": 4, "TRIES": 2, "EPOCHS": {"moderate": 1, "over": 2}}
    for name, value in {**short, "DEMONSTRATIONS": 40, "CALIBRATION": 2, "PROMPTS": 2}.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(study, "GPT", lambda *sizes, **_: GPT(*sizes, depth=1, heads=1, dim=8))


class Copies(nn.Module):
    """Writes the prompt again."""

    def forward(self, tokens):
        before = tokens.roll(study.LENGTH, 1)  # the answer's next digit is LENGTH tokens behind it
        return 100.0 * nn.functional.one_hot(before, study.DIGITS + 1)


def test_answers_and_their_reward():
    asked = torch.tensor([[3, 1, 4, 1], [0, 2, 2, 9]])
    sequences = study.sample(Copies(), asked, 3, Generator())
    assert sequences.tolist() == [[3, 1, 4, 1, 10, 3, 1, 4, 1]] * 3 + [[0, 2, 2, 9, 10, 0, 2, 2, 9]] * 3
    assert study.reward(sequences).tolist() == [0, 0, 0, 1, 1, 1]


def test_demonstrations_are_sorted_but_for_the_wrong_ones(monkeypatch):
    monkeypatch.setattr(study, "DEMONSTRATIONS", 2000)
    assert float(study.reward(study.demonstrations_of(0)).mean()) == pytest.approx(1 - study.WRONG, abs=0.03)


def test_a_step_of_reinforce(tiny, monkeypatch):
    """Against all answers in one loop, those without an advantage, too."""
    monkeypatch.setattr(study, "STEPS", 1)
    monkeypatch.setattr(study, "reward", lambda sequences: (sequences[:, -1] < 5).float())
    torch.manual_seed(0)
    net = study.GPT(11, 9)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    seen = []
    monkeypatch.setattr(study, "step", lambda optimizer, loss: seen.append(loss.detach()) or loss.backward())
    rewards = study.reinforce(net, 0)
    sequences = study.sample(net, study.prompts(2, Generator().manual_seed(3000)), 8, Generator().manual_seed(4000))
    earned = study.reward(sequences).view(2, 8)
    assert rewards == [float(earned.mean())] and 0 < rewards[0] < 1
    total = 0.0
    for number, sequence in enumerate(sequences):
        advantage = earned.flatten()[number] - earned[number // 8].mean()
        logits = net(sequence[None, :-1])[0]
        total -= advantage * sum(logits[4 + i].log_softmax(-1)[sequence[5 + i]] for i in range(4)) / 16
    assert float(seen[0]) == pytest.approx(float(total.detach()), abs=1e-6)
    assert all(map(torch.equal, before, net.parameters())) and net.lm_head.weight.grad.abs().max() > 0


def test_attributions_are_of_the_model_and_leave_the_base_as_it_is(tiny):
    torch.manual_seed(0)
    base = study.GPT(11, 9)
    start = initial_values(base)
    demonstrations = study.demonstrations_of(0)
    model = study.fine_tuned(base, demonstrations, 0)["over"]
    before = initial_values(model)
    study.ARMS["reset 10 %"][1](model, start, demonstrations)
    assert all(torch.equal(value, start[name]) for name, value in base.state_dict().items() if name in start)
    changed = [name for name, value in initial_values(model).items() if not torch.equal(value, before[name])]
    assert changed and all(".h." in name for name in changed)


def test_the_command(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["study", str(tmp_path), "--seeds", "2", "--jobs", "1"])
    study.main()
    printed = capsys.readouterr().out
    runs = pd.read_csv(tmp_path / "rejuvenation.csv")
    assert list(dict.fromkeys(runs.method)) == list(study.ARMS) and len(runs) == 2 * len(study.ARMS)
    assert all(len(json.loads(rewards)) == 3 for rewards in runs.rewards)
    assert study.table(runs) in printed and study.table_of_parts(runs) in printed
    assert (tmp_path / "rejuvenation.png").stat().st_size > 0
    study.main()  # nothing runs again
    assert study.table(runs) in capsys.readouterr().out


def test_intervals_are_at_holms_level():
    """The larger of two differences is tested at 2.5 %, the other at 5 %."""
    values = {"over": [0.1, 0.2, 0.3], "a": [0.2, 0.3, 0.41], "b": [0.1, 0.3, 0.2]}
    runs = pd.DataFrame(
        [
            {"method": method, "seed": seed, "pass_1_after": value}
            for method, own in values.items()
            for seed, value in enumerate(own)
        ]
    )
    found = study.differences(runs, [("a", "over"), ("b", "over")])
    quantiles = 6.2053, 4.3027  # of Student's t with 2 degrees of freedom
    for method, quantile, cell in zip("ab", quantiles, found, strict=True):
        each = 100 * (np.array(values[method]) - values["over"])
        half = quantile * each.std(ddof=1) / np.sqrt(3)
        assert cell == f"{each.mean():+.1f} ({each.mean() - half:+.1f} to {each.mean() + half:+.1f})"
