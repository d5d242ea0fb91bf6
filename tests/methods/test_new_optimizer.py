"""A weight that is reset has, in its optimizer, what a new optimizer would give it."""

import copy
import inspect
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer, RMSprop

from lightning_fire import Change, HiddenUnits
from lightning_fire.methods import reset_optimizer_state
from lightning_fire.methods.base.unit_reset import unit_resets

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
} | {"SGD fused": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "fused": True})}


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
    """Train, replace some weights, and reset them; return the optimizer, all its weights and copies of them."""
    parameters = weights()
    optimizer = build(parameters)
    for seed in range(30):
        step(optimizer, parameters, seed)
    with torch.no_grad():
        for parameter in parameters[touched]:
            parameter.copy_(nn.init.orthogonal_(torch.empty_like(parameter)))
    reset_optimizer_state(optimizer, parameters[touched] if touched != slice(None) else None)
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
def test_a_reset_weight_steps_as_in_a_new_optimizer_of_torch(case, touched):
    kind, options = CASES[case]
    assert_steps_as_new(lambda parameters: kind(parameters, **options), touched)


@pytest.mark.parametrize("case", CASES)
def test_other_weights_step_as_if_nothing_had_happened(case):
    kind, options = CASES[case]
    if kind is torch.optim.LBFGS:
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


# --- optimizers of other libraries, small ones of each kind -----------------------------------------------------------


class CountsInGroups(Optimizer):
    """Adam with one step count for a group, as apex's FusedAdam, timm's Adan and half of pytorch_optimizer."""

    def __init__(self, params, lr=0.01, betas=(0.9, 0.999)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 1 - first)
                v = state.setdefault("v", torch.zeros_like(p)).lerp_(p.grad**2, 1 - second)
                m, v = m / (1 - first ** group["step"]), v / (1 - second ** group["step"])
                p.sub_(group["lr"] * m / (v.sqrt() + 1e-8))


class MadeAtOnce(Optimizer):
    """Dual averaging, MADGRAD's kind: copies the weights in its constructor, and counts in an attribute."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr, "total": 0.0})
        self.count = 0
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"start": p.detach().clone(), "sum": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["total"] += group["lr"]
            for p in group["params"]:
                state = self.state[p]
                p.copy_(state["start"] - group["lr"] * state["sum"].add_(p.grad) / self.count**0.5)


class MadeAtTheFirstStep(Optimizer):
    """Makes all its state at the first step, never later."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})
        self.is_new = True

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if self.is_new:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                p.sub_(group["lr"] * self.state[p]["momentum"].mul_(0.9).add_(p.grad))
        self.is_new = False


class ScheduleFree(Optimizer):
    """Schedule-free SGD, with modes, and a copy z of the weight."""

    def __init__(self, params, lr=0.01, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": False})

    def train(self):
        self._set(True, lambda group: 1 - group["beta"])

    def eval(self):
        self._set(False, lambda group: 1 - 1 / group["beta"])

    @torch.no_grad()
    def _set(self, mode, weight):
        for group in self.param_groups:
            for p in group["params"] if group["train_mode"] != mode else ():
                if "z" in self.state[p]:
                    p.lerp_(self.state[p]["z"], weight(group))
            group["train_mode"] = mode

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.detach().clone())
                p.lerp_(z, 1 / group["k"]).sub_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - 1 / group["k"]) - 1))
                z.sub_(p.grad, alpha=group["lr"])


class Lookahead(Optimizer):
    """Steps an inner optimizer, and returns half-way to slow weights, which it copies at the sixth step."""

    def __init__(self, base_optimizer, alpha=0.5, k=6):
        self.base, self.alpha, self.k = base_optimizer, alpha, k
        super().__init__(base_optimizer.param_groups, {})
        self.param_groups = base_optimizer.param_groups
        for group in self.param_groups:
            group["lookahead"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step()
        for group in self.param_groups:
            group["lookahead"] += 1
            for p in group["params"] if group["lookahead"] % self.k == 0 else ():
                slow = self.base.state[p].setdefault("slow", p.detach().clone())
                p.copy_(slow.lerp_(p, self.alpha))


def schedule_free(parameters):
    optimizer = ScheduleFree(parameters)
    optimizer.train()
    return optimizer


OTHERS = {
    "counts in groups": CountsInGroups,
    "made at once": MadeAtOnce,
    "schedule-free": schedule_free,
    "lookahead": lambda parameters: Lookahead(Adam(parameters, lr=0.01), k=2),
    "lookahead of counts": lambda parameters: Lookahead(CountsInGroups(parameters), k=5),
}


@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS)
def test_a_whole_optimizer_begins_again(build):
    assert_steps_as_new(build, slice(None))


