"""Wrong arguments of the plain functions end in a sentence, before anything is written."""

import copy
import dataclasses
import inspect
from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import lightning_fire
from lightning_fire import methods
from lightning_fire.methods import drop_state
from lightning_fire.methods.base.optimizers import with_inner
from lightning_fire.when import AtNewData
from lightning_fire.where import HiddenUnits, Parameters, Weights

X = torch.ones(3, 2)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))


def target(model):
    return methods.fresh_values(model, 1) if isinstance(model, nn.Module) else {}


def loss_of(model):
    return [model(X).sum()] if isinstance(model, nn.Module) else []


def applied(make):
    """A method with events, made with the `where` and `optimizer_state` that are given, and applied to a model."""

    def apply(model, optimizers=(), **options):
        method = make(**options)
        forward = (lambda: model(X)) if isinstance(model, nn.Module) else None
        return method(model, methods.Loop(optimizers, forward, loss_of(model), target(model)))

    return apply


FUNCTIONS = {
    "fire_": lambda model, **options: methods.fire_(model, **options),
    "shrink_and_perturb_": lambda model, **options: methods.shrink_and_perturb_(model, target(model), **options),
    "full_reset_": lambda model, **options: methods.full_reset_(model, target(model), **options),
    "dash_": lambda model, **options: methods.dash_(model, loss_of(model), **options),
    "FIRE": applied(methods.FIRE),
    "PlasticityInjection": applied(lambda **options: methods.PlasticityInjection("3", **options)),
    "ReDo": applied(lambda **options: methods.ReDo(threshold=9.0, **options)),
}
WITH_WHERE = [name for name in FUNCTIONS if name != "PlasticityInjection"]


def attached(make):
    def attach(model, **options):
        method = make(**options)
        forward = (lambda: model(X)) if isinstance(model, nn.Module) else None
        return method.attach(model, methods.Loop(forward=forward, initial=target(model)))

    return attach


OBJECTS = {
    "L2Init": attached(lambda **options: methods.L2Init(0.1, **options)),
    "Parseval": attached(lambda **options: methods.Parseval(0.1, **options)),
    "SpectralRegularization": attached(lambda **options: methods.SpectralRegularization(0.1, **options)),
    "IsometryDecay": attached(lambda **options: methods.IsometryDecay(0.1, **options)),
    "WeightProjection": attached(methods.WeightProjection),
    "WeightClipping": attached(methods.WeightClipping),
    "SoftWeightRescaling": attached(methods.SoftWeightRescaling),
    "FeatureRank": lambda model, **options: methods.RankAscent(model, lambda: model(X), 0.1, **options),
    "ContinualBackprop": attached(methods.ContinualBackprop),
    "SelfNormalizedReset": attached(methods.SelfNormalizedReset),
    "SelectiveWeightReinit": attached(methods.SelectiveWeightReinit),
}


@pytest.fixture
def model():
    """A network with an optimizer that has stepped; neither may be changed by a call that fails."""
    made = network()
    made.optimizer_for_test = torch.optim.Adam(made.parameters())
    made(X).sum().backward()
    made.optimizer_for_test.step()
    before = copy.deepcopy((made.state_dict(), made.optimizer_for_test.state_dict()["state"]))
    yield made
    after = made.state_dict()
    for name, value in before[0].items():
        assert torch.equal(value, after.get(name, after.get(name.replace("3.", "3.trained.")))), name
    assert made.optimizer_for_test.state_dict()["state"].keys() == before[1].keys()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (
            lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
            "got StepLR. Give the optimizer of the sched",
        ),
        (lambda optimizer: [torch.optim.lr_scheduler.StepLR(optimizer, 1)], "got StepLR. Give the optimizer"),
        (lambda optimizer: optimizer.state_dict(), "got dict"),
        (lambda optimizer: None, "got None"),
        (lambda optimizer: "adam", "got str"),
        (lambda optimizer: torch.nn.Linear(1, 1), "got Linear"),
        (lambda optimizer: optimizer.param_groups[0]["params"], "got Parameter"),
        (lambda optimizer: [optimizer, object()], "got object"),
    ],
)
def test_what_is_no_optimizer(model, name, wrong, match):
    with pytest.raises(TypeError, match=f"`optimizers` must be .*{match}"):
        FUNCTIONS[name](model, optimizers=wrong(model.optimizer_for_test))


