"""`decide`: continue, change, or train from scratch, by a function of one's own."""

import csv
import random
import subprocess
import sys
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from small_training import assert_same_weights, state_of
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_fire import (
    DASH,
    FIRE,
    FullReset,
    L2Init,
    OptimizerReset,
    PlasticityInjection,
    ReDo,
    ShrinkAndPerturb,
    Weights,
    decide,
    initial_values,
    shrink_and_perturb_,
    wrap_heads,
)
from lightning_fire.experiments.decide import Start
from lightning_fire.experiments.decision import paired_differences


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


@pytest.fixture
def old(tmp_path, monkeypatch):
    """The file and the model of an earlier training."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(7)
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(3, 4)).square().mean().backward()
    optimizer.step()
    torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, "old.pt")
    return model


class Trained:
    """A function that trains nothing, and keeps what each run began with."""

    def __init__(self):
        self.runs, self.models, self.draws, self.fresh = [], {}, {}, {}

    def __call__(self, seed, start):
        model = network()
        self.fresh[start.name, seed] = state_of(model)
        self.models[start.name, seed] = start(model)
        self.runs.append((start.name, seed))
        self.draws[start.name, seed] = float(torch.rand(())), random.random(), np.random.rand()
        return seed + (start.name == "fire")


def test_each_choice_begins_with_the_weights_it_says(old):
    trained = Trained()
    decide(trained, "old.pt", [FIRE(), FullReset(), ShrinkAndPerturb(0.5)], seeds=[5])
    assert_same_weights(trained.models["vanilla", 5], old)
    by_hand = network()
    by_hand.load_state_dict(old.state_dict())
    FIRE()(by_hand)
    assert_same_weights(trained.models["fire", 5], by_hand)
    torch.manual_seed(5)
    new = network()
    for name in ("scratch", "full_reset"):  # to the initial values of the new model
        assert_same_weights(trained.models[name, 5], new)
    shrink_and_perturb_(old, initial_values(new), 0.5)  # as docs/decide.md says
    assert_same_weights(trained.models["shrink_and_perturb", 5], old)


def test_all_choices_of_a_seed_draw_the_same_afterwards(old):
    trained = Trained()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    decide(trained, "old.pt", [ShrinkAndPerturb(0.5, fresh_seed=0)], seeds=2)
    draws = {seed: {trained.draws[name, s] for name, s in trained.draws if s == seed} for seed in (0, 1)}
    assert len(draws[0]) == len(draws[1]) == 1 and draws[0] != draws[1]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_finished_runs_are_not_run_again(old, capsys):
    first = decide(Trained(), "old.pt", [FIRE()], seeds=2)
    trained = Trained()
    again = decide(trained, "old.pt", {"fire": FIRE(), "slow": FIRE(steps=3)}, seeds=3)
    assert trained.runs == [("slow", 0), ("slow", 1), ("vanilla", 2), ("scratch", 2), ("fire", 2), ("slow", 2)]
    assert {s: again.values["fire"][s] for s in (0, 1)} == first.values["fire"]
    assert "6 of 12 runs had finished" in capsys.readouterr().out
    trained = Trained()
    decide(trained, "old.pt", [FIRE(steps=7)], seeds=3)
    assert trained.runs == [("fire", seed) for seed in range(3)]  # another method of the same name
    torch.save(network().state_dict(), "old.pt")
    decide(trained := Trained(), "old.pt", [FIRE(steps=7)], seeds=1)
    assert trained.runs == [("vanilla", 0), ("scratch", 0), ("fire", 0)]  # another checkpoint


def test_an_interrupted_call_continues(old, monkeypatch):
    def interrupt(start):
        if (start.name, start.seed) == ("scratch", 1):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Start, "require_used", interrupt)
        decide(Trained(), "old.pt", seeds=2)
    trained = Trained()
    found = decide(trained, "old.pt", seeds=2)
    assert trained.runs == [("scratch", 1), ("fire", 1)]
    with open("runs/decide/results.csv") as file:
        rows = {(row["method"], int(row["seed"])): float(row["value"]) for row in csv.DictReader(file)}
    assert rows == {(name, seed): value for name, of in found.values.items() for seed, value in of.items()}


OPTIONS = {"bonus": 0.0}


def with_options(trained, seed, start):
    return trained(seed, start) + OPTIONS["bonus"]


def test_another_question_in_the_same_folder_leaves_the_runs_of_the_first(old, capsys, monkeypatch):
    """Another option of what `train` uses, or another checkpoint: the first one's runs are found again."""
    decide(partial(with_options, Trained()), "old.pt", seeds=2)
    with monkeypatch.context() as changed:
        changed.setitem(OPTIONS, "bonus", 0.5)
        found = decide(partial(with_options, trained := Trained()), "old.pt", seeds=2)
    assert len(trained.runs) == 6 and found.values["fire"] == {0: 1.5, 1: 2.5}
    assert "runs/decide also keeps 6 runs of another checkpoint, method or `train`, or of" in capsys.readouterr().out
    torch.save(network().state_dict(), "other.pt")
    decide(partial(with_options, trained := Trained()), "other.pt", seeds=1)
    assert len(trained.runs) == 3
    found = decide(partial(with_options, trained := Trained()), "old.pt", seeds=2)
    assert trained.runs == [] and found.values["fire"] == {0: 1.0, 1: 2.0}
    assert "6 of 6 runs had finished: remove runs/decide if the data has changed" in capsys.readouterr().out


