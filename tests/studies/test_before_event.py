"""Events on a branch of a run, and values before them, equal whole trainings and slow versions."""

import copy
import json
from dataclasses import dataclass
from functools import partial
from math import log10

import pytest
import reference
import torch
from torch.nn.functional import cross_entropy

from lightning_fire.data import Continual, RandomLabels
from lightning_fire.integrations.measure_plasticity import MeasurePlasticity
from lightning_fire.methods import Loop
from lightning_fire.nets import MLP
from lightning_fire.when import Clock, Schedule
from studies import signs
from studies.before_event import act_and_compare, monitored, one_step
from studies.ensemble import Ensemble, Member, train
from studies.methods import fire, vanilla
from studies.runs import Setting, members_of
from studies.streams import Stream, data_of


@dataclass(frozen=True)
class AtChunk(Schedule):
    chunk: int

    def due(self, clock: Clock) -> bool:
        return clock.new_data and clock.chunk == self.chunk


STREAMS = {
    "new labels": Stream("", RandomLabels(3, 60, 3), 30, 3e-3),
    "growing": Stream("", Continual(3, 1), 500, 3e-3),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_an_event_on_a_branch_gains_what_it_gains_in_a_training_of_its_own(stream, monkeypatch):
    """On new labels by online accuracy; where data only grows, by test accuracy at the end of the chunk."""
    monkeypatch.setitem(signs.CHUNKS, "tiny", (1, 2))
    common = {"width": 20, "tasks": stream}
    rows = signs.run_batch([Setting("tiny", "vanilla", seed, vanilla, rate=0.02, **common) for seed in range(2)])
    found = {(row["seed"], event["chunk"]): event for row in rows for event in json.loads(row["events"])}
    assert len(found) == 4 and any(event["gain"] for event in found.values())
    measure = "online" if stream.protocol.online else "test"
    for (seed, chunk), event in found.items():
        runs = []
        for act in (vanilla, fire):
            setting = Setting("tiny", "", seed, act, rate=0.02, when=AtChunk(chunk), **common)
            _, (member,) = members_of([setting])
            train([member], partial(data_of, stream))
            runs.append(member)
        without, with_event = (getattr(member, measure)[chunk] for member in runs)
        assert event["gain"] == pytest.approx(100 * (with_event - without), abs=1e-3)
        lost = runs[0].online[0] - runs[0].online[chunk - 1]
        assert event["accuracy_lost"] == pytest.approx(lost, abs=1e-5)


def small(seed: int = 0):
    torch.manual_seed(seed)
    return MLP(6, 3, [8, 8], "none"), (torch.randn(40, 6), torch.randint(0, 3, (40,)))


def test_values_of_one_step_are_those_of_slow_versions_and_change_nothing():
    own, (x, y) = small()
    state = {name: value.clone() for name, value in own.state_dict().items()}
    found = one_step(own, x, y)
    assert all(torch.equal(state[name], value) for name, value in own.state_dict().items())
    assert own.training and all(value.grad is None for value in own.parameters())
    exact = copy.deepcopy(own).double()
    parameters = list(exact.parameters())

    def gradient(inputs, labels):
        loss = cross_entropy(exact(inputs.double()), labels)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)])

    rows = torch.stack([gradient(*batch) for batch in zip(x.split(10), y.split(10), strict=True)])
    assert found["readiness"] == pytest.approx(reference.optimization_readiness(rows), rel=1e-4)
    flat, whole = torch.nn.utils.parameters_to_vector(parameters).detach(), gradient(x, y)

    @torch.no_grad()
    def loss(step):
        torch.nn.utils.vector_to_parameters(flat - step * whole, parameters)
        return float(cross_entropy(exact(x.double()), y))

    assert found["sharpness"] == pytest.approx(reference.critical_sharpness(loss, 0.1), rel=0.05)
    assert found["loss"] == pytest.approx(loss(0.0))
    assert found["accuracy"] == pytest.approx(float((exact(x.double()).argmax(1) == y).double().mean()))

    def loss_of(vector):
        sizes, values = [p.numel() for p in parameters], {}
        for (name, p), part in zip(exact.named_parameters(), vector.split(sizes), strict=True):
            values[name] = part.view_as(p)
        return cross_entropy(torch.func.functional_call(exact, values, (x.double(),)), y)

    largest = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss_of, flat))[-1]
    assert found["lambda_max"] == pytest.approx(float(largest), rel=0.1)


def test_monitored_values_are_those_of_the_package():
    own, (x, y) = small()
    parts = list(zip(x[:16].split(4), y[:16].split(4), strict=True))
    loop = Loop(forward=lambda: own(x), losses=lambda: (cross_entropy(own(a), b) for a, b in parts))
    expected = MeasurePlasticity().attach(own, loop).metrics()
    found = monitored(own, x, y)
    assert found.pop("monitored_readiness") == pytest.approx(expected.pop("readiness"), rel=1e-5)
    assert {"monitored_sharpness", "monitored_lambda_max"} < set(found)
    same = set(expected) - {".raw/dfi", "critical_sharpness"}  # that is of its first batch alone
    assert len(same) == 6 and {name: found[name] for name in same} == pytest.approx({k: expected[k] for k in same})


def test_a_comparison_changes_only_what_the_method_changes():
    """The trial and the copies leave no trace; its values are those of each network and of the copy that acted."""
    members = [Member(small(seed)[0], seed, fire, rate=0.01) for seed in range(2)]
    ensemble, plain = Ensemble(members), [copy.deepcopy(member.network) for member in members]
    x = torch.randn(2, 40, 6)
    y = x[..., :3].argmax(-1)  # gradients that agree
    ensemble.step(x[:, :10], y[:, :10])
    before = [copy.deepcopy(member.network) for member in members]
    stepped = copy.deepcopy(before)
    norms = [torch.cat([p.grad.flatten() for p in member.network.parameters()]).norm() for member in members]
    moments = copy.deepcopy(ensemble.optimizer.state_dict()["state"])
    found = act_and_compare(ensemble, members, lambda *_: None, (x, y), (x, y))
    for name, own in ensemble.optimizer.state_dict()["state"].items():
        assert all(torch.equal(moments[name][key], value) for key, value in own.items())
    for member, network, values, norm in zip(members, before, found, norms, strict=True):
        assert all(map(torch.equal, member.network.parameters(), network.parameters()))
        assert values["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)
        assert values["readiness_won"] == values["lambda_max_won"] == values["trial_won"] == 0
    found = act_and_compare(ensemble, members, fire, (x, y), (x, y))
    for index, (member, network, values) in enumerate(zip(members, before, found, strict=True)):
        fire(Member(network, 0, fire), torch.optim.Adam(network.parameters()))
        assert all(map(torch.equal, member.network.parameters(), network.parameters()))
        new, now, after = (one_step(each, x[index], y[index]) for each in (plain[index], stepped[index], network))
        expected = {
            "readiness_lost": log10(new["readiness"] / now["readiness"]),
            "readiness_won": log10(after["readiness"] / now["readiness"]),
            "lambda_max_won": log10(now["lambda_max"] / after["lambda_max"]),
            "sharpness_gained": log10(now["sharpness"] / new["sharpness"]),
        }
        assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-3)
        assert values["trial_won"] != 0
