"""What no optimizer of the Trainer trains, such as a teacher whose `requires_grad` was left on, is left alone."""

import pytest
import torch
from methods_table import ALL, callback_of
from small_training import PlainData, PlainModule, fitted, snapshots_of, state_of, trainer
from torch import nn

from lightning_fire import (
    FIRE,
    AtEpochs,
    FIRECallback,
    FullReset,
    Log,
    OptimizerReset,
    Parameters,
    PlasticityCallback,
    ShrinkAndPerturb,
)


class Distilled(PlainModule):
    """With a teacher of the same shapes; its BatchNorm has buffers, and one of them no parameters."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)
        )

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            target = self.teacher.eval()(batch[0])
        output = self.net(batch[0])
        return nn.functional.cross_entropy(output, batch[1]) + nn.functional.mse_loss(output, target)

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=1e-2)


@pytest.fixture(scope="module")
def vanilla() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return state_of(fitted(module=Distilled()))


@pytest.mark.parametrize("name", ALL)
def test_a_teacher_stays_bit_equal(name, vanilla):
    torch.manual_seed(0)
    module = Distilled()
    before = state_of(module.teacher)
    fitted(callback_of(name), module=module)
    assert all(torch.equal(value, before[key]) for key, value in state_of(module.teacher).items())
    after = state_of(module)
    assert any(key not in after or not torch.equal(after[key], value) for key, value in vanilla.items())


def test_values_of_a_teacher_that_were_loaded_later_are_not_reset():
    """The initial values of a reset are older than they."""
    module = Distilled()

    class Loads(PlasticityCallback):
        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer, pl_module)
            nn.init.ones_(pl_module.teacher[0].weight)
            pl_module.teacher[3].running_mean.fill_(5.0)

    callback = Loads(FullReset(), AtEpochs([1]))
    fitted(callback, module=module, data=PlainData(), max_epochs=2)
    assert (module.teacher[0].weight == 1).all() and (module.teacher[3].running_mean == 5).all()
    assert callback.num_events == 1


@pytest.mark.parametrize("method", [FIRE, FullReset])
def test_one_line_says_what_is_left_out(method, caplog):
    fitted(PlasticityCallback(method(), AtEpochs([1])), module=Distilled(), data=PlainData(), max_epochs=2)
    lines = [record.getMessage() for record in caplog.records if "leaves out" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"{method.__name__} leaves out teacher.0.weight, teacher.")
    assert lines[0].endswith(": no optimizer trains them.")


def test_a_reset_of_optimizers_acts_beside_an_optimizer_of_copies():
    class Copies(PlainModule):
        def configure_optimizers(self):
            return torch.optim.Adam([parameter.detach().clone() for parameter in self.parameters()])

    callback = PlasticityCallback(OptimizerReset(), AtEpochs([1]))
    fitted(callback, module=Copies(), data=PlainData(), max_epochs=2)
    assert callback.num_events == 1


class Alone(PlainModule):
    """Steps its own optimizer: Lightning then has one of its own, of nothing."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization, self.own = False, [torch.optim.Adam(self.net[:4].parameters(), lr=1e-2)]
        self.head = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        self.own[0].zero_grad()
        super().training_step(batch, batch_idx).backward()
        self.own[0].step()

    def configure_optimizers(self):
        return None


@pytest.mark.filterwarnings("ignore:.*returned `None`, this fit will run with no optimizer")
def test_an_optimizer_that_only_the_module_holds_is_known():
    class Watched(FIRECallback):
        def at(self, trainer, pl_module, clock):
            before = self.num_events
            super().at(trainer, pl_module, clock)
            if self.num_events > before:
                self.left = {name for name, p in pl_module.named_parameters() if p in pl_module.own[0].state}
                self.heads = pl_module.head.weight.clone(), head

    module, callback = Alone(), Watched(AtEpochs([1]))
    head = module.head.weight.clone()
    fitted(callback, module=module, data=PlainData(), max_epochs=2)
    assert callback.left == {"net.0.bias", "net.1.weight", "net.1.bias", "net.3.bias"}
    assert torch.equal(*callback.heads)


