"""Streams: each task against a slow, obvious version, then through real fits, resumed and on two ranks."""

from functools import partial
from itertools import pairwise
from typing import ClassVar

import lightning.pytorch as pl
import pytest
import torch
from processes import run
from small_training import assert_same_weights, resumed_from, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim import Adam
from torch.utils.data import TensorDataset

from lightning_fire import FullReset, Log, PlasticityCallback
from lightning_fire.data import (
    ChunkedDataModule,
    PermutedInputs,
    PermutedLabels,
    RandomLabels,
    SlowlyChangingRegression,
    SlowlyChangingRegressionDataModule,
    Stream,
    WarmStart,
)
from lightning_fire.data.resumable_loader import EpochSampler
from lightning_fire.modules import Classifier, Regressor
from lightning_fire.nets import MLP

CLASSES = 4


def images(n: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 2, 3, 5), dtype=torch.uint8, generator=generator)
    return TensorDataset(pixels, torch.randint(CLASSES, (n,), generator=generator))


TRAIN, TEST = images(60), images(20, seed=1)


def task(stream, number: int, seed: int = 0):
    """Return the training and test samples of a task as a DataModule hands them out, in the order of their draw."""
    data = ChunkedDataModule(TRAIN, TEST, stream, num_classes=CLASSES, seed=seed)
    indices = data.train_indices(number)
    train, test = data.datasets(number)
    return indices, train.tensors, test.tensors


@pytest.mark.parametrize("number", [0, 1, 5])
def test_permuted_labels_rename_the_classes(number):
    indices, (inputs, labels), (test_inputs, test_labels) = task(PermutedLabels(6, samples_per_task=30), number)
    names = {}
    for index, label in zip(indices.tolist(), labels.tolist(), strict=True):
        names.setdefault(int(TRAIN.tensors[1][index]), label)
    assert sorted(names) == sorted(names.values()) == list(range(CLASSES))
    assert labels.tolist() == [names[int(TRAIN.tensors[1][index])] for index in indices]
    assert test_labels.tolist() == [names[int(label)] for label in TEST.tensors[1]]
    assert torch.equal(inputs, TRAIN.tensors[0][indices])
    assert torch.equal(test_inputs, TEST.tensors[0])


@pytest.mark.parametrize("number", [0, 3])
def test_permuted_inputs_move_the_pixels_of_all_images_and_channels_alike(number):
    indices, (inputs, labels), (test_inputs, test_labels) = task(PermutedInputs(6, samples_per_task=30), number)
    whole = torch.cat([TRAIN.tensors[0][indices], TEST.tensors[0]]).flatten(2)
    moved = torch.cat([inputs, test_inputs]).flatten(2)
    columns = {tuple(whole[:, :, pixel].flatten().tolist()): pixel for pixel in range(15)}
    order = [columns[tuple(moved[:, :, pixel].flatten().tolist())] for pixel in range(15)]
    assert sorted(order) == list(range(15)) != order
    assert torch.equal(labels, TRAIN.tensors[1][indices])
    assert torch.equal(test_labels, TEST.tensors[1])


def test_permuted_inputs_of_vectors():
    vectors = TensorDataset(torch.arange(40.0).view(4, 10), torch.zeros(4, dtype=torch.int64))
    data = ChunkedDataModule(vectors, vectors, PermutedInputs(2, samples_per_task=4), num_classes=1)
    moved = data.datasets(1)[1].tensors[0]
    order = moved[0].long()
    assert sorted(order.tolist()) == list(range(10)) != order.tolist()
    assert torch.equal(moved, vectors.tensors[0][:, order])


@pytest.mark.parametrize("labels", ["drawn", "shuffled"])
def test_random_labels_are_resampled_for_the_same_samples(labels):
    stream = RandomLabels(4, samples_per_task=50, labels=labels)
    tasks = [task(stream, number) for number in range(4)]
    for (indices, train, test), (other_indices, other, _) in pairwise(tasks):
        assert torch.equal(indices, other_indices)
        assert torch.equal(train[0], other[0])
        agreeing = (train[1] == other[1]).float().mean()
        assert 0.1 <= agreeing <= 0.4  # 1/4 by chance
        assert torch.equal(train[0], test[0])
        assert torch.equal(train[1], test[1])


def test_shuffled_labels_keep_the_class_counts_of_the_data():
    """Drawn ones do not."""
    for labels in ("drawn", "shuffled"):
        found = [task(RandomLabels(4, samples_per_task=50, labels=labels), number) for number in range(4)]
        true = TRAIN.tensors[1][found[0][0]].bincount(minlength=CLASSES).tolist()
        counts = [train[1].bincount(minlength=CLASSES).tolist() for _, train, _ in found]
        assert all(of_task == true for of_task in counts) == (labels == "shuffled")
        if labels == "drawn":
            assert min(map(sum, zip(*counts, strict=True))) >= 30  # 50 expected


