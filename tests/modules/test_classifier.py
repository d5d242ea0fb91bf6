"""`Classifier` over chunks: learning rate, accuracies, and metrics between event and first batch."""

import copy

import lightning.pytorch as pl
import pytest
import torch
from small_training import assert_same_weights, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from lightning_fire import FullReset, PlasticityCallback
from lightning_fire.data import ChunkedDataModule, ClassIncremental, Continual, RandomLabels
from lightning_fire.modules import Classifier
from lightning_fire.modules.mean_loss import MeanLoss

MEAN, STD = (0.4,), (0.1,)


def images(size, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (size, 1, 4, 4), dtype=torch.uint8, generator=generator)
    return TensorDataset(pixels, torch.arange(size) % 4)


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


def chunked(protocol):
    return ChunkedDataModule(images(40, 0), images(24, 1), protocol, batch_size=5, mean=MEAN, std=STD)


def run(tmp_path, protocol, *callbacks, module=None, **options):
    torch.manual_seed(0)
    data = chunked(protocol)
    module = module or Classifier(net(), num_classes=4)
    trainer(*callbacks, folder=tmp_path, max_epochs=data.total_epochs, **options).fit(module, datamodule=data)
    return module, EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()


def logged(log, tag):
    return [(event.step, event.value) for event in log.Scalars(tag)]


def test_learning_rate_warms_up_in_each_chunk(tmp_path):
    """Chunks of 4 and 8 batches an epoch, 5 epochs each: 20 and 40 steps, of which 2 and 4 warm up."""
    _, log = run(tmp_path, Continual(2, epochs=5), pl.callbacks.LearningRateMonitor("step"))
    rates = [value for _, value in logged(log, "lr-Adam")]
    expected = [0, 0.5, *[1] * 18, 0, 0.25, 0.5, 0.75, *[1] * 36]
    assert rates == pytest.approx([1e-3 * factor for factor in expected])


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_no_warm_up_for_data_without_chunks_and_for_zero(tmp_path):
    loader = torch.utils.data.DataLoader(TensorDataset(torch.rand(20, 1, 4, 4), torch.arange(20) % 4), batch_size=5)
    module = Classifier(net(), 4, warmup=0.0)
    trainer(max_epochs=2).fit(module, loader)
    assert module.lr_schedulers() is None
    module = Classifier(net(), 4, warmup=0.5)
    trainer(max_epochs=2).fit(module, loader)
    assert module.lr_schedulers().get_last_lr() == [1e-3]
    with pytest.raises(ValueError, match="`warmup` is a fraction of the training: set max_epochs or max_steps"):
        trainer(max_epochs=-1).fit(Classifier(net(), 4), loader)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            lambda parameters: torch.optim.Adam(parameters, lr=-1.0),
            "`optimizer` cannot be made: Invalid learning rate: -1",
        ),
        (lambda parameters: torch.optim.Adam(parameters, lrr=1.0), "`optimizer` cannot be made: .* argument 'lrr'"),
    ],
)
def test_an_optimizer_that_cannot_be_constructed(tmp_path, optimizer, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, Continual(2, epochs=1), module=Classifier(net(), 4, optimizer=optimizer))


def test_accuracies_equal_a_count_by_hand(tmp_path):
    module, log = run(tmp_path, ClassIncremental(2, epochs=2))
    pixels, labels = images(24, 1).tensors
    module.eval()
    right = (module((pixels / 255 - MEAN[0]) / STD[0]).argmax(1) == labels).float()
    assert logged(log, "val/accuracy")[-1][1] == pytest.approx(right.mean().item())
    assert len(logged(log, "val/accuracy")) == 4
    assert len(logged(log, "train/accuracy")) == 4


def test_training_metrics_are_means_over_samples_logged_once_an_epoch(tmp_path):
    """23 samples in batches of 5, of a network that learns nothing; a monitor finds them in their own epoch."""
    module = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), 4, lambda parameters: SGD(parameters, lr=0))
    data = ChunkedDataModule(images(23, 0), images(8, 1), Continual(1, epochs=2), batch_size=5)
    save = pl.callbacks.ModelCheckpoint(tmp_path, monitor="train/loss", save_top_k=-1)
    log, calls = module.log, []
    module.log = lambda name, *args, **kwargs: (calls.append(name), log(name, *args, **kwargs))
    trainer(save, folder=tmp_path, max_epochs=2).fit(module, datamodule=data)
    pixels, labels = images(23, 0).tensors
    logits = module(pixels / 255)
    loss = nn.functional.cross_entropy(logits, labels).item()
    right = (logits.argmax(1) == labels).float().mean().item()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert logged(events, "train/loss") == [(4, pytest.approx(loss)), (9, pytest.approx(loss))]
    assert logged(events, "train/accuracy") == [(4, pytest.approx(right)), (9, pytest.approx(right))]
    assert calls.count("train/loss") == calls.count("train/accuracy") == 2
    assert [score.item() for score in save.best_k_models.values()] == pytest.approx([loss, loss])
    assert module.train_loss.samples == module.train_accuracy.correct == 0  # the next epoch starts from a reset metric


def test_the_mean_loss_is_over_all_ranks():
    """The other rank has one sample, with a loss of 6."""
    others = {"total": torch.tensor(6.0), "samples": torch.tensor(1)}
    states = iter(others.values())
    options = {"dist_sync_fn": lambda own, group: [own, next(states)], "distributed_available_fn": lambda: True}
    loss = MeanLoss(**options)
    loss.update(torch.tensor(1.0), 3)
    loss.update(torch.tensor(3.0), 1)
    assert loss.compute() == (3 + 3 + 6) / 5


