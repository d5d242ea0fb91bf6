"""Optimizer state at an event: what is dropped, where it is kept, and the next steps."""

import copy
import inspect

import pytest
import torch
from small_training import PlainModule, fitted
from torch import Tensor, distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import LBFGS, SGD, Adam, Optimizer, RMSprop

from lightning_fire import FIRE, Change, HiddenUnits, OptimizerReset, PlasticityCallback
from lightning_fire.methods import Loop, drop_state
from lightning_fire.methods.base.unit_reset import reset_units

OPTIONS = {
    "ASGD": {"t0": 0.0, "lambd": 0.01},  # averages from the first step
    "Adagrad": {"initial_accumulator_value": 0.5},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"maximize": True},
    "Muon": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "SGD": {"momentum": 0.9, "dampening": 0.1, "nesterov": False},
}
WAYS = {"Adam": ["foreach", "fused", "capturable"], "AdamW": ["fused"], "Adagrad": ["fused"], "Rprop": ["foreach"]}
KINDS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
}
CASES = {
    f"{name} {way}".strip(): (kind, {**OPTIONS.get(name, {}), "lr": 0.01, **({way: True} if way else {})})
    for name, kind in KINDS.items()
    for way in ["", *WAYS.get(name, [])]
    if not (way == "capturable" and not torch.cuda.is_available())
} | {"SGD fused": (SGD, {"lr": 0.01, "momentum": 0.9, "fused": True})}


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 5), (6, 5), (7, 3))]


def step(optimizer: Optimizer, parameters: list[nn.Parameter], seed: int) -> None:
    """Step with gradients that depend on the seed, sparse ones for an optimizer that takes no others."""
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(parameter.shape, generator=generator) for parameter in parameters]

    def closure() -> Tensor:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.to_sparse() if "Sparse" in type(optimizer).__name__ else gradient.clone()
        return sum((p.detach() * g).sum() for p, g in zip(parameters, gradients, strict=True))

    closure()
    optimizer.step(closure)


def after_an_event(build, touched: slice) -> tuple[Optimizer, list[nn.Parameter], list[nn.Parameter]]:
    """Train, replace some weights, and drop their state; return the optimizer, all its weights and copies of them."""
    parameters = weights()
    optimizer = build(parameters)
    for seed in range(30):
        step(optimizer, parameters, seed)
    with torch.no_grad():
        for parameter in parameters[touched]:
            parameter.copy_(nn.init.orthogonal_(torch.empty_like(parameter)))
    drop_state(optimizer, parameters[touched] if touched != slice(None) else None)
    return optimizer, parameters, copy.deepcopy(parameters)