@pytest.mark.parametrize(
    "stream",
    [
        PermutedLabels(5, 20),
        PermutedInputs(5, 20),
        RandomLabels(5, 20, epochs=1),
        RandomLabels(5, 20, epochs=1, labels="shuffled"),
    ],
)
def test_a_task_is_a_pure_function_of_seed_and_number(stream):
    state = torch.get_rng_state()
    forwards = [task(stream, number) for number in range(5)]
    data = ChunkedDataModule(TRAIN, TEST, stream, num_classes=CLASSES)
    for number in (4, 0, 2):
        assert all(map(torch.equal, data.datasets(number)[0].tensors, forwards[number][1]))
    other_seed = task(stream, 0, seed=1)
    assert any(not torch.equal(one, other) for one, other in zip(forwards[0][1], other_seed[1], strict=True))
    assert torch.equal(torch.get_rng_state(), state)


class Sampled(PermutedInputs):
    """Inputs with a new permutation for each image."""

    between = Stream.between


def drifting(stream, seed=0):
    return ChunkedDataModule(TRAIN, TEST, stream, num_classes=CLASSES, batch_size=6, seed=seed)


@pytest.mark.parametrize("drift", [0.3, 1.0])
@pytest.mark.parametrize("make", [PermutedLabels, RandomLabels, PermutedInputs, Sampled])
def test_samples_drift_from_task_to_task(make, drift):
    """One sample after the other, in the order of training."""
    stream, seed = make(3, samples_per_task=20, epochs=2, drift=drift), 5
    data, abrupt = drifting(stream, seed), drifting(make(3, samples_per_task=20, epochs=2), seed)
    drawn = abrupt.train_indices(2)
    samples = TRAIN.tensors[0][drawn], TRAIN.tensors[1][drawn]
    old, new = (stream.task(number, samples, TEST.tensors, CLASSES, seed)[0] for number in (1, 2))
    for epoch in (4, 5):
        sampler, found = EpochSampler(range(20), seed=seed, num_replicas=1, rank=0), data.train_samples(epoch).tensors
        sampler.set_epoch(epoch)
        for place, number in enumerate(sampler):
            weight = min(1.0, (20 * (epoch - 4) + place) / 40 / drift)
            before, now, after = ((part[number] for part in each) for each in (old, found, new))
            if make is PermutedInputs:
                (before, _), (now, label), (after, true) = before, now, after
                mixed = ((1 - weight) * before.double() + weight * after.double()).round()
                assert (now.double() - mixed).abs().max() <= 1  # float32 rounds halves otherwise
                assert label == true
            else:
                before, now, after = list(before), list(now), list(after)
                is_new = all(map(torch.equal, now, after))
                assert is_new or all(map(torch.equal, now, before))
                assert is_new or weight < 1
    assert torch.equal(data.datasets(2)[1].tensors[0], abrupt.datasets(2)[1].tensors[0])
    assert torch.equal(data.datasets(2)[1].tensors[1], abrupt.datasets(2)[1].tensors[1])
    for epoch in (0, 1):
        assert all(map(torch.equal, data.train_samples(epoch).tensors, abrupt.datasets(0)[0].tensors))


@pytest.mark.parametrize("drift", [0.2, 0.5, 1.0])
def test_the_fraction_of_changed_samples_rises_with_their_weight(drift):
    """Each changes once; of 4,000 samples the fraction is within four standard errors."""
    stream, n = RandomLabels(3, None, 1, drift=drift), 4000
    old, new = ((torch.zeros(n, 1), torch.full((n,), value)) for value in (0, 1))
    before = torch.zeros(n)
    for time in (0.0, 0.1, 0.4, 0.7, 1.0):
        now = stream.drifted(1, torch.full((n,), time), old, new, seed=0)[1].float()
        weight = min(1.0, time / drift)
        assert abs(now.mean() - weight) <= 4 * (weight * (1 - weight) / n) ** 0.5
        assert (now >= before).all()
        before = now
    other = stream.drifted(2, torch.full((n,), drift / 2), old, new, seed=0)[1]
    assert 0.4 <= (other == stream.drifted(1, torch.full((n,), drift / 2), old, new, seed=0)[1]).float().mean() <= 0.6


