"""λ_max around events: of the right network on the right data, without side effects on training."""

from collections import UserDict
from typing import NamedTuple

import pytest
import reference
import torch
from lightning.pytorch import Callback
from small_training import (
    GrowingData,
    OwnSequential,
    PlainModule,
    dataset,
    fitted,
    snapshots_of,
    state_of,
)
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader

from lightning_fire import (
    DASH,
    FIRE,
    AtEpochs,
    FullReset,
    Log,
    PlasticityCallback,
    PlasticityMonitor,
    ReDo,
    ShrinkAndPerturb,
    module_curvature,
)
from lightning_fire.callbacks import lambda_max as observe_lambda_max
from lightning_fire.callbacks.probing import curvature as curvature_of_loss

MOST_PRODUCTS, TOLERANCE = curvature_of_loss._PRODUCTS, curvature_of_loss._TOLERANCE


@pytest.fixture(autouse=True)
def enough_products(monkeypatch):
    """Networks as small as these have many eigenvalues close to the largest."""
    monkeypatch.setattr(curvature_of_loss, "_PRODUCTS", 50)
    monkeypatch.setattr(curvature_of_loss, "_TOLERANCE", 0.01)


class Smooth(PlainModule):
    """With tanh, for a smooth loss, and with dropout, which evaluation mode switches off."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.4), nn.Linear(5, 3))


def exact_lambda_max(module: nn.Module, state: dict, batch: tuple) -> float:
    """The largest eigenvalue of the whole Hessian, in evaluation mode, in float64."""
    net = type(module)().net.double().eval()
    net.load_state_dict({name.removeprefix("net."): value.double() for name, value in state.items()})
    names, values = zip(*net.named_parameters(), strict=True)
    x, y = batch

    def loss(parts):
        named = dict(zip(names, parts, strict=True))
        return nn.functional.cross_entropy(functional_call(net, named, (x.double(),)), y)

    return reference.largest_eigenvalue(loss, values)


def first_batch(chunk: int) -> tuple:
    return next(iter(DataLoader(dataset(size=12 * (chunk + 1)), batch_size=6)))


Snapshots = snapshots_of(PlasticityCallback)


@pytest.mark.parametrize("method", [FIRE, DASH])
def test_before_and_after_are_those_of_the_exact_hessian_on_the_upcoming_data(method):
    callback = Snapshots(method())
    module = fitted(callback, module=Smooth())
    assert len(callback.seen) == 2
    for chunk, (before, after, values) in enumerate(callback.seen, start=1):
        batch = first_batch(chunk)
        for moment, state in (("before", before), ("after", after)):
            expected = exact_lambda_max(module, state, batch)
            found, residual = (values[f"{callback.name}/lambda_max_{moment}{of}"] for of in ("", "_residual"))
            assert found == pytest.approx(expected, rel=2e-3), (chunk, moment)
            assert abs(found - expected) <= residual <= 0.01 * found
        assert values[f"{callback.name}/lambda_max_seconds"] > 0


class LargeBatches(GrowingData):
    """Of 24 samples."""

    def train_dataloader(self):
        return DataLoader(dataset(size=24 * (self.chunk + 1)), batch_size=24)


def test_lambda_max_is_that_of_the_first_16_samples():
    callback = Snapshots(FIRE())
    module = fitted(callback, module=Smooth(), data=LargeBatches())
    for chunk, (before, after, values) in enumerate(callback.seen, start=1):
        x, y = (tensor[:8] for tensor in dataset(size=24 * (chunk + 1)).tensors)
        for moment, state in (("before", before), ("after", after)):
            expected = exact_lambda_max(module, state, (x, y))
            assert values[f"fire/lambda_max_{moment}"] == pytest.approx(expected, rel=2e-3)


def test_lambda_max_takes_4_or_5_products_and_the_residual_shows_that_they_are_too_few(monkeypatch):
    found = []

    def noted(*args, **kwargs):
        found.append(module_curvature(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(curvature_of_loss, "_PRODUCTS", MOST_PRODUCTS)
    monkeypatch.setattr(curvature_of_loss, "_TOLERANCE", TOLERANCE)
    monkeypatch.setattr(curvature_of_loss, "module_curvature", noted)
    callback = Snapshots(FIRE(), AtEpochs([2]))
    module = fitted(callback, module=Smooth(), data=LargeBatches())
    assert all(4 <= one.products <= 5 for one in found)
    before, after, values = callback.seen[0]
    batch = [tensor[:8] for tensor in dataset(size=48).tensors]
    for moment, state in (("before", before), ("after", after)):
        value, residual = (values[f"fire/lambda_max_{moment}{of}"] for of in ("", "_residual"))
        assert residual > 0.01 * value  # those of a tiny network lie close together
        assert 0.9 < value / exact_lambda_max(module, state, batch) < 1 + 1e-6


def test_the_monitor_and_an_event_use_the_same_samples():
    monitor = PlasticityMonitor(data_every_n_steps=1, log=Log(curvature=True))
    fire, seen = Snapshots(FIRE(), AtEpochs([1])), []

    class Noting(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            seen.append(dict(trainer.callback_metrics))

    class Constant(LargeBatches):
        chunk = 0

    fitted(monitor, fire, Noting(), module=Smooth(), data=Constant(), max_epochs=2)
    keys = ("", "_residual")
    assert [seen[0][f"plasticity/lambda_max{of}"].item() for of in keys] == pytest.approx(
        [fire.seen[0][2][f"fire/lambda_max_before{of}"] for of in keys], rel=1e-6
    )


class Pair(NamedTuple):
    x: torch.Tensor
    y: object


X, Y, NUMBER = torch.randn(8, 3), torch.arange(8), torch.tensor(2.0)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (X, X[:5]),
        ({"x": X, "more": [Y, NUMBER, 7]}, {"x": X[:5], "more": [Y[:5], NUMBER, 7]}),
        (UserDict(x=X, y=Y), UserDict(x=X[:5], y=Y[:5])),  # as those of transformers' tokenizers
        (Pair(X, Y), Pair(X[:5], Y[:5])),
        ([X[:4], Y[:4]], [X[:4], Y[:4]]),
        (Pair(X, (Y, torch.zeros(2, 8))), Pair(X, (Y, torch.zeros(2, 8)))),  # as nodes and edges of a graph
        (7, 7),
    ],
)
def test_the_first_samples_of_a_batch(batch, expected):
    found = curvature_of_loss.first_samples(batch, 5)
    assert type(found) is type(expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_only_reinitialisers_compute_it_and_only_if_requested():
    methods = FIRE(), FullReset(), ShrinkAndPerturb(), DASH()
    assert all(observe_lambda_max in PlasticityCallback(method).observers for method in methods)
    assert observe_lambda_max not in PlasticityCallback(ReDo()).observers
    assert observe_lambda_max not in PlasticityCallback(ShrinkAndPerturb(), log=Log(weights=False)).observers
    callback = Snapshots(FIRE(), log=Log(curvature=False))
    fitted(callback)
    assert not any("lambda_max" in key for *_, values in callback.seen for key in values)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_it_is_of_the_float32_network_in_every_precision(precision):
    callback = Snapshots(FIRE(steps=20))
    module = fitted(callback, module=Smooth(), precision=precision)
    for chunk, (_, after, values) in enumerate(callback.seen, start=1):
        x, y = first_batch(chunk)
        x = x.to(torch.bfloat16).float() if precision == "bf16-true" else x
        assert values["fire/lambda_max_after"] == pytest.approx(exact_lambda_max(module, after, (x, y)), rel=5e-3)


class Attention(PlainModule):
    """With the fused kernel, which does not support second derivatives."""

    def __init__(self):
        super().__init__()
        self.net = nn.ModuleDict({"qkv": nn.Linear(6, 18), "head": nn.Linear(6, 3)})
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = self.layer(x.unsqueeze(1).expand(-1, 4, -1))
        q, k, v = self.net["qkv"](x).chunk(3, -1)
        x = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return nn.functional.cross_entropy(self.net["head"](x).mean(1), y)


class Recurrent(PlainModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 8, batch_first=True)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net[-1](self.rnn(x.unsqueeze(1))[0][:, -1]), y)


@pytest.mark.filterwarnings("ignore:FIRE leaves out (rnn|net.qkv)")
@pytest.mark.parametrize("kind", [Attention, Recurrent])
def test_attention_and_recurrent_layers_are_differentiated_twice(kind):
    callback = Snapshots(FIRE())
    fitted(callback, module=kind())
    assert all(values["fire/lambda_max_before"] > 0 for *_, values in callback.seen)


def test_a_compiled_module_is_measured_in_eager_mode():
    class Compiled(Smooth):
        def __init__(self):
            super().__init__()
            self.net = OwnSequential(*self.net)
            self.calls = 0

        def configure_model(self):
            def backend(graph, inputs):
                def run(*arguments):
                    self.calls += 1
                    return graph.forward(*arguments)

                return run

            self.net.compile(backend=backend)

    plain, compiled = Snapshots(FIRE()), Snapshots(FIRE())
    fitted(plain, module=Smooth(), seed=1)
    module = fitted(compiled, module=Compiled(), seed=1)
    steps = 4 + 8 + 12
    assert module.calls == steps  # those of training alone
    for (*_, one), (*_, other) in zip(plain.seen, compiled.seen, strict=True):
        assert one["fire/lambda_max_after"] > 0
        assert other["fire/lambda_max_after"] > 0


class OnceOnly(PlainModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        one = torch.ones(len(x), dtype=torch.int64)
        scores = self.net(x).log_softmax(-1).unsqueeze(0)  # (time, batch, classes)
        return nn.functional.ctc_loss(scores, y.clamp_min(1).unsqueeze(1), one, one)


def test_an_operation_without_second_derivative_skips_the_metric_only():
    callback = Snapshots(FIRE())
    with pytest.warns(
        RuntimeWarning, match=r"lambda_max_before is not logged: .* log=Log\(curvature=False\) switches it off"
    ):
        fitted(callback, module=OnceOnly())
    assert len(callback.seen) == 2
    assert not any("lambda_max_after" in key for *_, values in callback.seen for key in values)
    assert all("fire/sfe" in values for *_, values in callback.seen)


class Manual(PlainModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class WithLoss(Manual):
    def loss_on(self, batch):
        return PlainModule.training_step(self, batch, 0)


@pytest.mark.parametrize("kind", [Manual, WithLoss])
def test_manual_optimization_is_measured_where_there_is_a_loss_and_the_event_happens_anyway(kind, caplog):
    callback = Snapshots(FIRE())
    with caplog.at_level("INFO", logger="lightning_fire"):
        fitted(callback, module=kind())
    assert len(callback.seen) == 2
    assert [values.get("fire/lambda_max_after", 0) > 0 for *_, values in callback.seen] == [kind is WithLoss] * 2
    said = "the training_step of manual optimization takes optimizer steps by itself; say" in caplog.text
    assert said == (kind is Manual)


def test_the_function_leaves_a_module_unchanged():
    torch.manual_seed(0)
    module = Smooth()
    module.net[1].running_mean.fill_(0.3)
    batch = first_batch(0)
    before, random = state_of(module), torch.get_rng_state()
    result = module_curvature(module, batch)
    assert torch.equal(torch.get_rng_state(), random)
    assert result.value == pytest.approx(exact_lambda_max(module, before, batch), rel=2e-3)
    own = module_curvature(module.net, batch, lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
    assert own.value == pytest.approx(result.value)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(part.training for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_errors_leave_the_module_unchanged():
    module = OnceOnly()
    with pytest.raises(RuntimeError, match="_ctc_loss_backward is not implemented"):
        module_curvature(module, first_batch(0))
    assert all(part.training for part in module.modules())
    assert "log" not in vars(module)
    with pytest.raises(ValueError, match="the module has no trainable parameters"):
        module_curvature(module.requires_grad_(False), first_batch(0))
