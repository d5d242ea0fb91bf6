"""A change is verified at the next optimizer steps, copies in optimizers follow it, and neither leaves a trace."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from lightning_fire import FIRE, FullReset, Loop, ShrinkAndPerturb, fire_
from lightning_fire.methods.base.verify import _waiting
from tests.support.methods_table import EVENTS

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
GIVEN = pytest.mark.parametrize("given", [True, False], ids=["given", "not given"])


def network(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16)).to(dtype)


def step(model, optimizer, number=1):
    def closure():
        optimizer.zero_grad()
        kind = model[0].weight.dtype
        loss = nn.functional.mse_loss(model(X.to(kind)), Y.to(kind))
        loss.backward()
        return loss

    for _ in range(number):
        optimizer.step(closure)


def matrices(model):
    return [p.detach().float().clone() for p in model.parameters() if p.ndim > 1]


def distance(one, other):
    return float(sum((a - b).square().sum() for a, b in zip(one, other, strict=True)) ** 0.5)


def optimizers_of(optimizer, given):
    return [optimizer] if given else []


def hooks():
    return len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks)


def hooks_of(optimizer):
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


@pytest.fixture(autouse=True)
def no_other_check():
    """End what earlier tests have left waiting for a step."""
    for each in list(_waiting):
        each.close()


class Masters(torch.optim.Optimizer):
    """Steps float32 copies of its parameters, which are kept as some libraries do, or out of reach."""

    def __init__(self, params, kept="nowhere"):
        params = list(params)
        super().__init__(params, {"lr": 1e-2})
        masters = [p.detach().float().clone() for p in params]
        inner = torch.optim.AdamW(masters, lr=1e-2)

        def run():
            for p, master in zip(params, masters, strict=True):
                master.grad = p.grad.float()
            inner.step()
            for p, master in zip(params, masters, strict=True):
                p.copy_(master)

        self.run = run
        if kept == "groups":  # Apex, DeepSpeed
            self.fp32_from_fp16_groups = [masters]
        elif kept == "stash":  # Apex's amp
            self._amp_stash = type("Stash", (), {})()
            self._amp_stash.all_fp32_from_fp16_params = masters
        elif kept == "mapping":  # offloaded copies of torchao
            self.copies = dict(zip(params, masters, strict=True))
        elif kept == "param groups":
            self.param_groups_master = [{"params": masters}]

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        self.run()


class OwnMasters(torch.optim.AdamW):
    """An optimizer of float32 copies alone, as in a loop that casts by itself."""

    def __init__(self, params):
        self.weights = [list(params)]
        super().__init__([p.detach().float().clone() for p in self.weights[0]], lr=1e-2)

    def zero_grad(self, set_to_none=True):
        for p in self.weights[0]:
            p.grad = None

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        pairs = list(zip(self.weights[0], self.param_groups[0]["params"], strict=True))
        for p, master in pairs:
            master.grad = p.grad.float()
        super().step()
        for p, master in pairs:
            p.copy_(master)


@GIVEN
def test_masters_out_of_reach_are_an_error_at_the_next_step(given):
    model = network(torch.bfloat16)
    optimizer = Masters(model.parameters())
    step(model, optimizer, 3)
    old = matrices(model)
    fire_(model, optimizers=optimizers_of(optimizer, given))
    new = matrices(model)
    with pytest.raises(RuntimeError, match=r"0.weight, 3.weight are back at their old values.*float32 master weights"):
        step(model, optimizer)
    assert distance(matrices(model), old) < 0.1 * distance(old, new)
    assert hooks() + hooks_of(optimizer) == 0


@pytest.mark.filterwarnings("ignore:the initial state of a new OwnMasters is unknown")
@pytest.mark.parametrize("make", ["groups", "stash", "mapping", "param groups", "own"])
@pytest.mark.parametrize("event", [FIRE(), FullReset(fresh_seed=0), ShrinkAndPerturb(strength=0.5, fresh_seed=0)])
def test_masters_within_reach_follow_the_change(make, event):
    model = network(torch.bfloat16)
    optimizer = OwnMasters(model.parameters()) if make == "own" else Masters(model.parameters(), make)
    step(model, optimizer, 3)
    old = matrices(model)
    event(model, Loop(optimizer))
    new = matrices(model)
    step(model, optimizer)
    assert distance(matrices(model), new) < 0.2 * distance(matrices(model), old)
    step(model, optimizer, 2)
    assert hooks_of(optimizer) == 0


def test_masters_of_equal_weights_are_told_apart_by_their_order():
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))).bfloat16()
    for layer in model:
        nn.init.eye_(layer.weight)
    optimizer = OwnMasters(model.parameters())
    masters = optimizer.param_groups[0]["params"]
    event = ShrinkAndPerturb(strength=0.5, fresh_seed=0)
    event(model, Loop(optimizer))
    assert all(torch.equal(p, master.bfloat16()) for p, master in zip(model.parameters(), masters, strict=True))
    assert not torch.equal(masters[0], masters[1])


@pytest.mark.parametrize("event", [FIRE(), FullReset(fresh_seed=0), ShrinkAndPerturb(strength=0.5, fresh_seed=0)])
def test_what_an_optimizer_steps_beside_a_weight_does_not_follow(event):
    """The members of an ensemble that began alike, each a model of its own."""
    one = network(torch.float32)
    other = copy.deepcopy(one)
    optimizer = torch.optim.Adam([*one.parameters(), *other.parameters()])
    before = copy.deepcopy(other.state_dict())
    event(one, Loop(optimizer))
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    assert distance(matrices(one), matrices(other)) > 0.1
    step(one, optimizer, 3)
    assert hooks_of(optimizer) == 0


@GIVEN
def test_a_loop_that_copies_masters_after_the_step(given):
    model = network(torch.bfloat16)
    masters = [p.detach().float().clone() + 1e-4 for p in model.parameters()]  # not equal: they do not follow
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    own = torch.optim.AdamW(masters, lr=1e-3)

    def train():
        step(model, optimizer)
        for p, master in zip(model.parameters(), masters, strict=True):
            master.grad = p.grad.float()
        own.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                p.copy_(master)

    train()
    fire_(model, optimizers=optimizers_of(optimizer, given))
    with pytest.raises(RuntimeError, match=r"old values (before|after) the next step of AdamW"):
        for _ in range(2):
            train()


@GIVEN
@pytest.mark.parametrize("steps", [0, 1])
def test_old_values_that_are_loaded_around_the_next_step_are_an_error(given, steps):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step(model, optimizer, 3)
    old = copy.deepcopy(model.state_dict())
    fire_(model, optimizers=optimizers_of(optimizer, given))
    step(model, optimizer, steps)
    model.load_state_dict(old)
    with pytest.raises(RuntimeError, match="checkpoint"):
        step(model, optimizer)
    step(model, optimizer)


@GIVEN
@pytest.mark.parametrize("name", EVENTS)
def test_no_hook_is_left_after_two_steps(name, given):
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 16)))
    method = EVENTS[name]
    if hasattr(method, "head"):
        method = type(method)(head="4")
        method.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    step(model, optimizer, 3)
    training = Loop(
        optimizers_of(optimizer, given),
        forward=lambda: model(X),
        losses=lambda: (nn.functional.mse_loss(model(X), Y) for _ in range(2)),
        initial=start,
    )
    if not (training.optimizers or method.changes_weights):
        pytest.skip("it is an error")
    method(model, training)
    step(model, optimizer, 2)
    assert hooks() + hooks_of(optimizer) == 0
    assert not _waiting


OPTIMIZERS = {
    "sgd, lr 1000": lambda p: torch.optim.SGD(p, 1000.0),
    "sgd, decay to 0": lambda p: torch.optim.SGD(p, 1.0, weight_decay=1.0),
    "adam, lr 1000": lambda p: torch.optim.Adam(p, 1000.0),
    "adamw, decay": lambda p: torch.optim.AdamW(p, 0.1, weight_decay=10.0),
    "lr 0": lambda p: torch.optim.SGD(p, 0.0),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 1.0, max_iter=50, line_search_fn="strong_wolfe"),
    "own lbfgs": lambda p: type("Own", (torch.optim.LBFGS,), {})(p, 1.0, max_iter=50),
    "own class": lambda p: type("Own", (torch.optim.Adam,), {})(p, 0.1),
}


@GIVEN
@pytest.mark.parametrize("event", [FIRE(), FullReset(fresh_seed=0), ShrinkAndPerturb(strength=0.02, fresh_seed=0)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_honest_steps_are_no_error(name, event, given):
    """Also steps that reach the old weights by themselves: the loss is convex, and LBFGS minimizes it in a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16))
    step(model, torch.optim.LBFGS(model.parameters(), max_iter=50))
    optimizer = OPTIMIZERS[name](model.parameters())
    event(model, Loop(optimizers_of(optimizer, given)))
    step(model, optimizer, 3)