@pytest.mark.filterwarnings("ignore:.*returned `None`, this fit will run with no optimizer")
def test_a_module_whose_optimizer_is_not_found_is_changed_by_requires_grad_with_a_warning():
    module, callback = Alone(), FIRECallback(AtEpochs([1]))
    optimizer = module.own[0]
    module.own = type("Hidden", (), {"__getitem__": lambda self, index: optimizer})()
    with pytest.warns(UserWarning, match="FIRECallback finds no optimizer of Alone"):
        fitted(callback, module=module, data=PlainData(), max_epochs=2)
    assert callback.num_events == 1


@pytest.mark.filterwarnings("ignore:.*returned `None`, this fit will run with no optimizer")
def test_a_dict_of_more_than_a_hundred_optimizers_is_searched():
    """One for each parameter, which steps in the backward pass."""

    class InBackward(PlainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net.extend([nn.Linear(3, 3) for _ in range(60)])
            self.own = {parameter: torch.optim.Adam([parameter]) for parameter in self.parameters()}
            for parameter in self.parameters():
                parameter.register_post_accumulate_grad_hook(lambda parameter: self.own[parameter].step())

        def training_step(self, batch, batch_idx):
            self.manual_backward(super().training_step(batch, batch_idx))

        def configure_optimizers(self):
            return None

    module = InBackward()
    fitted(FIRECallback(AtEpochs([1])), module=module, data=PlainData(), max_epochs=2)
    steps = {p.ndim: int(optimizer.state[p]["step"]) for p, optimizer in module.own.items()}
    assert len(module.own) > 100 and steps == {1: 8, 2: 4}


class Gan(PlainModule):
    """Leaves the critic frozen between batches; a third network is frozen for good, though an optimizer has it."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critic, self.backbone = nn.Linear(6, 6), nn.Linear(6, 6)
        self.backbone.requires_grad_(False)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        x = self.backbone(batch[0])
        self.critic.requires_grad_(True)
        first.zero_grad()
        self.manual_backward(self.critic(x).square().mean())
        first.step()
        self.critic.requires_grad_(False)
        second.zero_grad()
        self.manual_backward(self.net(self.critic(x)).square().mean())
        second.step()

    def configure_optimizers(self):
        critic = [*self.critic.parameters(), *self.backbone.parameters()]
        return [torch.optim.Adam(parameters, lr=1e-2) for parameters in (critic, self.net.parameters())]


def test_a_network_that_is_frozen_at_an_event_is_left_out_and_named(caplog):
    module, callback = Gan(), snapshots_of(FIRECallback)(AtEpochs([1]), log=Log(curvature=False))
    fitted(callback, module=module, data=PlainData(), max_epochs=2)
    before, after, _ = callback.seen[0]
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"net.0.weight", "net.3.weight", "net.5.weight"}
    assert "3 of 5 weight matrices" in next(text for text in caplog.messages if " acted at " in text)


class FineTuned(PlainModule):
    """A frozen, pretrained first layer with its BatchNorm, and a parameter that belongs to no layer."""

    def __init__(self):
        super().__init__()
        self.net[:2].requires_grad_(False)
        self.token = nn.Parameter(torch.zeros(1, 6))

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0] + self.token, batch[1]), batch_idx)


@pytest.mark.parametrize("method", [FullReset, ShrinkAndPerturb])
@pytest.mark.parametrize("optimized", ["all", "trainable"])
def test_a_fresh_draw_leaves_frozen_layers_alone_and_asks_only_what_is_selected(method, optimized):
    module = FineTuned()
    if optimized == "trainable":
        module.configure_optimizers = lambda: torch.optim.Adam(module.net[3:].parameters(), lr=1e-2)
    before = state_of(module.net[0])
    where = Parameters(include=[r"^net\.5"])
    callback = PlasticityCallback(method(where=where, fresh_seed=0), AtEpochs([1]))
    fitted(callback, module=module, data=PlainData(), max_epochs=2)
    assert all(torch.equal(value, before[key]) for key, value in state_of(module.net[0]).items())
    assert callback.num_events == 1
    whole = PlasticityCallback(method(fresh_seed=0), AtEpochs([1]))
    if optimized == "all":
        with pytest.raises(ValueError, match="FineTuned has parameters and no reset_parameters"):
            trainer(whole, max_epochs=2).fit(module, datamodule=PlainData())
    else:
        trainer(whole, max_epochs=2).fit(module, datamodule=PlainData())
        assert whole.num_events == 1
        assert all(torch.equal(value, before[key]) for key, value in state_of(module.net[0]).items())