def test_a_loss_that_is_not_a_number_stays_so():
    loss = MeanLoss()
    loss.update(torch.tensor(torch.nan), 3)
    loss.update(torch.tensor(1.0), 3)
    assert loss.compute().isnan()


def test_seen_accuracy_leaves_out_classes_to_come(tmp_path):
    """A network that always answers class c is right on all, or on none, of the samples seen first."""

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            first_seen = chunked(ClassIncremental(4, epochs=1)).protocol.classes(4, 0)[0][0]
            return torch.eye(4)[first_seen].expand(len(x), 4) + self.bias

    _, log = run(tmp_path, ClassIncremental(4, epochs=1), module=Classifier(Constant(), 4))
    assert [value for _, value in logged(log, "val/accuracy_seen")] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert [value for _, value in logged(log, "val/accuracy")] == pytest.approx([1 / 4] * 4)


def test_a_batch_without_any_seen_class(tmp_path):
    """The test set in the order of its classes, in batches of one class each."""
    data = ChunkedDataModule(
        images(40, 0),
        TensorDataset(images(20, 1).tensors[0], torch.arange(20) // 5),
        ClassIncremental(2, epochs=1),
        batch_size=5,
    )
    trainer(max_epochs=2, folder=tmp_path).fit(Classifier(net(), 4), datamodule=data)
    assert len(logged(EventAccumulator(str(tmp_path)).Reload(), "val/accuracy_seen")) == 2


def test_accuracy_at_new_data_is_that_of_the_network_after_the_event(tmp_path):
    torch.manual_seed(0)
    start = Classifier(net(), 4).eval()
    pixels, labels = images(24, 1).tensors
    expected = (start((pixels / 255 - MEAN[0]) / STD[0]).argmax(1) == labels).float().mean().item()

    class Looks(Classifier):
        def _evaluate_at_new_data(self, batch):
            super()._evaluate_at_new_data(batch)
            seen.append({name: value.clone() for name, value in self.net.state_dict().items()})

    seen = []
    torch.manual_seed(0)
    module = Looks(net(), 4)
    _, log = run(tmp_path, Continual(2, epochs=3), PlasticityCallback(FullReset()), module=module)
    assert logged(log, "val/accuracy_at_new_data") == [(12, pytest.approx(expected))]
    assert seen and all(torch.equal(value, seen[0][name]) for name, value in start.net.state_dict().items())


def test_accuracy_at_new_data_without_an_event_is_the_last_accuracy(tmp_path):
    _, log = run(tmp_path, Continual(3, epochs=2))
    accuracies = [value for _, value in logged(log, "val/accuracy")]
    assert [value for _, value in logged(log, "val/accuracy_at_new_data")] == [accuracies[1], accuracies[3]]


def test_modules_keep_their_modes_and_random_numbers_when_measured(tmp_path):
    """A frozen, evaluated part stays so; measuring draws nothing."""

    class Looks(Classifier):
        def _measure_at_new_data(self):
            self.net[3].eval()
            state = torch.get_rng_state()
            super()._measure_at_new_data()
            assert torch.equal(torch.get_rng_state(), state)
            assert not self.net[3].training
            assert self.net[0].training
            self.looked = True

    module, _ = run(tmp_path, Continual(2, epochs=1), module=Looks(net(), 4))
    assert module.looked


def test_online_accuracy_has_no_noise_of_dropout_and_changes_no_training(tmp_path):
    """It is that of a copy in evaluation mode before each update, counted by hand; the network has dropout."""
    stream, hits = RandomLabels(2, samples_per_task=20, epochs=2), []

    class Counts(Classifier):
        def training_step(self, batch, batch_idx):
            images, labels = batch
            hits.append((copy.deepcopy(self.net).eval()(images).argmax(1) == labels).float().mean().item())
            return super().training_step(batch, batch_idx)

    class WithNoise(Classifier):
        def _without_noise(self, images, logits):
            return logits

    start = net()
    counted, log = run(tmp_path / "one", stream, module=Counts(copy.deepcopy(start), 4))
    noisy, with_noise = run(tmp_path / "other", stream, module=WithNoise(start, 4))
    found = [value for _, value in logged(log, "train/online_accuracy")]
    assert found == pytest.approx([sum(of) / 8 for of in (hits[:8], hits[8:])])
    assert found != [value for _, value in logged(with_noise, "train/online_accuracy")]
    assert_same_weights(counted, noisy)


def test_without_validation_nothing_is_measured(tmp_path):
    _, log = run(tmp_path, Continual(2, epochs=1), limit_val_batches=0)
    assert "val/accuracy_at_new_data" not in log.Tags()["scalars"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, "`num_classes` must be at least 2, got 1"),
        ({"num_classes": 4, "warmup": 1.0}, r"`warmup` must be a fraction in \[0, 1\), got 1.0"),
        ({"num_classes": 4, "warmup": -0.1}, r"got -0.1"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Classifier(net(), **options)


def test_a_classifier_without_a_trainer_gives_its_loss():
    """As λ_max of a module requires."""
    module = Classifier(net(), num_classes=4).eval()
    batch = images(5, 0).tensors[0] / 255, images(5, 0).tensors[1]
    torch.testing.assert_close(module.training_step(batch, 0), nn.functional.cross_entropy(module(batch[0]), batch[1]))


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_an_evaluation_at_new_data_is_in_the_precision_of_the_trainer(precision):
    vectors = TensorDataset(torch.randn(40, 16, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4)
    data = ChunkedDataModule(vectors, vectors, Continual(2, epochs=1), batch_size=10)
    module = Classifier(net(), 4)
    trainer(max_epochs=2, precision=precision).fit(module, datamodule=data)
    assert module.dtype == {"64-true": torch.float64, "bf16-true": torch.bfloat16}[precision]
