"""`PlasticityMonitor`: every logged number equals its definition; schedule; no effect on training."""

import re

import pytest
import reference
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import GrowingData, PlainModule, dataset, fitted, snapshots_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader

from lightning_fire import FIRECallback, HiddenUnits, Log, PlasticityMonitor, Weights, WhenMetric
from lightning_fire.functional import entropy_rank, loss_curvature, srank, stable_rank

STEPS = [2, 4, 8, 12, 18, 24]  # done at the end of each epoch
OF_DATA = ("dormant_fraction", "srank", "stable_rank", "entropy_rank", "lambda_max")


class Wide(PlainModule):
    """With some dormant hidden units, and dropout, which must be off."""

    def __init__(self):
        super().__init__()
        hidden = nn.Linear(6, 16)
        with torch.no_grad():
            hidden.weight[:4].zero_()
            hidden.bias[:4] = -1.0  # dead behind the ReLU
        self.net = nn.Sequential(hidden, nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


class Keep(Callback):
    """Keeps the network at the end of each epoch, and the last gradient before clipping."""

    def __init__(self):
        self.states, self.gradients = [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.gradient = torch.cat([p.grad.flatten() for p in pl_module.parameters()]).norm().item()

    def on_train_epoch_end(self, trainer, pl_module):
        self.states.append({name: value.clone() for name, value in pl_module.state_dict().items()})
        self.gradients.append(self.gradient)


def scalars(folder, key: str) -> dict[int, float]:
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    log.Reload()
    return {event.step: event.value for event in log.Scalars(key)} if key in log.Tags()["scalars"] else {}


def network(state: dict) -> nn.Sequential:
    module = Wide()
    module.load_state_dict(state)
    return module.net.eval()


def batches(epoch: int, number: int):
    return list(DataLoader(dataset(size=12 * (epoch // 2 + 1)), batch_size=6))[:number]


def run(folder, seed=0, **options):
    torch.manual_seed(seed)
    keep = Keep()
    fitted(keep, PlasticityMonitor(where=Weights(preset="cnn"), **options), module=Wide(), folder=folder)
    return keep


@pytest.mark.parametrize("number", [1, 3])
def test_metrics_of_the_network_equal_their_definitions(tmp_path, number):
    keep = run(tmp_path, data_every_n_steps=1, num_batches=number, log=Log(curvature=True))
    logged = {key: scalars(tmp_path, f"plasticity/{key}") for key in OF_DATA}
    for epoch, state in enumerate(keep.states):
        net, seen = network(state), batches(epoch, 99)[-number:]
        x, step = torch.cat([x for x, _ in seen]), STEPS[epoch] - 1
        with torch.no_grad():
            features = net[:-1](x)
        dormant = reference.dormant(features, 0.025)
        assert set(range(4)) <= set(dormant)
        assert logged["dormant_fraction"][step] == pytest.approx(len(dormant) / 16)
        assert logged["srank"][step] == srank(features).item()
        assert logged["stable_rank"][step] == pytest.approx(stable_rank(features).item(), rel=1e-4)
        assert logged["entropy_rank"][step] == pytest.approx(entropy_rank(features).item(), rel=1e-4)
        loss = nn.functional.cross_entropy(net(seen[0][0]), seen[0][1])
        assert logged["lambda_max"][step] == pytest.approx(loss_curvature(loss, list(net.parameters())).value, rel=0.05)
    assert list(scalars(tmp_path, "plasticity.layers/dormant_fraction/net.0")) == [step - 1 for step in STEPS]


class Sixteen(GrowingData):
    """Batches of 18 samples."""

    def train_dataloader(self):
        return DataLoader(dataset(size=36 * (self.chunk + 1)), batch_size=18)


def test_readiness_and_critical_sharpness_equal_slow_versions(tmp_path):
    keep = Keep()
    torch.manual_seed(0)
    fitted(keep, PlasticityMonitor(data_every_n_steps=1), module=Wide(), data=Sixteen(), folder=tmp_path, max_epochs=2)
    ready, sharp = (scalars(tmp_path, f"plasticity/{key}") for key in ("readiness", "critical_sharpness"))
    assert list(ready) == list(sharp) == [1, 3]
    x, y = (tensor[18:34].split(4) for tensor in dataset(size=36).tensors)  # of the last batch, 16 in 4 parts
    for step, state in zip(ready, keep.states, strict=True):
        net = network(state).double()
        parameters = list(net.parameters())

        def losses(net=net):
            return [nn.functional.cross_entropy(net(a.double()), b) for a, b in zip(x, y, strict=True)]

        rows = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(one, parameters)]) for one in losses()])
        assert ready[step] == pytest.approx(reference.optimization_readiness(rows), rel=1e-4)
        flat = nn.utils.parameters_to_vector(parameters).detach()

        @torch.no_grad()
        def loss(step, parameters=parameters, flat=flat, rows=rows, losses=losses):
            nn.utils.vector_to_parameters(flat - step * rows.mean(0), parameters)
            return float(sum(losses()) / 4)

        assert sharp[step] == pytest.approx(reference.critical_sharpness(loss, 0.1), rel=0.05)


class Noisy(PlainModule):
    """With noise from the global random state, a count of its passes, and a buffer that follows its inputs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.count = 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.count += 1
        self.mean.lerp_(x.mean(0), 0.1)
        return nn.functional.cross_entropy(self.net(x - self.mean + 0.1 * torch.randn_like(x)), y)


def test_a_training_is_the_same_to_the_bit_with_readiness_and_critical_sharpness(tmp_path):
    modules = []
    for callbacks in ([], [PlasticityMonitor(data_every_n_steps=1)]):
        torch.manual_seed(0)
        modules.append(fitted(*callbacks, module=Noisy(), data=Sixteen(), folder=tmp_path))
    assert scalars(tmp_path, "plasticity/readiness")
    assert scalars(tmp_path, "plasticity/critical_sharpness")
    one, other = (module.state_dict() for module in modules)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert modules[0].count == modules[1].count


def test_the_reason_is_told_once_where_a_batch_has_too_few_samples(tmp_path, caplog):
    class Three(GrowingData):
        def train_dataloader(self):
            return DataLoader(dataset(size=12), batch_size=3)

    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fitted(PlasticityMonitor(data_every_n_steps=1), module=Wide(), data=Three(), folder=tmp_path, max_epochs=2)
    reason = "plasticity/readiness is not logged: the batch cannot be divided into 4 micro-batches of equal size"
    assert caplog.text.count(reason) == 1
    assert not scalars(tmp_path, "plasticity/readiness")
    assert scalars(tmp_path, "plasticity/critical_sharpness")


def test_norms_are_those_of_the_weights_and_of_the_last_step(tmp_path):
    keep = run(tmp_path, data_every_n_steps=None)
    weights, gradients = (scalars(tmp_path, f"plasticity/{key}") for key in ("weight_norm", "gradient_norm"))
    for step, state, gradient in zip(STEPS, keep.states, keep.gradients, strict=True):
        expected = torch.cat([state[f"net.{layer}.weight"].flatten() for layer in (0, 3)]).norm()
        assert weights[step - 1] == pytest.approx(expected.item(), rel=1e-5)
        assert gradients[step - 1] == pytest.approx(gradient, rel=1e-5)


class OwnReset(Callback):
    """A user's own method, which logs nothing: at the start of the third epoch it doubles a weight."""

    @torch.no_grad()
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            pl_module.net[0].weight[0] *= 2


def test_dfi_at_new_data_is_measured_after_the_events_of_all(tmp_path):
    keep = Keep()
    fitted(PlasticityMonitor(Weights(preset="cnn")), OwnReset(), keep, module=Wide(), folder=tmp_path)
    for form, key in ((reference.dfi_normalized, "plasticity/dfi_normalized"), (reference.dfi, "plasticity.raw/dfi")):
        expected = {}
        for step, state in ((4, keep.states[1]), (12, keep.states[3])):  # of the ends of the chunks before
            weights = [state[f"net.{layer}.weight"].clone() for layer in (0, 3)]
            weights[0][0] *= 2 if step == 4 else 1
            expected[step] = pytest.approx(sum(form(weight).item() for weight in weights) / 2, rel=1e-5)
        assert scalars(tmp_path, f"{key}_at_new_data") == expected


@pytest.mark.parametrize(("every", "steps"), [(1, STEPS), (5, [8, 18, 24]), (10, [12, 24]), (24, [24]), (25, [])])
def test_it_evaluates_data_every_n_steps(tmp_path, every, steps):
    run(tmp_path, data_every_n_steps=every)
    assert list(scalars(tmp_path, "plasticity/srank")) == [step - 1 for step in steps]
    assert list(scalars(tmp_path, "plasticity.raw/dfi")) == [step - 1 for step in STEPS]


def test_it_logs_its_own_cost(tmp_path):
    run(tmp_path, data_every_n_steps=1)
    seconds, overhead = (scalars(tmp_path, f"plasticity/{key}") for key in ("seconds", "overhead"))
    assert list(seconds) == list(overhead) == [step - 1 for step in STEPS]
    assert all(value > 0 for value in [*seconds.values(), *overhead.values()])


def test_a_resume_looks_at_the_same_steps(tmp_path):
    save = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fitted(PlasticityMonitor(data_every_n_steps=10), save, module=Wide())
    monitor = PlasticityMonitor(data_every_n_steps=10)
    fitted(monitor, module=Wide(), ckpt_path=tmp_path / "epoch=2.ckpt", folder=tmp_path / "log")
    assert list(scalars(tmp_path / "log", "plasticity/srank")) == [11, 23]


class Residual(PlainModule):
    """All of whose units go into sums."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.head(x + self.net(x)), y)


@pytest.mark.parametrize(
    ("options", "reason", "missing", "there"),
    [
        ({"module": Residual()}, "dormant_fraction is not logged: .*no hidden units", "dormant_fraction", "srank"),
    ],
)
def test_warns_of_what_cannot_be_measured_and_logs_the_rest(tmp_path, caplog, options, reason, missing, there):
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fitted(PlasticityMonitor(data_every_n_steps=1), folder=tmp_path, max_epochs=2, **options)
    assert re.search(reason, caplog.text)
    assert not scalars(tmp_path, f"plasticity/{missing}")
    assert scalars(tmp_path, f"plasticity/{there}")


def test_fire_acts_when_units_are_dormant():
    method = snapshots_of(FIRECallback)(WhenMetric("plasticity/dormant_fraction", above=0.2))
    torch.manual_seed(0)
    fitted(PlasticityMonitor(data_every_n_steps=1), method, module=Wide())
    assert method.epochs == [1]  # FIRE leaves biases alone, so the units stay dormant: once is enough


def test_errors():
    for argument in ("every_n_epochs", "data_every_n_steps", "num_batches"):
        with pytest.raises(ValueError, match=f"`{argument}` must be at least 1, got 0"):
            PlasticityMonitor(**{argument: 0})
    with pytest.raises(ValueError, match="`dormancy_threshold` must be at least 0, got -1"):
        PlasticityMonitor(dormancy_threshold=-1)


class Auxiliary(Wide):
    """With a head that runs in training only."""

    def __init__(self):
        super().__init__()
        self.aux = nn.Sequential(nn.Linear(16, 50), nn.ReLU(), nn.Linear(50, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = super().training_step(batch, batch_idx)
        return loss + nn.functional.cross_entropy(self.aux(self.net[:-1](x)), y) if self.training else loss


def test_units_that_do_not_run_in_evaluation_do_not_count(tmp_path):
    torch.manual_seed(0)
    fitted(PlasticityMonitor(data_every_n_steps=1), module=Auxiliary(), folder=tmp_path, max_epochs=1)
    (fraction,) = scalars(tmp_path, "plasticity/dormant_fraction").values()
    assert fraction >= 4 / 16


def test_the_gradient_norm_is_that_of_the_last_evaluation(tmp_path):
    class Quasi(Wide):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), max_iter=4)

    keep = Keep()
    torch.manual_seed(0)
    fitted(keep, PlasticityMonitor(data_every_n_steps=None), module=Quasi(), folder=tmp_path)
    for logged, last in zip(scalars(tmp_path, "plasticity/gradient_norm").values(), keep.gradients, strict=True):
        assert logged == pytest.approx(last, rel=1e-5)


def test_a_misspelt_layer_is_an_error():
    with pytest.raises(ValueError, match="nonsense"):
        fitted(PlasticityMonitor(data_every_n_steps=1, units=HiddenUnits(include=["nonsense"])), module=Wide())


def test_a_name_with_a_slash_is_an_error():
    with pytest.raises(ValueError, match=r"`name` must not have a slash, .* got 'a/b'"):
        PlasticityMonitor(log=Log(name="a/b"))
