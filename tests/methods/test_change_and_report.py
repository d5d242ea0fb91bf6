"""A planned change leaves a model alone until it is applied; its report equals a slow computation."""

import copy
import signal
import weakref
from importlib import import_module

import pytest
import torch
from methods_table import EVENTS, made
from pretended import Pretended
from raising import RaisesAt, spread
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_fire import Parameters, Weights, dash_, fire_, full_reset_, shrink_and_perturb_
from lightning_fire.distributed import gathered
from lightning_fire.methods import (
    DASH,
    FIRE,
    METHODS,
    EventMethod,
    FullReset,
    L2Init,
    Loop,
    ReDo,
    ShrinkAndPerturb,
    Tortoise,
    WeightProjection,
    fresh_values,
    initial_values,
)
from lightning_fire.methods.base import change
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.report import differences

fire = import_module("lightning_fire.methods.fire")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def matrices_of(weight: torch.Tensor, groups: int) -> list[torch.Tensor]:
    """Return one matrix for each group and kernel position."""
    kernel = weight.flatten(2) if weight.ndim > 2 else weight.unsqueeze(-1)
    parts = [part[..., place] for part in kernel.chunk(groups) for place in range(kernel.shape[-1])]
    return [part.detach().double() for part in parts]


def slow_dfi(matrix: torch.Tensor, normalized: bool) -> float:
    if not normalized:
        return float((matrix.T @ matrix - torch.eye(matrix.shape[1], dtype=matrix.dtype)).square().sum())
    squares = torch.linalg.svdvals(matrix).square()
    return float((squares / squares.mean() - 1).square().mean())


@pytest.mark.parametrize(
    "method",
    [
        fire_,
        lambda model: full_reset_(model, fresh_values(model, seed=3)),
        lambda model: shrink_and_perturb_(model, fresh_values(model, seed=3)),
    ],
)
def test_a_report_describes_the_change_of_the_weights(method):
    model = network()
    before = copy.deepcopy(model)
    report = method(model)
    errors, norms = [], []
    for name, groups in (("0.weight", 2), ("3.weight", 1)):
        old, new = (matrices_of(each.get_parameter(name), groups) for each in (before, model))
        for metric, weights, normalized in (
            ("dfi_before", old, False),
            ("dfi_after", new, False),
            ("dfi_normalized_before", old, True),
            ("dfi_normalized_after", new, True),
        ):
            slow = sum(slow_dfi(weight, normalized) for weight in weights) / len(weights)
            assert report.layers[metric][name] == pytest.approx(slow, rel=1e-4, abs=1e-5), metric
        errors.append(sum(float((a - b).square().sum()) for a, b in zip(old, new, strict=True)))
        norms.append(sum(float(a.square().sum()) for a in old))
        assert report.layers["sfe"][name] == pytest.approx(errors[-1], rel=1e-4)
    assert report["sfe"] == pytest.approx(sum(errors), rel=1e-4)
    assert report["sfe_normalized"] == pytest.approx(sum(errors) / sum(norms), rel=1e-4)
    assert set(report.keyed("fire", layers=False)) == {
        *(f"fire/{name}" for name in report.values),
        *(f"fire.raw/{name}" for name in report.raw),
    }
    assert f"sfe {report['sfe']:.4g}" in str(report)
    ratio = sum(w.double().square().sum() for w in (model[0].weight, model[3].weight)) / sum(norms)
    assert report.norm_ratio == pytest.approx(ratio.sqrt().item(), rel=1e-4)
    taken = "2 of 2 weight matrices, preset cnn" if method is fire_ else "4 of 4 parameters"
    assert str(report).endswith(f", norm × {report.norm_ratio:.2g}; {taken}")


def test_a_planned_event_changes_nothing_until_it_is_made():
    model = network()
    before, twin = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 4, 5, 5)).sum().backward()
    optimizer.step()
    model.load_state_dict(before)
    change = FIRE().event(model, Loop(optimizer))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(optimizer.state) == 4
    report = change.make()
    fire_(twin)
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in model.state_dict().items())
    assert len(optimizer.state) == 2  # the momenta of the biases
    assert report is change.report


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="torch 2.6 shards on GPUs alone")
def test_the_weights_of_a_sharded_model_are_replaced_and_return_to_their_tortoise(tmp_path):
    model = network()
    plain = copy.deepcopy(model)
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        fire_(model)
        both = Tortoise(model)
        with torch.no_grad():
            model[0].weight.mul_(2.0)
        both.reset_()
        weights = {name: gathered(value) for name, value in model.named_parameters()}
    finally:
        distributed.destroy_process_group()
    fire_(plain)
    for name, value in plain.named_parameters():
        torch.testing.assert_close(weights[name], value.detach())


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="torch 2.6 shards on GPUs alone")
def test_a_method_that_needs_whole_weights_refuses_sharded_ones(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())
    model.add_module("head", nn.Linear(4, 4))
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        refused = [kind for kind in METHODS if not made(kind, "head").acts_on_shards]
        assert {WeightProjection, L2Init, ReDo, DASH} <= set(refused)
        for method in (made(kind, "head") for kind in refused):
            with pytest.raises(ValueError, match=f"{type(method).__name__} needs whole weights"):
                (method if isinstance(method, EventMethod) else method.attach)(model, Loop())
    finally:
        distributed.destroy_process_group()