def test_tasks_draw_their_samples_without_replacement():
    draws = [task(PermutedInputs(3, samples_per_task=40), number)[0] for number in range(3)]
    assert all(len(draw.unique()) == 40 for draw in draws)
    assert not torch.equal(draws[0], draws[1])
    assert len(task(PermutedLabels(3, samples_per_task=None), 1)[0]) == 60


def regression(change: str, tasks: int = 6, seed: int = 3) -> SlowlyChangingRegressionDataModule:
    stream = SlowlyChangingRegression(
        tasks, samples_per_task=40, epochs=2, bits=8, slow_bits=5, hidden_units=40, change=change
    )
    return SlowlyChangingRegressionDataModule(stream, test_size=30, batch_size=10, seed=seed)


@pytest.mark.parametrize("change", ["one_bit", "all_bits"])
def test_targets_of_slowly_changing_regression_are_of_one_network(change):
    """Slow bits are the same for all samples of a task; the others are drawn for each sample."""
    data = regression(change)
    network = data.protocol.target_network(3)
    fast = set()
    for number in range(6):
        train, test = data.datasets(number)
        slow = train.tensors[0][0, :5]
        for samples in (train, test):
            inputs, targets = samples.tensors
            assert torch.equal(inputs[:, :5], slow.expand(len(samples), -1))
            assert inputs[:, 5:].unique(dim=0).shape[0] == 8  # all patterns of three fast bits
            assert torch.equal(targets, network(inputs))
        fast.add(tuple(train.tensors[0][:, 5:].flatten().tolist()))
        assert (train.tensors[0].shape, train.tensors[0].dtype) == ((40, 8), torch.float32)
        assert (test.tensors[1].shape, test.tensors[1].dtype) == ((30, 1), torch.float32)
    assert len(fast) == 6  # drawn again in each task
    assert train.tensors[1].unique().numel() > 1
    assert not torch.equal(network.weights, data.protocol.target_network(4).weights)


def test_slow_bits_flip_one_at_a_time_or_are_resampled():
    changed = {}
    for change in ("one_bit", "all_bits"):
        data = regression(change, tasks=60)
        slow = torch.stack([data.datasets(number)[0].tensors[0][0, :5] for number in range(60)])
        changed[change] = slow[1:] != slow[:-1]
    assert changed["one_bit"].sum(1).tolist() == [1] * 59
    assert changed["one_bit"].sum(0).min() >= 4  # of each bit: 11.8 expected
    assert 0.4 <= changed["all_bits"].float().mean() <= 0.6
    assert changed["all_bits"].sum(1).unique().numel() >= 4


def test_the_variance_of_the_targets_is_that_of_the_original():
    """2.80 ± 0.52 over 30 tasks of 10,000 samples with the authors' code, mean ± standard deviation over 10 seeds."""
    variances = []
    for seed in range(10):
        stream = SlowlyChangingRegression(30, samples_per_task=200, change="all_bits")
        data = SlowlyChangingRegressionDataModule(stream, test_size=1, seed=seed)
        variances.append(torch.cat([data.datasets(number)[0].tensors[1] for number in range(30)]).var())
    assert torch.stack(variances).mean() == pytest.approx(2.8, abs=0.5)


def test_online_error_is_that_of_each_batch_before_its_update(tmp_path):
    """In the end it is below the variance of the targets."""

    class Before(pl.Callback):
        losses: ClassVar[list[float]] = []

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            with torch.no_grad():
                self.losses.append((pl_module(batch[0]) - batch[1]).square().mean().item())

    torch.manual_seed(0)
    stream = SlowlyChangingRegression(3, 500, epochs=2, slow_bits=18)
    data = SlowlyChangingRegressionDataModule(stream, batch_size=10)
    module = Regressor(MLP(20, 1, hidden=(5,)), partial(Adam, lr=0.01))
    trainer(Before(), max_epochs=6, folder=tmp_path).fit(module, data)
    log = EventAccumulator(str(tmp_path)).Reload()
    errors = [event.value for event in log.Scalars("train/online_error")]
    assert errors == pytest.approx([sum(Before.losses[i : i + 100]) / 100 for i in (0, 100, 200)], rel=1e-4)
    assert log.Scalars("val/loss")[-1].value < data.datasets(2)[1].tensors[1].var()


def stream_data(stream=None, **options) -> ChunkedDataModule:
    stream = stream or RandomLabels(3, samples_per_task=20, epochs=2)
    return ChunkedDataModule(TRAIN, TEST, stream, num_classes=CLASSES, **{"batch_size": 6, "seed": 5, **options})


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(MLP(30, CLASSES, hidden=(8,)), CLASSES, optimizer=partial(Adam, lr=0.01), warmup=0)