def test_a_step_without_gradients_or_a_skipped_one_is_not_the_next_step():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fire_(model, optimizers=optimizer)
    optimizer.zero_grad()
    for _ in range(20):
        optimizer.step()
    assert hooks_of(optimizer) == 2
    step(model, optimizer, 2)
    assert hooks_of(optimizer) == 0


def test_only_the_last_of_several_events_is_verified():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    old = copy.deepcopy(model.state_dict())
    for _ in range(3):
        fire_(model, optimizers=optimizer)
    with torch.no_grad():
        model[0].weight.mul_(3)
    last = copy.deepcopy(model.state_dict())
    fire_(model, optimizers=optimizer)
    assert hooks_of(optimizer) == 2
    model.load_state_dict(last)
    with pytest.raises(RuntimeError, match=r"an event has been undone: 0\.weight is back"):
        step(model, optimizer)
    assert not torch.equal(model[0].weight, old["0.weight"])


def test_an_event_is_tried_and_rejected_on_a_copy_as_the_error_says():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fire_(trial := copy.deepcopy(model))
    assert not torch.equal(trial[0].weight, model[0].weight)
    step(model, optimizer, 3)
    old = copy.deepcopy(model.state_dict())
    fire_(model, optimizers=optimizer)
    model.load_state_dict(old)
    with pytest.raises(RuntimeError, match=r"To try an event and reject it, act on a copy: `trial = copy\.deepcopy"):
        step(model, optimizer)


