"""Plain functions and objects change only what the given optimizers train."""

import copy

import pytest
import torch
from torch import nn

from lightning_fire import methods
from lightning_fire.where import Parameters, Weights, WeightView

X = torch.linspace(-1, 1, 12).view(6, 2)


class Pair(nn.Module):
    """A student, and a teacher that is run without gradients."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = self.network(), self.network()

    @staticmethod
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher(x)
        return (self.student(x) - target).square().mean()


FUNCTIONS = {
    "fire": lambda model, optimizer: methods.fire_(model, Weights(preset="cnn"), optimizers=optimizer),
    "shrink_and_perturb": lambda model, optimizer: methods.shrink_and_perturb_(
        model, methods.fresh_values(model, 1), optimizers=optimizer
    ),
    "full_reset": lambda model, optimizer: methods.full_reset_(
        model, methods.fresh_values(model, 1), optimizers=optimizer
    ),
    "dash": lambda model, optimizer: methods.dash_(model, [model(X)], optimizers=optimizer),
}


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_teacher_stays_bit_equal_is_named_and_the_student_does_not(name, several):
    """Methods: `callbacks/test_untrained_modules`."""
    model = Pair()
    before, optimizer = copy.deepcopy(model), optimizer_of(model.student)
    left_out = r"the change leaves out teacher\.0\.weight, teacher.*: no optimizer trains them"
    with pytest.warns(UserWarning, match=left_out):
        FUNCTIONS[name](model, {"one": optimizer, "same": optimizer} if several else optimizer)
    for key, value in before.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]) or key.startswith("student"), key
    assert not torch.equal(before.student[0].weight, model.student[0].weight)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_optimizer_of_another_model_is_an_error_and_nothing_is_changed(name):
    model = Pair()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"train no (parameter|layer)"):
        FUNCTIONS[name](model, optimizer_of(Pair()))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_selection_that_no_optimizer_trains_is_an_error():
    model = Pair()
    with pytest.raises(ValueError, match=r"selects no weight of Pair.*not trained by any optimizer"):
        methods.fire_(model, Weights("cnn", include=["teacher"]), optimizers=optimizer_of(model.student))
    with pytest.raises(ValueError, match="not trained by any optimizer"):
        methods.full_reset_(
            model,
            methods.initial_values(model),
            Parameters(include=["teacher"]),
            optimizers=optimizer_of(model.student),
        )
    with pytest.raises(ValueError, match="'teacher' cannot be re-initialized: it is not trained by any optimizer"):
        methods.PlasticityInjection("teacher")(model, methods.Loop(optimizer_of(model.student)))


def test_a_selection_of_ones_own_follows_the_rule_too():
    class Own:
        def select(self, model, trained=None):
            return [WeightView(name, p) for name, p in model.named_parameters() if p.ndim == 2 and p in trained]

    model = Pair()
    before = copy.deepcopy(model.teacher.state_dict())
    report = methods.fire_(model, Own(), optimizers=optimizer_of(model.student))
    assert list(report.layers["sfe"]) == ["student.0.weight", "student.3.weight"]
    assert all(torch.equal(value, before[key]) for key, value in model.teacher.state_dict().items())


def test_without_optimizers_everything_trainable_is_changed_without_a_warning():
    model = Pair()
    model.teacher[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    methods.full_reset_(model, methods.fresh_values(model, 1))
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert {key for key in changed if "weight" in key} == {"student.0.weight", "student.3.weight", "teacher.3.weight"}


def test_a_teacher_with_attention_does_not_choose_the_weights_of_a_student_without():
    model = Pair()
    model.teacher = nn.TransformerEncoderLayer(8, 2)
    with pytest.warns(UserWarning, match="leaves out teacher"):
        report = methods.fire_(model, optimizers=optimizer_of(model.student))
    assert list(report.layers["sfe"]) == ["student.0.weight", "student.3.weight"]


def test_a_computed_weight_of_a_teacher_is_no_obstacle_and_one_of_the_student_is():
    model = Pair()
    nn.utils.parametrizations.weight_norm(model.teacher[0])
    with pytest.warns(UserWarning, match=r"leaves out teacher\.0\.weight, teacher\.3\.weight"):
        methods.fire_(model, optimizers=optimizer_of(model.student))
    nn.utils.parametrizations.weight_norm(model.student[0])
    with pytest.raises(ValueError, match=r"computed by a parametrization.*student\.0\.weight"):
        methods.fire_(model, optimizers=optimizer_of(model.student))


def test_units_of_a_teacher_are_not_watched():

    class Wide(Pair):
        @staticmethod
        def network() -> nn.Sequential:
            return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    model = Wide()
    model.student = Pair.network()
    optimizer = optimizer_of(model.student)
    training = methods.Loop(optimizer, lambda: model(X))
    method = methods.ContinualBackprop(replacement_rate=1 / 32, maturity=0).attach(model, training)
    assert [layer.size for layer in method.layers] == [8]
    assert "leaves out teacher" in method.selected()
    numbers = []
    for _ in range(8):
        model(X).backward()
        optimizer.step()
        method.after_step()
        numbers.append(method.metrics()["units"])
    assert numbers == [number // 4 for number in range(1, 9)]  # a unit of 8, at 1/32 each step
    training.optimizers = [optimizer_of(Pair())]
    with pytest.raises(ValueError, match="train no parameter of Wide"):
        [method.after_step() for _ in range(8)]


def test_a_partly_trained_head_keeps_the_rest_and_its_output():
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    before, output = copy.deepcopy(model.state_dict()), model(X)
    with pytest.warns(UserWarning, match=r"leaves out 2\.bias: no optimizer trains it"):
        methods.PlasticityInjection("2")(model, methods.Loop(torch.optim.SGD([model[2].weight], 0.1)))
    assert torch.equal(model[2].trained.bias, before["2.bias"])
    assert not torch.equal(model[2].trained.weight, before["2.weight"])
    torch.testing.assert_close(model(X), output)


def test_optimizers_in_a_wrapper_are_known():
    class Wrapper(torch.optim.SGD):
        """Its own groups hold copies, as of master weights; the optimizer in it has the weights."""

        def __init__(self, parameters):
            parameters = list(parameters)
            super().__init__([parameter.detach().clone() for parameter in parameters], lr=0.1)
            self.inner = torch.optim.SGD(parameters, lr=0.1)

    model = Pair().student
    before = copy.deepcopy(model.state_dict())
    methods.full_reset_(model, methods.fresh_values(model, 1), optimizers=Wrapper(model.parameters()))
    assert not torch.equal(model[0].weight, before["0.weight"])