def assert_steps_as_new(build, touched: slice) -> None:
    optimizer, parameters, copies = after_an_event(build, touched)
    new = build(copies)
    for seed in (100, 101, 102):
        step(optimizer, parameters, seed)
        step(new, copies, seed)
        for one, other in zip(parameters[touched], copies[touched], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("touched", [slice(1), slice(None)], ids=["touched", "all"])
@pytest.mark.parametrize("case", CASES)
def test_a_reset_weight_has_the_state_of_a_new_optimizer_of_torch_and_steps_as_in_one(case, touched):
    kind, options = CASES[case]

    def build(parameters):
        return kind(parameters, **options)

    if case != "SGD fused" or touched == slice(None):  # which has a momentum of zeros, as others have one
        optimizer, parameters, copies = after_an_event(build, touched)
        new = build(copies)
        for one, other in zip(parameters[touched], copies[touched], strict=True):
            state, expected = optimizer.state.get(one, {}), new.state.get(other, {})
            assert state.keys() == expected.keys()
            assert all(torch.equal(value, state[key]) for key, value in expected.items())
    assert_steps_as_new(build, touched)


@pytest.mark.parametrize("case", CASES)
def test_other_weights_step_as_if_nothing_had_happened(case):
    kind, options = CASES[case]
    if kind is LBFGS:
        pytest.skip("its state belongs to all weights together")
    optimizer, parameters, _ = after_an_event(lambda parameters: kind(parameters, **options), slice(1))
    others = weights()
    undisturbed = kind(others, **options)
    for seed in range(30):
        step(undisturbed, others, seed)
    step(optimizer, parameters, 100)
    step(undisturbed, others, 100)
    for one, other in zip(parameters[1:], others[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_dropping_state_draws_nothing_and_leaves_settings_and_other_state(case):
    kind, options = CASES[case]
    optimizer, parameters, _ = after_an_event(lambda parameters: kind(parameters, **options), slice(0))
    before, random = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    drop_state(optimizer, [nn.Parameter(torch.ones(3, 2))])
    drop_state(optimizer, [])
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"] and after["state"].keys() == before["state"].keys()
    drop_state(optimizer, parameters[:1])
    assert optimizer.state_dict()["param_groups"] == before["param_groups"]
    assert torch.equal(torch.get_rng_state(), random)


# --- optimizers of other libraries, small ones of each kind -----------------------------------------------------------


class MadeAtOnce(Optimizer):
    """Dual averaging, MADGRAD's kind: copies the weights in its constructor, and counts in its groups."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr, "count": 0})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"start": p.detach().clone(), "sum": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                state = self.state[p]
                p.copy_(state["start"] - group["lr"] * state["sum"].add_(p.grad) / group["count"] ** 0.5)


class ScheduleFree(Optimizer):
    """Schedule-free SGD with a copy z of the weight."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.detach().clone())
                p.lerp_(z.sub_(p.grad, alpha=group["lr"]), 0.1)


class NeedsAModel(Adam):
    """Cannot be made from settings alone."""

    def __init__(self, params, model):
        super().__init__(params, lr=0.01)


NeedsAModel.__module__ = "library"


def test_state_of_a_constructor_is_made_and_counters_of_groups_stay():
    optimizer, parameters, _ = after_an_event(MadeAtOnce, slice(1))
    assert optimizer.param_groups[0]["count"] == 30
    assert torch.equal(optimizer.state[parameters[0]]["start"], parameters[0])
    assert not optimizer.state[parameters[0]]["sum"].any() and optimizer.state[parameters[1]]["sum"].any()
    step(optimizer, parameters, 100)


def test_an_optimizer_that_cannot_be_made_is_named():
    with pytest.warns(UserWarning, match="the initial state of NeedsAModel is not known, as it cannot be made"):
        optimizer, parameters, _ = after_an_event(lambda parameters: NeedsAModel(parameters, nn.Linear(1, 1)), slice(1))
    assert parameters[0] not in optimizer.state
    assert parameters[1] in optimizer.state


def test_what_is_no_optimizer_is_refused_with_what_to_do():
    class Stateless(Optimizer):
        def __init__(self, optimizer):
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    class KerasAdam:
        def apply_gradients(self, grads_and_vars):
            raise NotImplementedError

    with pytest.raises(TypeError, match="must be an optimizer, or several of them, got Stateless"):
        drop_state(Stateless(Adam(weights())))
    with pytest.raises(TypeError, match="Give none, and then `compile` the model with a new optimizer"):
        drop_state(KerasAdam())


# --- units ------------------------------------------------------------------------------------------------------------


class Lookahead(Optimizer):
    """Steps an inner optimizer, and returns half-way to slow weights in every second step."""

    def __init__(self, inner: Optimizer):
        self.wrapped, self.count = inner, 0
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for parameter in parameters:
            self.state[parameter].setdefault("slow", parameter.detach().clone())
        self.wrapped.step(closure)
        self.count += 1
        for parameter in parameters if self.count % 2 == 0 else ():
            parameter.copy_(self.state[parameter]["slow"].lerp_(parameter, 0.5))


UNITS = {
    "ASGD": (lambda p: torch.optim.ASGD(p, t0=0.0), {"ax": "weight"}),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5), {"sum": 0.5}),
    "Adamax": (lambda p: torch.optim.Adamax(p), {"exp_avg": 0.0, "exp_inf": 0.0}),
    "RMSprop": (lambda p: RMSprop(p, momentum=0.9), {"square_avg": 0.0, "momentum_buffer": 0.0}),
    "Rprop": (lambda p: torch.optim.Rprop(p, lr=0.02), {"prev": 0.0, "step_size": 0.02}),
    "made at once": (MadeAtOnce, {"start": "weight", "sum": 0.0}),
    "schedule-free": (ScheduleFree, {"z": "weight"}),
    "wrapper": (lambda p: Lookahead(Adam(p)), {"exp_avg": 0.0}),
}


def with_new_unit(net, layer, optimizer):
    """Re-initialize the second unit of a layer."""
    values = {}
    reset_units(values, [(layer, torch.tensor([1]))], 0, net, Loop(optimizer))
    Change(values).make()


@pytest.mark.parametrize("case", UNITS)
def test_new_units_have_the_state_of_new_weights_and_others_keep_theirs(case):
    build, starts = UNITS[case]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = build(net.parameters())
    for seed in range(12):
        step(optimizer, list(net.parameters()), seed)
    (layer,) = HiddenUnits().select(net, lambda: net(torch.ones(2, 3)))
    inner = getattr(optimizer, "wrapped", optimizer)
    before = copy.deepcopy([dict(inner.state[p]) for p in net.parameters()])
    with_new_unit(net, layer, optimizer)
    for parameter, old in zip(net.parameters(), before, strict=True):
        rows = {(4, 3): 1, (4,): 1, (2, 4): (slice(None), 1), (2,): slice(0)}[tuple(parameter.shape)]
        for name, start in starts.items():
            new = inner.state[parameter][name]
            expected = parameter.detach() if start == "weight" else torch.full_like(new, start)
            torch.testing.assert_close(new[rows], expected[rows], rtol=0, atol=0)
            kept = torch.ones_like(new, dtype=torch.bool)
            kept[rows] = False
            assert torch.equal(new[kept], old[name][kept])


def test_the_first_updates_of_a_reset_unit_by_adam_are_three_to_seven_times_as_large():
    """PyTorch counts the steps of a whole tensor, so the moments of the reset unit are not bias-corrected."""
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    weight, optimizer = net[0].weight, Adam(net.parameters(), lr=1e-6)

    def steady_step() -> torch.Tensor:
        before = weight.detach().clone()
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return (before - weight.detach())[:, 0] / 1e-6

    steady_step()
    for state in optimizer.state.values():  # as after many steps with this gradient
        state["step"].fill_(5_000)
        state["exp_avg"].fill_(1), state["exp_avg_sq"].fill_(1)
    update = steady_step()
    torch.testing.assert_close(update, torch.ones(4, dtype=torch.double), rtol=0.01, atol=0)
    layer = HiddenUnits().select(net, lambda: net(torch.rand(5, 3).double()))[0]
    with_new_unit(net, layer, optimizer)
    updates = torch.stack([steady_step() for _ in range(1000)])
    assert updates[:, 1].argmax() in (11, 12)
    for number, factor in ((1, 3.16), (13, 6.58), (50, 4.52), (1000, 1.26)):
        assert updates[number - 1, 1].item() == pytest.approx(factor, rel=0.01), number
        assert updates[number - 1, 0].item() == pytest.approx(1, rel=0.01)


# --- state kept elsewhere, of several weights together ----------------------------------------------------------------


@pytest.fixture
def one_process(tmp_path):
    """A group of one process."""
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


WRAPPERS = {
    "wrapper": lambda parameters: Lookahead(Adam(parameters, lr=0.1)),
    "shards": lambda parameters: ZeroRedundancyOptimizer(parameters, Adam, lr=0.1),
}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("build", WRAPPERS.values(), ids=WRAPPERS)
def test_the_state_of_an_inner_optimizer_is_dropped(build):
    parameters = weights()
    optimizer = build(parameters)
    for seed in range(3):
        step(optimizer, parameters, seed)
    states = [optimizer.state, getattr(optimizer, "wrapped", getattr(optimizer, "optim", None)).state]
    kept = copy.deepcopy([dict(state[parameters[1]]) for state in states])
    assert any(parameters[0] in state for state in states)
    drop_state([optimizer], parameters[:1])
    assert not any(parameters[0] in state for state in states)
    for former, state in zip(kept, states, strict=True):
        assert former.keys() == state[parameters[1]].keys()
        assert all(torch.equal(former[key], value) for key, value in state[parameters[1]].items())
    step(optimizer, parameters, 3)
    drop_state(optimizer)
    assert not any(states)


class Wrapped(PlainModule):
    """Trained by an optimizer that wraps Adam."""

    def configure_optimizers(self):
        return Lookahead(super().configure_optimizers())


@pytest.mark.parametrize("method", [FIRE(optimizer_state="all"), OptimizerReset()])
def test_an_event_of_a_training_with_a_wrapper_begins_a_new_optimizer(method):
    class Begins(PlasticityCallback):
        def act(self, trainer, pl_module, clock):
            values = super().act(trainer, pl_module, clock)
            states.extend([dict(trainer.optimizers[0].state), dict(trainer.optimizers[0].wrapped.state)])
            return values

    states = []
    fitted(Begins(method), module=Wrapped())
    assert states == [{}] * 4


@pytest.mark.parametrize("index", [0, 2])
def test_lbfgs_drops_the_curvature_of_all_weights_if_one_of_them_is_replaced(index):
    parameters = weights()
    optimizer = LBFGS(parameters, lr=0.1)
    for seed in range(3):
        step(optimizer, parameters, seed)
    drop_state([optimizer], [nn.Parameter(torch.zeros(2))])
    assert optimizer.state
    drop_state([optimizer], [parameters[index]])
    assert not optimizer.state


@pytest.mark.parametrize(("count", "all_dropped"), [(1, False), (3, True)])
def test_fused_sgd_has_the_momenta_of_all_parameters_or_of_none(count, all_dropped):
    parameters = weights()
    optimizer = SGD(parameters, 0.1, momentum=0.9, dampening=0.25, fused=True)
    for seed in range(3):
        step(optimizer, parameters, seed)
    drop_state([optimizer], parameters[:count])
    assert (not optimizer.state) == all_dropped
    before = parameters[0].detach().clone()
    step(optimizer, parameters, 3)
    first = 1.0 if all_dropped else 0.75  # a momentum of zeros is dampened
    torch.testing.assert_close(parameters[0].detach(), before - 0.1 * first * parameters[0].grad)