def test_a_new_value_of_another_shape_is_an_error_before_anything_is_written():
    with pytest.raises(ValueError, match=r"a new value of shape \(1,\) is given for a tensor of shape \(2,\)"):
        Change(values={torch.zeros(3): torch.ones(3), torch.zeros(2): torch.ones(1)})
    with pytest.raises(ValueError, match=r"entries of a tensor of shape \(2, 3\) share memory.*`tensor\.clone\(\)`"):
        Change({torch.zeros(3).expand(2, 3): torch.ones(2, 3)})


def test_an_error_in_what_follows_writes_the_old_values_back():
    called, weight = [], torch.zeros(2)

    def fails():
        called.append(weight.tolist())
        raise OSError("gone")

    change = Change(
        {weight: torch.ones(2)}, then=[lambda: called.append("first"), fails, lambda: called.append("third")]
    )
    with pytest.raises(OSError, match="gone"):
        change.make()
    assert called == ["first", [1.0, 1.0]]
    assert not weight.any()


def test_ctrl_c_waits_until_a_change_is_complete():
    called, weight = [], torch.zeros(2)
    calls = [lambda: signal.raise_signal(signal.SIGINT), lambda: called.append("second")]
    former = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Change({weight: torch.ones(2)}, then=calls).make()
    assert called == ["second"] and weight.all() and signal.getsignal(signal.SIGINT) is former


@pytest.mark.parametrize("name", EVENTS)
def test_an_error_at_any_of_some_operations_leaves_the_weights(name):
    def training():
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(8, 4)
        method = EVENTS[name]
        if "head" in vars(method):
            method = type(method)(head="3")
            method.prepare(model)
        optimizer = torch.optim.Adam(model.parameters())
        loop = Loop(optimizer, lambda: model(x), lambda: [model(x).square().mean()], initial_values(model))
        model(x).square().mean().backward()
        optimizer.step()
        return model, lambda: method(model, loop)

    training()[1]()  # some operations are those of the first event of a process
    model, event = training()
    with RaisesAt() as counter:
        event()
    for number in spread(counter.count, 12):
        model, event = training()
        before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        try:
            with RaisesAt(number):
                event()
        except MemoryError:
            after = model.state_dict()
        else:  # where a new optimizer could not be made
            continue
        assert all(torch.equal(value, after[key]) for key, value in before.items()), number
        assert torch.equal(torch.get_rng_state(), random)


class Live(TorchDispatchMode):
    """Counts the bytes of new tensors that are alive at once."""

    def __init__(self):
        super().__init__()
        self.live, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        result = func(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(result)):
            storage = tensor.untyped_storage()
            if storage._cdata not in known | self.live.keys():
                self.live[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.free, storage._cdata)
        return result

    def free(self, key):
        self.now -= self.live.pop(key, 0)


@pytest.mark.parametrize("policy", ["keep", "touched"])
@pytest.mark.parametrize("kind", [FIRE, FullReset, ShrinkAndPerturb])
def test_an_event_needs_at_most_twice_the_memory_of_the_weights(kind, policy):
    model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(128, 128), nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 128)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    initial = initial_values(model)
    with Live() as count:
        kind(optimizer_state=policy)(model, Loop(optimizer, initial=initial, measure=False))
    assert 1 < count.peak / sum(4 * p.numel() for p in model.parameters()) < 2


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_the_relative_error_of_weights_of_any_size(size):
    model, usual = network(), network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(size)
    found, expected = (fire_(each, scale="procrustes") for each in (model, usual))
    assert found["sfe_normalized"] == pytest.approx(expected["sfe_normalized"], rel=1e-4)
    assert found["sfe"] == pytest.approx(expected["sfe"] * size * size, rel=1e-4)
    assert found.norm_ratio == pytest.approx(expected.norm_ratio, rel=1e-4)


def test_a_new_value_above_the_largest_number_is_an_error():
    model = nn.Linear(16, 16)
    with torch.no_grad():
        model.weight.copy_(model.weight.sign() * torch.finfo(torch.float32).max)
    before = model.weight.clone()
    with pytest.raises(ValueError, match="the new values of weight exceed the largest number; no weight has been"):
        fire_(model, scale="procrustes")
    assert torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore:the change leaves out 1")
