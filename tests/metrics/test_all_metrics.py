"""Every metric of the list in `metric_cases`: the checks of torchmetrics' own `MetricTester`."""

import itertools
import pickle

import matplotlib
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import CASES, SIZE, batches
from torchmetrics import MetricCollection
from torchmetrics.utilities import dim_zero_sum

import lightning_fire.metrics

matplotlib.use("Agg")
each_metric = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def near(found, expected, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(found).double(), expected.double(), rtol=tolerance, atol=tolerance)


def updated(case, sizes=(6, 10, 8)):
    metric = case.build()
    for batch in batches(case.inputs, sizes):
        metric.update(*batch)
    return metric


def states(metric):
    return {name: getattr(metric, name) for name in metric._defaults}


def test_every_metric_has_a_case():
    own = {"OnlineAccuracy"}  # counts of whole numbers, with tests of its own
    assert set(CASES) | own == set(lightning_fire.metrics.__all__)


@each_metric
def test_constants(case):
    metric = case.build()
    assert metric.full_state_update is False
    assert metric.is_differentiable is False
    better = ("SRank", "StableRank", "EntropyRank", "OptimizationReadiness")
    assert metric.higher_is_better is (type(metric).__name__ in better)
    assert set(metric._reductions.values()) == {dim_zero_sum}
    assert all(state.dtype == torch.float64 for state in states(metric).values())


@each_metric
@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, SIZE), max_size=5))
def test_equals_the_function_of_all_inputs_for_any_batches(case, cuts):
    """Some batches are empty."""
    edges = [0, *sorted(cuts), SIZE]
    sizes = [end - start for start, end in itertools.pairwise(edges)]
    found = updated(case, sizes).compute()
    assert found.shape == ()
    assert found.dtype == torch.float64
    near(found, case.expected(*case.inputs))


@each_metric
def test_forward_returns_the_value_of_the_batch_and_accumulates(case):
    metric = case.build()
    for batch in batches(case.inputs, (12, 12)):
        near(metric(*batch), case.expected(*batch))
    near(metric.compute(), case.expected(*case.inputs))


@each_metric
def test_reset_forgets(case):
    metric = updated(case)
    metric.reset()
    assert all(not state.any() for state in states(metric).values())
    batch = batches(case.inputs, (12, 12))[1]
    metric.update(*batch)
    near(metric.compute(), case.expected(*batch))


@each_metric
@pytest.mark.parametrize("copy", [torchmetrics.Metric.clone, lambda metric: pickle.loads(pickle.dumps(metric))])
def test_copies_are_independent(case, copy):
    first, second = batches(case.inputs, (12, 12))
    metric = case.build()
    metric.update(*first)
    other = copy(metric)
    other.update(*second)
    near(other.compute(), case.expected(*case.inputs))
    near(metric.compute(), case.expected(*first))


@each_metric
def test_state_dict(case):
    metric = updated(case)
    assert metric.state_dict() == {}  # as in torchmetrics: not persistent unless requested
    metric.persistent(True)
    other = case.build()
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    for name, state in states(metric).items():
        assert torch.equal(states(other)[name], state)


@each_metric
def test_moving_to_half_precision_keeps_the_sums(case):
    """As `Trainer(precision="bf16-true")` does to a module with metrics; `set_dtype` changes the dtype."""
    metric = updated(case)
    for move in ("half", "bfloat16", "float", "double", "cpu"):
        metric = getattr(torch.nn.ModuleDict({"metric": metric}), move)()["metric"]
    metric = torch.nn.ModuleDict({"metric": metric}).to(device="cpu", dtype=torch.bfloat16)["metric"]
    assert all(state.dtype == torch.float64 for state in states(metric).values())
    assert torch.equal(metric.compute(), updated(case).compute())
    metric.set_dtype(torch.float32)
    metric.reset()
    metric.update(*case.inputs)
    assert metric.compute().dtype == torch.float32
    near(metric.compute(), case.expected(*case.inputs), 1e-3)


@each_metric
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_precision_of_inputs_is_measured_in_float64(case, dtype):
    rounded = [tensor.to(dtype) for tensor in case.inputs]
    metric = case.build()
    with torch.autocast("cpu", torch.bfloat16):
        metric.update(*rounded)
    near(metric.compute(), case.expected(*(tensor.double() for tensor in rounded)))


@each_metric
def test_inputs_are_left_alone_and_gradients_stop(case):
    inputs = [tensor.clone().requires_grad_() for tensor in case.inputs]
    metric = case.build()
    assert not metric(*inputs).requires_grad
    assert not any(state.requires_grad for state in states(metric).values())
    for given_, kept in zip(inputs, case.inputs, strict=True):
        assert torch.equal(given_, kept)


@each_metric
def test_inference_mode_and_training_may_alternate(case):
    first, second, third = batches(case.inputs, (8, 8, 8))
    metric = case.build()
    with torch.inference_mode():
        metric(*first)
    metric.update(*second)
    with torch.inference_mode():
        metric.update(*third)
        near(metric.compute(), case.expected(*case.inputs))


@each_metric
def test_plot(case):
    metric = updated(case)
    figure, axes = metric.plot([metric.compute(), metric.compute() / 2])
    assert axes.get_ylim()[0] <= 0  # the lower bound is in sight
    assert axes.get_ylabel() == type(metric).__name__
    matplotlib.pyplot.close(figure)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_collections_of_all_metrics_with_the_same_inputs(number):
    """Of weights, of two versions of weights, of features."""
    for inputs in {id(case.inputs[0]): case.inputs for case in CASES.values() if len(case.inputs) == number}.values():
        cases = {name: case for name, case in CASES.items() if [*map(id, case.inputs)] == [*map(id, inputs)]}
        collection = MetricCollection({name: case.build() for name, case in cases.items()})
        for batch in batches(inputs, (6, 10, 8)):
            collection.update(*batch)
        for name, value in collection.compute().items():
            near(value, cases[name].expected(*inputs))
        collection = collection.clone(prefix="val/")
        collection.reset()
        assert set(collection(*inputs)) == {f"val/{name}" for name in cases}


def test_ranks_of_the_same_features_form_a_compute_group():
    names = ("SRank", "StableRank", "EntropyRank")
    collection = MetricCollection({name: CASES[name].build() for name in names})
    collection.update(*CASES["SRank"].inputs)
    assert len(collection.compute_groups) == 1
    for batch in batches(CASES["SRank"].inputs, (12, 12)):
        collection.update(*batch)
    for name, value in collection.compute().items():
        near(value, CASES[name].expected(torch.cat([CASES[name].inputs[0]] * 2)))


def test_metrics_with_equal_states_do_not_form_a_compute_group():
    """Both deviations of an isometry are 0; a collection compares states after the first update."""
    names = ("DeviationFromIsometry", "NormalizedDeviationFromIsometry")
    collection = MetricCollection({name: CASES[name].build() for name in names})
    for matrix in (torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, 3.0]))):
        collection.update(matrix)
    values = collection.compute()
    assert values["DeviationFromIsometry"] == (9 + 64) / 2
    assert values["NormalizedDeviationFromIsometry"] < 1