class Recorder(pl.Callback):
    """Records the correct predictions before each update, and saves a checkpoint after some steps."""

    def __init__(self, folder=None, after: int = -1):
        self.folder, self.after = folder, after
        self.correct: dict[int, list[bool]] = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        with torch.no_grad():
            right = pl_module(batch[0]).argmax(1) == batch[1]
        self.correct.setdefault(trainer.datamodule.chunk, []).extend(right.tolist())

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.after:
            trainer.save_checkpoint(self.folder / "middle.ckpt")


def online(folder) -> list[float]:
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in log.Tags()["scalars"] if tag.startswith("train/online_")]
    return [event.value for tag in tags for event in log.Scalars(tag)]


def test_online_accuracy_is_that_of_each_batch_before_its_update(tmp_path):
    recorder = Recorder()
    trainer(recorder, max_epochs=6, folder=tmp_path).fit(classifier(), stream_data())
    expected = [sum(recorder.correct[task]) / 40 for task in range(3)]  # 20 samples, 2 epochs
    assert online(tmp_path) == pytest.approx(expected)
    assert len(set(expected)) > 1


def test_only_streams_log_it(tmp_path):
    data = stream_data(WarmStart(0.5, epochs=1))
    trainer(max_epochs=2, folder=tmp_path).fit(classifier(), data)
    assert online(tmp_path) == []


def regressor() -> Regressor:
    torch.manual_seed(0)
    return Regressor(MLP(8, 1, hidden=(5,)), partial(Adam, lr=0.01))


@pytest.mark.parametrize(
    "stream",
    [
        RandomLabels(3, 20, 2),
        PermutedLabels(3, 20, 2),
        PermutedInputs(3, 20, 2),
        PermutedInputs(3, 20, 2, drift=0.8),
        None,
    ],
)
@pytest.mark.parametrize("after", [2, 6, 8, 11])  # 4 batches an epoch, 8 a task
def test_a_resume_in_the_middle_of_a_task_is_exact(tmp_path, stream, after):
    """Weights, events, and the online metric of the tasks that end after the resume, or ended with the checkpoint."""

    def fit(folder, *callbacks, **resumed):
        module, data = (classifier(), stream_data(stream)) if stream else (regressor(), regression("one_bit", 3))
        reset = PlasticityCallback(FullReset(), log=Log(curvature=False))
        trainer(reset, *callbacks, max_epochs=6, folder=tmp_path / folder).fit(module, data, **resumed)
        return module, online(tmp_path / folder)

    whole, metric = fit("whole", Recorder(tmp_path, after))
    resumed, left = fit("resumed", **resumed_from(tmp_path / "middle.ckpt"))
    assert_same_weights(resumed, whole)
    assert len(metric) == 3 and len(left) == 3 - (after - 1) // 8
    assert left == metric[-len(left) :]