@pytest.mark.parametrize("name", [*WITH_WHERE, *OBJECTS])
@pytest.mark.parametrize("wrong", ["cnn", ["head"], 3, Weights, nn.Linear(1, 1)])
def test_what_is_no_selection(model, name, wrong):
    on_parameters = ("shrink_and_perturb_", "full_reset_", "L2Init", "SelectiveWeightReinit")
    kind = "Parameters" if name in on_parameters else "Weights"
    kind = "HiddenUnits" if name in ("ReDo", "FeatureRank", "ContinualBackprop", "SelfNormalizedReset") else kind
    with pytest.raises(TypeError, match=rf"`where` must be a selection such as {kind}\((preset|include)="):
        {**FUNCTIONS, **OBJECTS}[name](model, where=wrong)


@pytest.mark.parametrize("name", [*WITH_WHERE, *OBJECTS])
def test_a_selection_of_another_kind(model, name):
    for wrong in (Weights(), Parameters(), HiddenUnits()):
        try:
            {**FUNCTIONS, **OBJECTS}[name](copy.deepcopy(model), where=wrong)
        except TypeError as error:
            assert "`where` must be a selection of the kind" in str(error)
            break
    else:
        pytest.fail("every kind is taken")


@pytest.mark.parametrize(
    "name", [*FUNCTIONS, *OBJECTS, "HareAndTortoise", "isometric_values", "initial_values", "fresh_values"]
)
def test_what_is_no_model(model, name):
    calls = {**FUNCTIONS, **OBJECTS, "HareAndTortoise": methods.Tortoise}
    calls |= {"isometric_values": lambda model: methods.isometric_values(model, {})}
    calls |= {"initial_values": methods.initial_values, "fresh_values": lambda model: methods.fresh_values(model, 1)}
    for wrong in (model.state_dict(), model.parameters()):
        with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module"):
            calls[name](wrong)


def test_an_optimizer_by_position(model):
    with pytest.raises(TypeError, match="got Adam: an optimizer is given by name, `optimizers=…`"):
        methods.fire_(model, model.optimizer_for_test)


@pytest.mark.parametrize("function", [methods.full_reset_, methods.shrink_and_perturb_])
def test_a_wrong_target(model, function):
    for wrong in (model, model.optimizer_for_test, {"0.weight": 1.0}, None):
        with pytest.raises(TypeError, match=r"`target` must be values by name, such as initial_values\(model\)"):
            function(model, wrong)
    with pytest.raises(ValueError, match="shape"):
        function(
            model, methods.initial_values(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)))
        )
    with pytest.raises(ValueError, match="shape"):  # which could be broadcast
        function(model, {name: value.flatten()[:1] for name, value in methods.initial_values(model).items()})
    with pytest.raises(KeyError):
        function(model, {})
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) missing 1 required positional argument: 'target'$"):
        function(model)


@pytest.mark.parametrize("method", [*methods.METHODS])
def test_neither_model_nor_schedule_is_an_argument_of_a_method(model, method):
    fields = [field.name for field in dataclasses.fields(method) if field.name != "where"]
    for name in fields[:1]:
        with pytest.raises(TypeError, match=rf"`{name}` of {method.__name__} is a schedule: .* PlasticityCallback\("):
            method(**{name: AtNewData()})
        with pytest.raises(TypeError, match=rf"`{name}` of {method.__name__} is a Sequential: a method is"):
            method(**{name: model})


def test_other_mistakes(model):
    with pytest.raises(TypeError, match=r"^fire_\(\) got an unexpected keyword argument 'optimizer'$"):
        methods.fire_(model, optimizer=model.optimizer_for_test)
    with pytest.raises(TypeError, match="`heads` must be a list of names, such as \\['head'\\], got '3'"):
        methods.wrap_heads(model, "3")
    with pytest.raises(TypeError, match="`losses` must be several losses, one of each batch, got Tensor"):
        methods.dash_(model, model(X).sum())


@pytest.mark.parametrize("method", [methods.FIRE(), methods.FullReset(fresh_seed=0), methods.DASH()], ids=repr)
def test_a_model_without_values_is_told_how_to_make_them(method):
    model = network().to("meta")
    with pytest.raises(ValueError, match=r"no values yet in .*0\.weight.* \(meta device\).*to_empty"):
        method(model, methods.Loop(torch.optim.SGD(model.parameters(), 0.1)))


