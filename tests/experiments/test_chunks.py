"""The number of epochs until a value is reached: examples, and comparison with a slow version."""

import math

import numpy as np
import pytest
from history import HISTORY, series

from lightning_fire.experiments.chunks import ChunkedRun, Metric


def epochs_to(target, values, mode="max"):
    return ChunkedRun(HISTORY, Metric(mode=mode)).epochs_to(target, np.array(values))


@pytest.mark.parametrize(
    ("target", "values", "expected"),
    [
        (0.5, [0.1, 0.5, 0.4, 0.9], 2),  # a later fall does not matter
        (0.5, [0.9], 1),
        (0.4, [math.nan, 0.4], 2),
        (0.5, [0.1, 0.2], math.inf),
        (0.0, [], math.inf),
        (math.nan, [1.0, 1.0], math.inf),
    ],
)
def test_epochs_to_a_value(target, values, expected):
    assert epochs_to(target, values) == epochs_to(-target, [-value for value in values], mode="min") == expected


@pytest.mark.parametrize(
    "measure", ["final", "average", "area", "first_epoch_after", "online_last", "after_event", "drop"]
)
def test_a_metric_that_becomes_nan_is_not_averaged_away(measure):
    chunks, ends = series(*((10 * chunk, chunk) for chunk in range(4))), np.arange(9, 40, 10)

    def of_run(lost):
        values, new = np.where(ends >= lost, math.nan, 0.5), np.where(ends[:-1] >= lost, math.nan, 0.25)
        curves = {"val/accuracy": (ends, values), "train/online_accuracy": (ends, values)}
        return ChunkedRun(
            {"plasticity/chunk": chunks, "val/accuracy_at_new_data": (ends[:-1] + 1, new), **curves}, Metric()
        )

    assert math.isfinite(of_run(math.inf).measures(None)[measure]) and math.isnan(of_run(25).measures(None)[measure])


# --- where chunks begin and end ---

PLANS = [
    [(3, 2), (2, 4), (2, 1)],  # epochs and steps of an epoch, of each chunk
    [(1, 1), (1, 1), (1, 1)],  # as in a stream: a chunk is one step
    [(1, 5), (4, 1), (1, 3), (2, 2)],
]


def logged(plan):
    """Curves as a Trainer logs them: the chunk at the start of an epoch, metrics in the step of its last batch."""
    step, epoch, chunks, values = 0, 0, [], []
    for chunk, (epochs, steps) in enumerate(plan):
        for _ in range(epochs):
            chunks.append((step, chunk))
            step, epoch = step + steps, epoch + 1
            values.append((step - 1, epoch / 100))
    return {
        "plasticity/chunk": series(*chunks),
        "val/accuracy": series(*values),
        "other": series(*[(step, -value) for step, value in values]),
    }


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_values_of_each_chunk_equal_the_slow_version(plan):
    curves = logged(plan)
    run = ChunkedRun(curves, Metric())
    lengths = [epochs for epochs, _ in plan]
    ends = [sum(lengths[: number + 1]) for number in range(len(plan))]
    steps = [sum(epochs * steps for epochs, steps in plan[:number]) for number in range(len(plan) + 1)]
    assert run.starts.tolist() == steps
    expected = [
        [epoch / 100 for epoch in range(end - length + 1, end + 1)] for end, length in zip(ends, lengths, strict=True)
    ]
    assert [part.tolist() for part in run.in_chunks(run.metric)] == expected
    assert run.last_in_chunk(run.metric).tolist() == [end / 100 for end in ends]
    assert run.at_chunk_ends("other").tolist() == [-end / 100 for end in ends[:-1]]
    tasks, last = run.by_task("other")
    assert tasks.tolist() == list(range(1, len(plan) + 1)) and last.tolist() == [-end / 100 for end in ends]
    assert run.measures(None)["recovery"] == 1  # it rises all the time
    at_new_data = {"val/accuracy_at_new_data": series(*[(step, 0.0) for step in steps[1:-1]])}
    drop = ChunkedRun(curves | at_new_data, Metric()).measures(None)["drop"]
    assert drop == pytest.approx(np.mean([end / 100 for end in ends[:-1]]))