@pytest.mark.parametrize("kind", [CountsInGroups, MadeAtOnce, MadeAtTheFirstStep])
def test_a_group_of_its_own_begins_again_with_its_weights(kind):
    def build(parameters):
        return kind([{"params": parameters[:1]}, {"params": parameters[1:]}])

    if kind is CountsInGroups:
        assert_steps_as_new(build, slice(1))
    else:
        with pytest.warns(UserWarning, match=f"{kind.__name__} .*differ from those of a new optimizer"):
            optimizer, parameters, _ = after_an_event(build, slice(1))
        step(optimizer, parameters, 100)  # no crash


@pytest.mark.parametrize(
    ("build", "keys"), [(CountsInGroups, "'step'"), (MadeAtOnce, "'count', 'total'"), (schedule_free, "'k'")]
)
def test_a_count_of_several_weights_is_named_once(build, keys):
    with pytest.warns(UserWarning, match=rf"keeps {keys} for several parameters .* optimizer_state=\"all\"") as told:
        optimizer, parameters, _ = after_an_event(build, slice(1))
        reset_optimizer_state(optimizer, parameters[:1])
    assert len(told) == 1
    step(optimizer, parameters, 100)


def test_settings_schedulers_and_words_of_groups_stay():
    parameters = weights()
    optimizer = CountsInGroups([{"params": parameters, "name": "all", "lr_scale": 0.5}])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for seed in range(5):
        step(optimizer, parameters, seed)
        scheduler.step()
    before = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "step")}
    assert before["lr"] == pytest.approx(0.01 * 0.9**5)
    reset_optimizer_state(optimizer)
    after = dict(optimizer.param_groups[0])
    assert after.pop("params") == parameters
    assert after == before


def test_a_new_copy_of_the_weight_is_made_in_evaluation_mode_too():
    parameters = weights()
    optimizer = schedule_free(parameters)
    for seed in range(5):
        step(optimizer, parameters, seed)
    optimizer.eval()
    with torch.no_grad():
        parameters[0].fill_(1.0)
    reset_optimizer_state(optimizer)
    assert not optimizer.param_groups[0]["train_mode"]
    optimizer.train()
    torch.testing.assert_close(parameters[0], torch.ones(6, 5))


class Adapts(MadeAtOnce):
    """Changes its own learning rate."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["lr"] *= 1.1


class AdaptsWithoutState(torch.optim.SGD):
    """Changes its own learning rate, and has no state."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["lr"] *= 1.1


@pytest.mark.parametrize("kind", [Adapts, AdaptsWithoutState])
def test_an_optimizer_that_changes_its_settings_is_named(kind):
    with pytest.warns(UserWarning, match=f"next steps of {kind.__name__} differ"):
        after_an_event(lambda parameters: kind(parameters, lr=0.01), slice(None))


def test_an_optimizer_without_state_is_refused():
    class Stateless(Optimizer):
        def __init__(self, optimizer):
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    with pytest.raises(TypeError, match="must be an optimizer, or several of them, got Stateless"):
        reset_optimizer_state(Stateless(Adam(weights())))


def test_an_optimizer_of_keras_is_refused_with_what_to_do():
    class KerasAdam:
        def apply_gradients(self, grads_and_vars):
            raise NotImplementedError

    with pytest.raises(TypeError, match="Give none, and then `compile` the model with a new optimizer"):
        reset_optimizer_state(KerasAdam())


class NeedsAModel(Adam):
    """Cannot be made from settings alone."""

    def __init__(self, params, model):
        super().__init__(params, lr=0.01)


def test_an_optimizer_that_cannot_be_made_is_named():
    with pytest.warns(UserWarning, match="the initial state of a new NeedsAModel is unknown"):
        optimizer, parameters, _ = after_an_event(lambda parameters: NeedsAModel(parameters, nn.Linear(1, 1)), slice(1))
    assert parameters[0] not in optimizer.state
    assert parameters[1] in optimizer.state