class Foreign:
    """An optimizer of no class of torch: a `state` by parameter, in which it also keeps settings."""

    def __init__(self, parameters):
        self.state, self.param_groups = defaultdict(dict), [{"params": list(parameters)}]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"do_wd": False}

    def step(self):
        for parameter, state in self.state.items():
            state |= {"step": 3, "grad_avg": torch.ones_like(parameter)}


class Shows:
    """A wrapper of another library that shows the state of an optimizer of torch."""

    def __init__(self, optimizer):
        self.opt = optimizer

    state = property(lambda self: self.opt.state)
    param_groups = property(lambda self: self.opt.param_groups)


PLAIN = [name for name in lightning_fire.__all__ if name.endswith("_")]


@pytest.mark.parametrize("name", PLAIN)
def test_all_plain_functions_have_the_same_keywords(name):
    parameters = inspect.signature(getattr(lightning_fire, name)).parameters.values()
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    assert keywords == ["optimizers", "optimizer_state", "averages"]


@pytest.mark.parametrize("name", PLAIN)
def test_an_average_begins_again_from_the_new_weights(name):
    model = network()
    average = AveragedModel(model)
    average.n_averaged.fill_(3)
    old = model[0].weight.clone()
    FUNCTIONS[name](model, averages=average)
    assert not torch.equal(model[0].weight, old) and average.n_averaged == 0
    assert all(map(torch.equal, average.module.parameters(), model.parameters()))


@pytest.mark.parametrize("name", PLAIN)
def test_an_optimizer_of_another_library_is_served(name):
    model = network()
    foreign = Foreign(model.parameters())
    foreign.step()
    FUNCTIONS[name](model, optimizers=foreign)
    assert foreign.state[model[0].weight] == {"do_wd": False}
    kept = name == "fire_"  # biases are not touched
    assert ("grad_avg" in foreign.state[model[0].bias]) == kept
    drop_state([foreign])
    assert all(state == {"do_wd": False} for state in foreign.state.values())


def test_the_moments_of_units_in_an_optimizer_of_another_library_become_zero():
    model = network()
    foreign = Foreign(model.parameters())
    foreign.step()
    FUNCTIONS["ReDo"](model, foreign)
    assert not foreign.state[model[0].weight]["grad_avg"].any()


def test_a_wrapper_of_another_library_is_served_by_what_is_in_it():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(X).sum().backward()
    optimizer.step()
    assert with_inner([Shows(optimizer)]) == [optimizer]
    methods.fire_(model, optimizers=Shows(optimizer))
    assert set(optimizer.state) == {model[0].bias, model[1].weight, model[1].bias, model[3].bias}
    methods.fire_(model, optimizers={"all": optimizer}.values())
    methods.fire_(model, optimizers=(each for each in [optimizer]))


class Broken(methods.EventMethod):
    name = "broken"

    def __init__(self, returned):
        self.returned = returned

    def plan(self, model, training):
        return self.returned(model) if self.returned else None


def test_an_optimizer_in_place_of_a_loop_is_named():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"`training` must be a Loop, such as Loop\(optimizers=optimizer\), got SGD"):
        methods.FIRE()(model, optimizer)
    with pytest.raises(TypeError, match="must be a Loop"):
        methods.Parseval(0.1).attach(model, optimizer)


def test_a_plan_that_returns_no_change_is_named():
    with pytest.raises(TypeError, match="`plan` of Broken must return a Change, got NoneType"):
        Broken(None)(network())
    with pytest.raises(TypeError, match="must be new tensors by the tensors that they replace, got str and Parameter"):
        Broken(lambda model: methods.Change(dict(model.named_parameters())))(network())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_turned_on_for_the_methods_that_need_them(mode):
    model = network()
    loop = methods.Loop(losses=lambda: [model(X).sum()], forward=lambda: model(X))
    with mode():
        assert methods.DASH()(model, loop)["batches"] == 1
        attached = methods.SelfNormalizedReset().attach(model, loop)
        assert not torch.is_grad_enabled()
    model(X).sum().backward()
    attached.after_step()