def test_the_table_and_the_paragraph_pair_the_seeds(old, capsys):
    found = decide(Trained(), "old.pt", seeds=8, mode="min", metric="MAE")
    assert found.values["fire"] == {seed: seed + 1.0 for seed in range(8)}
    assert found.values["scratch"] == {seed: float(seed) for seed in range(8)}
    assert "+1.000 (+1.000 to +1.000)" in found.table()
    assert str(found) in capsys.readouterr().out
    assert found.decision.choice == "vanilla" and found.decision.best == ["vanilla", "scratch"]  # fire is worse by 1
    assert found.decision.text in str(found) and found.decision.warm_start.gain == 0
    assert "minus vanilla (95 %, this pair alone)" in found.table() and found.names == ""


def test_choice_and_leading_are_named_where_they_differ(old):
    found = decide(Trained(), "old.pt", seeds=3)  # of three equal gains none is shown
    assert (found.decision.choice, found.decision.leading) == ("vanilla", "fire")
    assert str(found).endswith("\n\ndecision.choice stays 'vanilla' until a gain is shown; decision.leading is 'fire'.")


def test_seeds_that_train_does_not_follow_are_said_to_be_one_run(old, capsys):
    """As of a library that draws from a seed of its own, or shuffles nothing: the interval would have no width."""

    def train(seed, start):
        start(network())
        return 0.5 + 0.02 * (start.name == "fire")

    doubt = decide(train, "old.pt", seeds=3).doubt
    assert doubt.startswith("vanilla has the same value with every seed. This is expected of a metric at its best or")
    out = capsys.readouterr().out
    assert doubt in out
    assert "fire seed 0: 0.52 (" in out and "; norm × 1.8; 2 of 2 weight matrices, preset cnn" in out
    assert "more seed" not in out
    assert decide(train, "old.pt", seeds=1).doubt == ""
    assert decide(Trained(), "old.pt", seeds=2).doubt == ""


def test_optimizers_continue_with_their_state_except_of_changed_weights(old, capsys):
    states = {}

    def train(seed, start):
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        start(model, optimizer)
        states[start.name] = [parameter in optimizer.state for parameter in model.parameters()]
        other = torch.optim.SGD(model.parameters(), lr=1.0)
        start(model, other)
        return 0

    decide(train, "old.pt", seeds=1)
    assert states == {"vanilla": [True] * 4, "scratch": [False] * 4, "fire": [False, True, False, True]}
    out = capsys.readouterr().out
    assert "Each choice begins with a new optimizer: old.pt is of another kind" in out
    assert out.count("a new optimizer") == 1  # and not again with each method


def test_a_model_of_an_earlier_run_is_an_error(old):
    """Also in another call, or if it shares only a part with it; scratch would continue from what was trained."""
    kept, part = network(), network()[0]
    with pytest.raises(
        ValueError, match=r"Sequential shares parameters with the model of an earlier run.* make a new model"
    ):
        decide(lambda seed, start: start(kept) and 0.0, "old.pt", seeds=1)
    with pytest.raises(ValueError, match="shares parameters with the model of an earlier run"):
        decide(lambda seed, start: start(kept) and 1.0, "old.pt", seeds=1)
    with pytest.raises(ValueError, match="shares parameters with the model of an earlier run"):
        decide(lambda seed, start: start(nn.Sequential(part, nn.ReLU(), nn.Linear(6, 2))) and 0.0, "old.pt", seeds=1)