class NeedsAGraph(MadeAtOnce):
    """Uses second derivatives, and has state from the beginning, as Adahessian."""

    def step(self, closure=None):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        torch.autograd.grad([parameter.grad.sum() for parameter in parameters], parameters, allow_unused=True)
        super().step()


def test_an_optimizer_that_cannot_be_tried_is_named_and_has_the_state_that_it_makes_at_once():
    parameters = weights()
    optimizer = NeedsAGraph(parameters)
    with pytest.warns(UserWarning, match="the initial state of a new NeedsAGraph is unknown"):
        reset_optimizer_state(optimizer, parameters[:1])
    for seed in range(2):
        for parameter in parameters:
            parameter.grad = seed * parameter.square()
        optimizer.step()
    assert torch.equal(optimizer.state[parameters[1]]["start"], weights()[1])


def test_learning_about_an_optimizer_leaves_no_trace():
    parameters = weights()
    optimizer = Adam(parameters)
    step(optimizer, parameters, 0)
    optimizer.step = pytest.fail  # as a scheduler replaces it
    before, random = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        reset_optimizer_state(optimizer, [nn.Parameter(torch.ones(3, 2))])
        reset_optimizer_state(optimizer, parameters[:1])
    assert not told
    assert torch.equal(torch.get_rng_state(), random)
    del before["state"][0]
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after["state"].keys() == before["state"].keys()


# --- units ------------------------------------------------------------------------------------------------------------


UNITS = {
    "ASGD": (lambda p: torch.optim.ASGD(p, t0=0.0), {"ax": "weight"}),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5), {"sum": 0.5}),
    "Adamax": (lambda p: torch.optim.Adamax(p), {"exp_avg": 0.0, "exp_inf": 1e-8}),
    "RMSprop": (lambda p: RMSprop(p, momentum=0.9), {"square_avg": 0.0, "momentum_buffer": 0.0}),
    "Rprop": (lambda p: torch.optim.Rprop(p, lr=0.02), {"prev": 0.0, "step_size": 0.02}),
    "made at once": (MadeAtOnce, {"start": "weight", "sum": 0.0}),
    "schedule-free": (schedule_free, {"z": "weight"}),
    "lookahead": (lambda p: Lookahead(Adam(p), k=3), {"exp_avg": 0.0, "slow": "weight"}),
}


@pytest.mark.parametrize("case", UNITS)
def test_new_units_have_the_state_of_new_weights_and_others_keep_theirs(case):
    build, starts = UNITS[case]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = build(net.parameters())
    for seed in range(12):
        step(optimizer, list(net.parameters()), seed)
    (layer,) = HiddenUnits().select(net, lambda: net(torch.ones(2, 3)))
    inner = getattr(optimizer, "base", optimizer)
    before = copy.deepcopy([dict(inner.state[p]) for p in net.parameters()])
    Change(parts=unit_resets([(layer, torch.tensor([1]))], 0, optimizer)).make()
    for parameter, old in zip(net.parameters(), before, strict=True):
        rows = {(4, 3): 1, (4,): 1, (2, 4): (slice(None), 1), (2,): slice(0)}[tuple(parameter.shape)]
        for name, start in starts.items():
            new = inner.state[parameter][name]
            expected = parameter.detach() if start == "weight" else torch.full_like(new, start)
            torch.testing.assert_close(new[rows], expected[rows], rtol=0, atol=0)
            kept = torch.ones_like(new, dtype=torch.bool)
            kept[rows] = False
            assert torch.equal(new[kept], old[name][kept])


class Codes(Optimizer):
    """Keeps its momentum in codes of 8 bits."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["codes"] = (p.grad.sign() + 1).to(torch.uint8)
                p.sub_(group["lr"] * p.grad)

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})


def test_state_in_codes_is_left_with_a_warning():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = Codes(net.parameters())
    step(optimizer, list(net.parameters()), 0)
    (layer,) = HiddenUnits().select(net, lambda: net(torch.ones(2, 3)))
    before = optimizer.state[net[0].weight]["codes"].clone()
    with pytest.warns(UserWarning, match="the state of Codes .* cannot be reset for some units"):
        Change(parts=unit_resets([(layer, torch.tensor([1]))], 0, optimizer)).make()
    assert torch.equal(optimizer.state[net[0].weight]["codes"], before)
