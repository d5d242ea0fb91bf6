"""The protocols' index arithmetic: against Python sets, by property, and the paper's numbers."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.data import (
    ClassIncremental,
    Continual,
    WarmStart,
    class_incremental,
    continual,
    warm_start,
)

SEEDS = st.integers(0, 2**31)


def as_sets(chunks: list[torch.Tensor]) -> list[set[int]]:
    return [set(chunk.tolist()) for chunk in chunks]


def obvious_sets(protocol, labels: list[int], num_classes: int, seed: int) -> list[set[int]]:
    """Return the samples of each chunk, found one at a time."""
    if protocol.by_class:
        order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed)).tolist()
        share = num_classes // protocol.num_chunks
        new_classes = [set(order[i * share : (i + 1) * share]) for i in range(protocol.num_chunks)]
        new = [{sample for sample, label in enumerate(labels) if label in classes} for classes in new_classes]
    else:
        n = len(labels)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
        if isinstance(protocol, WarmStart):
            ends = [round(protocol.fraction * n), n]
        else:
            ends = [round(i * n / protocol.num_chunks) for i in range(1, protocol.num_chunks + 1)]
        new = [set(order[start:end]) for start, end in pairwise([0, *ends])]
    if protocol.access == "current":
        return new
    return [set().union(*new[: chunk + 1]) for chunk in range(len(new))]


@st.composite
def cases(draw):
    """A protocol with labels that suit it: every class has a sample."""
    kind = draw(st.sampled_from([WarmStart, Continual, ClassIncremental]))
    access = draw(st.sampled_from(["cumulative", "current"]))
    if kind is ClassIncremental:
        phases, per_phase = draw(st.integers(1, 6)), draw(st.integers(1, 4))
        num_classes = phases * per_phase
        protocol = ClassIncremental(phases, epochs=1, access=access)
    else:
        num_classes = draw(st.integers(1, 5))
    labels = draw(st.permutations([*range(num_classes), *draw(st.lists(st.integers(0, num_classes - 1), max_size=40))]))
    if kind is Continual:
        protocol = Continual(draw(st.integers(1, len(labels))), epochs=1, access=access)
    if kind is WarmStart:
        labels = [*labels, 0]
        first = draw(st.integers(1, len(labels) - 1))
        protocol = WarmStart(first / len(labels) + 1e-9, epochs=1, access=access)
    return protocol, torch.tensor(labels), num_classes, draw(SEEDS)


@given(cases())
def test_equals_the_obvious_version(case):
    protocol, labels, num_classes, seed = case
    chunks = protocol.indices(labels, num_classes, seed)
    assert as_sets(chunks) == obvious_sets(protocol, labels.tolist(), num_classes, seed)
    assert all(len(chunk) == len(set(chunk.tolist())) for chunk in chunks)
    assert all(chunk.dtype == torch.int64 and chunk.ndim == 1 for chunk in chunks)


@given(cases())
def test_same_draw_every_time_and_the_global_random_state_stays(case):
    protocol, labels, num_classes, seed = case
    before = torch.get_rng_state()
    chunks = protocol.indices(labels, num_classes, seed)
    protocol.classes(num_classes, seed)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert all(map(torch.equal, chunks, protocol.indices(labels, num_classes, seed)))


@given(cases())
def test_a_phase_has_exactly_its_classes(case):
    protocol, labels, num_classes, seed = case
    chunks, seen = protocol.indices(labels, num_classes, seed), protocol.classes(num_classes, seed)
    if not protocol.by_class:
        assert seen == [None] * protocol.num_chunks
        return
    for phase, (samples, classes) in enumerate(zip(chunks, seen, strict=True)):
        assert classes.tolist() == sorted(classes.tolist())
        assert len(classes) == (phase + 1) * num_classes // protocol.num_chunks
        earlier = set(seen[phase - 1].tolist()) if phase and protocol.access == "current" else set()
        assert set(labels[samples].tolist()) == set(classes.tolist()) - earlier


@given(st.integers(1, 200), st.integers(1, 200), SEEDS)
def test_sizes_of_continual_chunks_differ_by_at_most_one(n, k, seed):
    k = min(n, k)
    sizes = [len(chunk) for chunk in Continual(k, epochs=1, access="current").indices(torch.zeros(n), None, seed)]
    assert max(sizes) - min(sizes) <= 1


def test_another_seed_is_another_draw():
    labels = torch.arange(1000) % 20
    for protocol in (warm_start, continual, class_incremental):
        assert as_sets(protocol.indices(labels, 20, 0))[0] != as_sets(protocol.indices(labels, 20, 1))[0]


def test_the_draw_of_seed_zero_is_the_same_on_every_machine():
    """A published split must not change; the values were drawn with torch 2.15 on x86."""
    assert WarmStart(0.5, epochs=1).indices(torch.zeros(10), None, 0)[0].tolist() == [4, 1, 7, 5, 3]
    assert [seen.tolist() for seen in ClassIncremental(3, epochs=1).classes(3, 0)] == [[2], [0, 2], [0, 1, 2]]


def test_the_papers_settings():
    """Paper, section "Continual Visual Learning" and its appendix."""
    labels = torch.arange(50_000) % 100
    assert [len(chunk) for chunk in warm_start.indices(labels, 100, 0)] == [5_000, 50_000]
    assert warm_start.epochs_per_chunk == (1000, 100)
    assert [len(chunk) for chunk in continual.indices(labels, 100, 0)] == [5_000 * i for i in range(1, 11)]
    assert continual.epochs_per_chunk == (100,) * 10
    assert [len(chunk) for chunk in class_incremental.indices(labels, 100, 0)] == [2_500 * i for i in range(1, 21)]
    assert [len(seen) for seen in class_incremental.classes(100, 0)] == [5 * i for i in range(1, 21)]
    assert class_incremental.epochs_per_chunk == (100,) * 20


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_epochs_and_chunks_agree(epochs):
    protocol = Continual(len(epochs), epochs=epochs)
    chunk_of_epoch = [chunk for chunk, number in enumerate(epochs) for _ in range(number)]
    assert [protocol.chunk_at(epoch) for epoch in range(sum(epochs))] == chunk_of_epoch
    assert [protocol.first_epoch(chunk) for chunk in range(len(epochs))] == [
        chunk_of_epoch.index(chunk) for chunk in range(len(epochs))
    ]
    assert protocol.chunk_at(sum(epochs)) == len(epochs) - 1  # after the end


def test_a_list_from_yaml_is_as_good_as_a_tuple():
    assert WarmStart(epochs=[3, 2]) == WarmStart(epochs=(3, 2))
    assert hash(WarmStart(epochs=[3, 2])) == hash(WarmStart(epochs=(3, 2)))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5])
def test_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match=r"`fraction` must be strictly between 0 and 1, got"):
        WarmStart(fraction=fraction)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarmStart(epochs=(1, 2, 3)), r"`epochs` must be one number or one per chunk \(2\), got \(1, 2, 3\)"),
        (lambda: Continual(3, epochs=[]), r"`epochs` must be one number or one per chunk \(3\), got \(\)"),
        (lambda: Continual(epochs=0), r"`epochs` must be at least 1, got 0"),
        (lambda: WarmStart(epochs=(5, -1)), r"`epochs` must be at least 1, got \(5, -1\)"),
        (lambda: Continual(0), r"`num_chunks` must be at least 1, got 0"),
        (lambda: ClassIncremental(0), r"`num_chunks` must be at least 1, got 0"),
        (lambda: WarmStart(access="all"), r"`access` must be 'cumulative' or 'current', got 'all'"),
    ],
)
def test_impossible_protocols(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("protocol", "labels", "num_classes", "message"),
    [
        (WarmStart(0.1), [0] * 9, 1, r"`fraction` must give at least 1 sample, got 0.1 of 9"),
        (WarmStart(0.9), [0] * 2, 1, r"every chunk must have at least 1 new sample, but chunks \[1\] of"),
        (Continual(10), [0] * 9, 1, r"`num_chunks` must not exceed the number of samples \(9\), got 10"),
        (ClassIncremental(4), [0, 1, 2], 3, r"`num_chunks` must divide the number of classes \(3\), got 4"),
        (ClassIncremental(2), [0, 1, 2], 3, r"`num_chunks` must divide the number of classes \(3\), got 2"),
        (ClassIncremental(2), [0, 0, 0], 2, r"every chunk must have at least 1 new sample, but chunks \[1\] of"),
        (ClassIncremental(2), [0, 1, 2], 2, r"`labels` must be in \[0, 2\), got 0 to 2"),
        (ClassIncremental(2), [0, 1], None, r"`num_classes` must be known for a class-incremental protocol, got None"),
    ],
)
def test_data_that_does_not_suit_the_protocol(protocol, labels, num_classes, message):
    with pytest.raises(ValueError, match=message):
        protocol.indices(torch.tensor(labels), num_classes, 0)