def test_a_model_that_has_loaded_the_checkpoint_is_an_error(old):
    """Scratch would continue, too. A loaded backbone below a new head is a usual start."""

    def train(seed, start, parts):
        model = network()
        for part in parts:
            model[part].load_state_dict(old[part].state_dict())
        start(model)
        return 0.0

    with pytest.raises(ValueError, match=r"Sequential has the weights of old\.pt before they are loaded, .* scratch"):
        decide(partial(train, parts=(0, 2)), "old.pt", seeds=1)
    decide(partial(train, parts=(0,)), "old.pt", [], seeds=1)


def test_a_frozen_part_may_be_that_of_an_earlier_run(old):
    part = network()[0].requires_grad_(False)

    def train(seed, start):
        start(nn.Sequential(part, nn.ReLU(), nn.Linear(6, 2)))
        return 0.0

    decide(train, "old.pt", [], seeds=2)


def test_averages_begin_from_the_loaded_weights(old):
    """Those of the training; one that is stored with the model is loaded."""

    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.ema = AveragedModel(self.net)

    stored = Averaged()
    stored.ema.n_averaged.fill_(9)
    torch.save(stored.state_dict(), "averaged.pt")
    found = {}

    def train(seed, start):
        model, kept = Averaged(), AveragedModel(network())
        kept.n_averaged.fill_(3)
        start(model, averages=kept)
        found[start.name] = model, kept
        return 0.0

    decide(train, "averaged.pt", [])
    model, kept = found["vanilla"]
    assert_same_weights(model.net, stored.net)
    assert_same_weights(kept.module, stored.net)
    assert_same_weights(model.ema, stored.ema)
    assert (kept.n_averaged, model.ema.n_averaged) == (0, 9)
    assert found["scratch"][1].n_averaged == 3


def test_two_methods_of_a_list_are_named_by_the_setting_in_which_they_differ(old):
    methods = [FIRE(), FIRE(scale="procrustes"), FIRE(steps=3, scale="procrustes"), ShrinkAndPerturb(0.5)]
    train = Trained()
    found = decide(train, "old.pt", methods, seeds=1)
    names = ["fire", "fire scale=procrustes", "fire steps=3 scale=procrustes", "shrink_and_perturb"]
    assert list(found.values) == ["vanilla", "scratch", *names]
    assert len({train.models[name, 0][0].weight.sum().item() for name in names[:3]}) == 3
    methods = [FIRE(steps=3), FIRE(steps=5)]
    assert list(decide(Trained(), "old.pt", methods, seeds=1).values)[2:] == ["fire steps=3", "fire steps=5"]


def test_a_method_that_the_function_applies_is_given_to_it(old):
    def train(seed, start):
        start(network())
        return float(start.method == L2Init(0.1))

    assert decide(train, "old.pt", {"l2_init": L2Init(0.1)}, seeds=1).values["l2_init"] == {0: 1.0}
    with pytest.raises(ValueError, match=r"has not used start\.method: give L2Init to a callback"):
        decide(Trained(), "old.pt", {"l2_init": L2Init(0.1)}, seeds=1, output="other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "less"}, "`mode` must be 'max' or 'min', got 'less'"),
        ({"metric": "MAE"}, 'the name of MAE suggests that less is better: give mode="min", or mode="max" if more is'),
        ({"seeds": 0}, "`seeds` must hold at least one seed, got 0"),
        ({"methods": [FIRE(), FIRE(where=Weights("cnn"))]}, "two methods are named fire: give a dict"),
        ({"methods": {"vanilla": FIRE()}}, "two methods are named vanilla"),
        ({"methods": ["fire"]}, "must hold methods such as FIRE.*got 'fire'"),
        ({"methods": FIRE()}, r"`methods` must be a list of methods such as \[FIRE\(\)\], or a dict, got FIRE"),
        ({"methods": "fire"}, r"`methods` must be a list of methods such as .*, got 'fire'"),
        ({"seeds": 2.5}, "`seeds` must be a number of seeds, or whole numbers of at least 0, got 2.5"),
        ({"seeds": ["a"]}, r"`seeds` must be a number of seeds, or whole numbers of at least 0, got \['a'\]"),
        ({"worth": -1}, "`worth` must be a positive number, got -1"),
        ({"methods": [OptimizerReset()]}, r"optimizer_reset cannot act: .*Loop\(optimizers=.*start\(model, …\)"),
        ({"methods": [ReDo()]}, r"redo cannot act: .*Loop\(forward=.*, whose arguments are those of start\(model, …\)"),
        ({"methods": [DASH()]}, r"dash cannot act: .*Loop\(losses=.*, whose arguments are those of start\(model, …\)"),
        ({"train": lambda seed, start: 0.0}, r"`train` has not called start\(model\)"),
        ({"train": lambda seed, start: start(network())}, "`train` must return the metric, a number, got Sequential"),
        ({"train": lambda seed, start: start(nn.Linear(2, 2)) and 0.0}, "old.pt does not fit Linear: it lacks weight"),
    ],
)
def test_wrong_use_is_one_sentence(old, options, message):
    with pytest.raises(ValueError, match=message):
        decide(**{"train": Trained(), "checkpoint": "old.pt", **options})