def test_hooks_of_others_run_and_are_kept():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    calls = []
    first = optimizer.register_step_post_hook(lambda *_: calls.append("first"))
    fire_(model, optimizers=optimizer)
    optimizer.register_step_post_hook(lambda *_: calls.append("second"))
    step(model, optimizer, 3)
    first.remove()
    step(model, optimizer)
    assert calls == ["first", "second"] * 3 + ["second"]
    assert hooks_of(optimizer) == 1


def test_copies_and_pickles_of_an_optimizer_have_no_check():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fire_(model, optimizers=optimizer)
    waiting = pickle.dumps(optimizer)
    assert hooks_of(copy.deepcopy(optimizer)) == 0
    assert copy.deepcopy(_waiting[-1]).samples == []
    _waiting[-1].close()
    assert pickle.dumps(optimizer) == waiting


def test_a_model_that_is_dropped_ends_its_check():
    model = network()
    fire_(model)
    assert hooks() == 2
    del model
    gc.collect()
    other = network()
    step(other, torch.optim.SGD(other.parameters(), 0.1))
    assert hooks() == 0


@GIVEN
def test_two_networks_whose_optimizers_take_turns(given):
    both = nn.ModuleList([network(), network()])
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3) for each in both]
    fire_(both, optimizers=optimizers if given else ())
    step(both[0], optimizers[0], 3)
    assert hooks() + hooks_of(optimizers[1]) == 2
    step(both[1], optimizers[1], 2)
    assert hooks() + hooks_of(optimizers[0]) + hooks_of(optimizers[1]) == 0