def test_batches_are_of_the_samples_of_their_epoch():
    """All epochs of a task that drifts differ."""

    class Watch(pl.Callback):
        def __init__(self):
            self.seen = {}

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.seen.setdefault(trainer.current_epoch, []).extend(batch[1].tolist())

    watch, stream = Watch(), RandomLabels(3, 20, 2, drift=1.0)
    trainer(watch, max_epochs=6).fit(classifier(), stream_data(stream))
    assert len(watch.seen) == 6
    for epoch, labels in watch.seen.items():
        sampler = EpochSampler(range(20), seed=5, num_replicas=1, rank=0)
        sampler.set_epoch(epoch)
        samples = stream_data(stream).train_samples(epoch)
        assert labels == samples.tensors[1][sampler.order()].tolist()
        assert torch.equal(samples.tensors[1], stream_data(stream).datasets(epoch // 2)[0].tensors[1]) == (epoch < 2)


def test_tasks_are_validated_with_their_own_data():
    class Watch(pl.Callback):
        def __init__(self):
            self.seen = []

        def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
            self.seen.append((trainer.datamodule.chunk, batch[1].tolist()))

    watch, data = Watch(), stream_data(PermutedLabels(3, 20), test_batch_size=20)
    trainer(watch, max_epochs=3, num_sanity_val_steps=0).fit(classifier(), data)
    assert watch.seen == [(number, task(PermutedLabels(3, 20), number, 5)[2][1].tolist()) for number in range(3)]


def test_a_tested_checkpoint_is_tested_with_its_task(tmp_path):
    data = stream_data(PermutedLabels(3, 20), test_batch_size=20)
    fit = trainer(max_epochs=3)
    fit.fit(classifier(), data)
    fit.save_checkpoint(tmp_path / "end.ckpt")
    new, seen = stream_data(PermutedLabels(3, 20), test_batch_size=20), []

    class Watch(pl.Callback):
        def on_test_batch_start(self, trainer, pl_module, batch, *args):
            seen.append(batch[1].tolist())

    trainer(Watch()).test(classifier(), new, **resumed_from(tmp_path / "end.ckpt"))
    assert seen == [task(PermutedLabels(3, 20), 2, 5)[2][1].tolist()]


RANKS = """
import os
from pathlib import Path
import torch
from lightning.pytorch import Callback
from data.test_streams import RandomLabels, Recorder, classifier, online, stream_data, trainer

class Seen(Callback):
    def __init__(self):
        self.batches = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append((trainer.datamodule.chunk, batch))

if __name__ == "__main__":
    rank, seen = int(os.environ.get("LOCAL_RANK", 0)), Seen()
    folder = Path({folder!r}, "{devices}")
    options = dict(strategy="ddp", devices={devices}, use_distributed_sampler=False) if {devices} > 1 else {{}}
    module = classifier()
    data = stream_data(RandomLabels(3, samples_per_task=20, epochs=2), batch_size=10 // {devices})
    trainer(seen, max_epochs=6, folder=folder, num_sanity_val_steps=0, **options).fit(module, data)
    torch.save((seen.batches, module.state_dict()), Path({folder!r}, f"{devices}-{{rank}}.pt"))
"""


@pytest.mark.slow
def test_two_ranks_share_each_batch_and_train_as_one(tmp_path):
    """Batches of 5 on each rank: disjoint, together those of one process; the weights to rounding."""
    for devices in (1, 2):
        run(RANKS.format(folder=str(tmp_path), devices=devices), tmp_path)
    (one, weights), (first, others), (second, _) = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1")
    )
    assert len(one) == len(first) == len(second) == 12
    rows = partial(map, lambda image: tuple(image.flatten().tolist()))
    for (number, whole), (mine, part), (its, rest) in zip(one, first, second, strict=True):
        assert number == mine == its
        assert len(part[0]) == len(rest[0]) == 5
        assert sorted(rows(whole[0])) == sorted([*rows(part[0]), *rows(rest[0])])
    for name, tensor in weights.items():
        torch.testing.assert_close(others[name], tensor, rtol=1e-4, atol=1e-5)
    assert online(tmp_path / "2") == pytest.approx(online(tmp_path / "1"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PermutedLabels(0), "`num_chunks` must be at least 1, got 0"),
        (
            lambda: PermutedInputs(2, samples_per_task=0),
            "`samples_per_task` must be at least 1, or None for all, got 0",
        ),
        (lambda: RandomLabels(2, epochs=(1, 1, 1)), r"`epochs` must be one number or one per chunk \(2\)"),
        (lambda: SlowlyChangingRegression(slow_bits=21), r"`slow_bits` must be from 1 to `bits` \(20\), got 21"),
        (lambda: SlowlyChangingRegression(threshold=1.0), "`threshold` must be strictly between 0 and 1, got 1.0"),
        (lambda: SlowlyChangingRegression(change="none"), "`change` must be 'one_bit' or 'all_bits', got 'none'"),
        (lambda: RandomLabels(drift=1.5), "`drift` must be from 0 to 1, got 1.5"),
        (lambda: RandomLabels(labels="none"), "`labels` must be 'drawn' or 'shuffled', got 'none'"),
        (lambda: SlowlyChangingRegression(hidden_units=0), "`hidden_units` must be at least 1, got 0"),
        (lambda: task(PermutedLabels(2, 61), 0), r"must not exceed the number of training samples \(60\), got 61"),
        (lambda: SlowlyChangingRegressionDataModule(test_size=0), "`test_size` must be at least 1, got 0"),
        (lambda: ChunkedDataModule(TRAIN, TEST, test_batch_size=0), "`test_batch_size` must be at least 1, got 0"),
        (lambda: MLP(4, 2, hidden=(0,)), r"all widths must be at least 1, got .* \[4, 0, 2\]"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_stream_needs_tensors_and_classes():
    blank = TensorDataset(torch.zeros(4, 1), torch.zeros(4, 1))
    data = ChunkedDataModule(blank, blank, RandomLabels(2, samples_per_task=4))
    with pytest.raises(ValueError, match="`num_classes` must be known for RandomLabels"):
        data.train_dataloader()
    one = TensorDataset(torch.zeros(4, 1))
    data = ChunkedDataModule(one, one, PermutedInputs(2, samples_per_task=4), num_classes=2)
    with pytest.raises(ValueError, match="`train` must be a TensorDataset of inputs and targets"):
        data.train_dataloader()