def test_a_list_of_models_and_losses_that_are_no_tensors_are_type_errors(old):
    with pytest.raises(TypeError, match=r"`model` must be one torch\.nn\.Module, got list"):
        decide(lambda seed, start: start([network(), network()]), "old.pt")
    with pytest.raises(
        TypeError, match="`losses` must be tensors with a graph, one of each batch, got builtin_function"
    ):
        decide(lambda seed, start: start(network(), losses=[len]) and 0.0, "old.pt", [DASH()])


def test_seeds_may_be_numbers_of_numpy_and_repeat(old):
    found = decide(Trained(), "old.pt", [FIRE()], seeds=np.array([3, 3, 1]))
    assert list(found.values["fire"]) == [3, 1]
    assert list(decide(Trained(), "old.pt", [FIRE()], seeds=np.int64(2)).values["fire"]) == [0, 1]


def test_a_head_is_injected_and_an_injected_checkpoint_continues_in_a_wrapped_head(old):
    trained = Trained()
    decide(trained, "old.pt", [PlasticityInjection("2")], seeds=1)
    injected, inputs = trained.models["plasticity_injection", 0], torch.rand(5, 4)
    assert torch.allclose(injected(inputs), old(inputs)) and len(injected[2].frozen) == 1
    torch.save(injected.state_dict(), "injected.pt")

    def train(seed, start):
        model = network()
        wrap_heads(model, ["2"])
        return (start(model)(inputs) - old(inputs)).abs().max()

    found = decide(train, "injected.pt", [PlasticityInjection("2")], seeds=1, output="again")
    assert found.values["vanilla"][0] < 1e-6 and found.values["plasticity_injection"][0] < 1e-6
    assert found.values["scratch"][0] > 0.01


def test_a_missing_checkpoint_and_a_foreign_folder_are_errors(old, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pt does not exist"):
        decide(Trained(), "none.pt")
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"results\.csv is not of an earlier call: choose another `output`"):
        decide(Trained(), "old.pt", output=tmp_path)


def test_a_start_is_told_its_seed_and_name(old):
    seen = []

    def train(seed, start):
        assert isinstance(start, Start) and start.seed == seed
        seen.append((start.name, start.scratch))
        start(network())
        return 0.0

    decide(train, "old.pt", seeds=1)
    assert seen == [("vanilla", False), ("scratch", True), ("fire", False)]


@pytest.mark.slow(6)
def test_importing_it_imports_neither_lightning_nor_pandas():
    code = "import sys; from lightning_fire import decide; print({'lightning', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.slow(20)
def test_copies_of_one_method_that_draw_for_themselves_are_not_told_apart(old):
    """The order of samples is of the copy and the seed. Of 20 decisions one is expected to state a difference."""
    inputs = torch.rand(64, 4, generator=torch.Generator().manual_seed(0))
    targets, copies = inputs[:, :2] * inputs[:, 2:], ("one", "two", "three")

    def train(seed, start):
        model = start(network())
        torch.manual_seed(10 * seed + copies.index(start.name) if start.name in copies else seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.randperm(64).split(8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        return nn.functional.mse_loss(model(inputs), targets)

    told = 0
    for first in range(0, 100, 5):
        methods = {name: ShrinkAndPerturb(0.5) for name in copies}
        found = decide(train, "old.pt", methods, range(first, first + 5), mode="min", output=f"runs/{first}")
        assert len({value for name in copies for value in found.values[name].values()}) == 15
        pairs = paired_differences(
            {name: {seed: -mse for seed, mse in of.items()} for name, of in found.values.items()}
        )
        told += any(pairs[pair].decided for pair in combinations(copies, 2))
    assert told <= 3