def test_a_line_says_how_much_of_the_model_was_changed():
    model = nn.Sequential(network(), nn.Linear(3, 3))
    first = torch.optim.SGD(model[0].parameters())
    assert str(fire_(model, Weights(exclude=["^1"]))).endswith("; 2 of 3 weight matrices, preset cnn")
    assert str(fire_(model, Weights(preset="dqn"))).endswith("; 1 of 3 weight matrices, preset dqn")
    assert str(fire_([model[0], model[1]])).endswith(
        "; 2 of 2 weight matrices, preset cnn; 1 of 1 weight matrices, preset cnn"
    )
    assert FIRE()(model, Loop(first, measure=False)).taken == "2 of 3 weight matrices, preset cnn"
    assert str(dash_(model, [model(torch.ones(2, 4, 5, 5)).sum()])).endswith("; 3 of 3 weight matrices, preset cnn")
    target = fresh_values(model, seed=1)
    assert str(shrink_and_perturb_(model, target, where=Parameters(include=["^1"]))).endswith("; 2 of 6 parameters")
    assert str(full_reset_(model, target, optimizers=first)).endswith("; 4 of 6 parameters")


def test_a_large_change_of_norm_is_said_with_what_to_do():
    """As of GPT-2 and BERT from `transformers`, which start with a standard deviation of 0.02."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    report = fire_(model)
    assert 1 < report.norm_ratio < 3 and "procrustes" not in str(report)  # of the initial weights of torch
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    report = fire_(copy.deepcopy(model))
    advice = "the old weights are small for this scale: try scale='procrustes', which roughly keeps their size"
    assert f" ({advice}); 2 of 2 " in str(report)
    assert report.norm_ratio > 5
    assert fire_(copy.deepcopy(model), scale="procrustes").norm_ratio < 1


@pytest.mark.parametrize(("size", "advised"), [(1.5, True), (1.1, False)])
def test_of_a_language_model_a_change_of_norm_counts_as_large_earlier(size, advised):
    """Where Procrustes' scale was measured to end lower (docs/which_scale.md); of other networks this is usual."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    with torch.no_grad():
        for layer in model[::2]:
            nn.init.orthogonal_(layer.weight).div_(size)
    for preset in ("gpt", "cnn"):
        report = fire_(copy.deepcopy(model), Weights(preset))
        assert report.norm_ratio == pytest.approx(size, rel=1e-3)
        assert ("try scale='procrustes'" in str(report)) == (advised and preset == "gpt")


@pytest.mark.parametrize("measure", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_weights_that_products_miss_are_computed_by_the_svd(monkeypatch, dtype, measure):
    whole, other = fire.projected, network().to(dtype)
    fire_(other, steps="exact")
    method = FIRE(steps="exact")
    with Pretended():
        model, again = network().to("cuda", dtype), network().to("cuda", dtype)
        loops = [Loop(torch.optim.SGD(each.parameters()), measure=measure) for each in (again, model)]
        method(again, loops[0])  # without a warning
        monkeypatch.setattr(fire, "projected", lambda x: whole(x) if x.shape[1] == 9 else 0.5 * x)
        with pytest.warns(UserWarning, match=r"FIRE computes 3\.weight again, by singular value decompositions"):
            report = method(model, loops[1])
        assert bool(report.table) is measure
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.detach().cpu(), two.detach(), rtol=1e-4, atol=1e-4)


def test_on_a_cpu_rounding_is_no_reason_to_compute_again():
    model = nn.Linear(256, 256, bias=False, dtype=torch.float16)
    with torch.no_grad():
        model.weight.mul_(1e-5)
    fire_(model, steps="exact", scale="procrustes")


@pytest.mark.parametrize("options", [{}, {"steps": "exact"}, {"scale": "auto"}, {"coefficients": "muon", "steps": 5}])
def test_weights_of_one_shape_in_batches_give_the_same(monkeypatch, options):
    def model():
        torch.manual_seed(0)
        layers = [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(36, 36), nn.LayerNorm(36), nn.Linear(36, 36), nn.Linear(36, 36))

    one, several = model(), model()
    expected = fire_(one, **options)
    batches = []
    monkeypatch.setattr(change, "_fills_with_batches", lambda device: True)
    monkeypatch.setattr(change, "_ENTRIES", 2 * 36 * 36)
    monkeypatch.setattr(change, "differences", lambda *words: batches.append(len(words[0])) or differences(*words))
    found = fire_(several, **options)
    assert batches == [2, 1, 2, 1]
    for a, b in zip(several.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    for name, value in expected.table.items():
        assert found.table[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name


def test_sharded_weights_are_gathered_one_by_one_on_a_gpu_too(monkeypatch):
    weights = Weights().select(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))
    monkeypatch.setattr(change, "_fills_with_batches", lambda device: True)
    assert change._batches(weights, range(3)) == [[0, 1, 2]]
    monkeypatch.setattr(change, "is_sharded", lambda parameter: True)
    assert change._batches(weights, range(3)) == [[0], [1], [2]]
