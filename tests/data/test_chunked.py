"""ChunkedDataModule through real fits: who sees which samples when, resumed or not."""

from itertools import chain, pairwise

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, TensorDataset

from lightning_fire.data import ChunkedDataModule, ClassIncremental, Continual, WarmStart
from lightning_fire.data.resumable_loader import EpochBatchSampler, EpochSampler
from lightning_fire.data.samples import TensorSubset

pytestmark = [pytest.mark.filterwarnings(r"ignore:The '.*_dataloader' does not have many workers:UserWarning")]

N = 23  # prime: no batch size and no number of chunks divides it


def images(n: int = N, offset: int = 0) -> TensorDataset:
    """Sample i is a 1×2×2 image whose first two pixels say i, in base 200; its label is i modulo 4."""
    i = torch.arange(offset, offset + n)
    pixels = torch.stack([i % 200, i // 200, 7 * i % 256, i * i % 256], dim=1).to(torch.uint8)
    return TensorDataset(pixels.view(n, 1, 2, 2), i % 4)


class OwnDataset(Dataset):
    """A stranger's data set, read one by one."""

    def __init__(self, source: TensorDataset, labels: str | None = "targets"):
        self.source = source
        if labels:
            setattr(self, labels, source.tensors[1].tolist())

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        assert isinstance(index, int)
        return self.source[index]


def datamodule(protocol, train=None, **kwargs) -> ChunkedDataModule:
    return ChunkedDataModule(train or images(), images(6), protocol, **{"batch_size": 4, **kwargs})


class Diary(pl.LightningModule):
    """A linear model that writes down, for each epoch, the chunk and the samples of each batch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.epochs: list[tuple[int, int, list[list[int]]]] = []
        self.tested: list[int] = []
        self.seen: list[list[int] | None] = []

    @staticmethod
    def samples(x) -> list[int]:
        first_two = (x.float().flatten(1)[:, :2] * 255).round().long()
        return (first_two[:, 0] + 200 * first_two[:, 1]).tolist()

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x.flatten(1)), y)

    def on_train_epoch_start(self):
        data = self.trainer.datamodule
        self.epochs.append((self.current_epoch, data.chunk, []))
        self.seen.append(None if data.seen_classes is None else data.seen_classes.tolist())

    def on_train_batch_start(self, batch, batch_idx):
        if not self.epochs:  # resumed within an epoch
            self.epochs.append((self.current_epoch, self.trainer.datamodule.chunk, []))
        self.epochs[-1][2].append(self.samples(batch[0]))

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.tested += self.samples(batch[0])

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer_for(data: ChunkedDataModule, **kwargs) -> pl.Trainer:
    return pl.Trainer(
        **{
            "max_epochs": data.total_epochs,
            "reload_dataloaders_every_n_epochs": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "logger": False,
            "accelerator": "cpu",
            "limit_val_batches": 0,
            "num_sanity_val_steps": 0,
            **kwargs,
        }
    )


def fit(data: ChunkedDataModule, **kwargs) -> Diary:
    model = Diary()
    trainer_for(data, **kwargs).fit(model, data)
    return model


PROTOCOLS = [
    WarmStart(0.3, epochs=(3, 2)),
    WarmStart(0.3, epochs=(2, 1), access="current"),
    Continual(4, epochs=(1, 2, 1, 2)),
    ClassIncremental(2, epochs=2),
]


@pytest.mark.parametrize("train", [images(), OwnDataset(images())], ids=["tensors", "own"])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_every_epoch_sees_each_sample_of_its_chunk_once(protocol, train):
    data = datamodule(protocol, train)
    model = fit(data)
    wanted = protocol.indices(images().tensors[1], 4, 0)
    assert [epoch for epoch, _, _ in model.epochs] == list(range(data.total_epochs))
    assert [chunk for _, chunk, _ in model.epochs] == [
        chunk for chunk, number in enumerate(protocol.epochs_per_chunk) for _ in range(number)
    ]
    for _, chunk, batches in model.epochs:
        assert sorted(chain(*batches)) == sorted(wanted[chunk].tolist())
        assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)  # the last one is kept, if shorter
    orders = [list(chain(*batches)) for _, chunk, batches in model.epochs if chunk == data.num_chunks - 1]
    assert len({tuple(order) for order in orders}) == len(orders)  # a new order in each epoch


def test_workers_change_nothing():
    protocol = Continual(3, epochs=2)
    with_workers = datamodule(protocol, OwnDataset(images()), num_workers=2)
    assert fit(with_workers).epochs == fit(datamodule(protocol)).epochs
    assert with_workers.train_dataloader().persistent_workers


def test_only_the_seed_of_the_datamodule_counts():
    runs = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        runs.append(fit(datamodule(PROTOCOLS[0])).epochs)
    assert runs[0] == runs[1]
    assert fit(datamodule(PROTOCOLS[0], seed=1)).epochs != runs[0]


@pytest.mark.parametrize("train", [images(), OwnDataset(images())], ids=["tensors", "own"])
def test_iterating_leaves_the_global_random_state(train):
    data = datamodule(PROTOCOLS[0], train)
    before = torch.get_rng_state()
    list(data.train_dataloader())
    assert torch.equal(torch.get_rng_state(), before)


class SaveAll(pl.Callback):
    """Keeps a checkpoint of each moment at which ModelCheckpoint may save: after a batch, a validation, an epoch."""

    def __init__(self, folder):
        self.folder = folder
        self.paths = []

    def save(self, trainer, when):
        self.paths.append(f"{self.folder}/{when}-{trainer.current_epoch}-{trainer.global_step}.ckpt")
        trainer.save_checkpoint(self.paths[-1])

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.save(trainer, "batch")

    def on_validation_end(self, trainer, pl_module):
        self.save(trainer, "validation")

    def on_train_epoch_end(self, trainer, pl_module):
        self.save(trainer, "end")


def by_batch(model: Diary) -> list[tuple[int, int, list[int]]]:
    return [(epoch, chunk, batch) for epoch, chunk, batches in model.epochs for batch in batches]


def steps_done(path: str) -> int:
    return int(path.rsplit("-", 1)[1].removesuffix(".ckpt"))


@pytest.mark.parametrize("train", [images(), OwnDataset(images())], ids=["tensors", "own"])
def test_a_resumed_run_sees_exactly_the_remaining_batches(tmp_path, train):
    """From every moment of a run over two boundaries: before, at and after them, and within epochs."""
    protocol = Continual(3, epochs=(2, 1, 1))
    saver = SaveAll(tmp_path)
    data = datamodule(protocol, train)
    whole = Diary()
    trainer_for(data, callbacks=[saver], limit_val_batches=1).fit(whole, data)
    batches = by_batch(whole)
    assert len(batches) == 2 * 2 + 4 + 6
    assert len(saver.paths) == len(batches) + 4 + 4
    for path in saver.paths:
        for reused in (data, datamodule(protocol, train)):  # the same DataModule, and one of a new process
            resumed = Diary()
            trainer_for(reused, limit_val_batches=1).fit(resumed, reused, ckpt_path=path)
            assert by_batch(resumed) == batches[steps_done(path) :], path
            assert all(map(torch.equal, resumed.parameters(), whole.parameters())), path
    assert by_batch(fit(data)) == batches  # and from the start again, with what was resumed before


@pytest.mark.parametrize("validation", [0, 1])
def test_a_run_that_is_resumed_twice_sees_exactly_the_remaining_batches(tmp_path, validation):
    """The second time from every checkpoint of every run that was resumed once."""

    def trained(path=None, folder=None):
        data, model = datamodule(Continual(3, epochs=1)), Diary()
        saver = SaveAll(folder) if folder else None
        trainer = trainer_for(data, callbacks=[saver] if saver else [], limit_val_batches=validation)
        trainer.fit(model, data, ckpt_path=path)
        return by_batch(model), saver.paths if saver else []

    batches, first = trained(folder=tmp_path)
    assert len(batches) == 2 + 4 + 6
    for path in first:
        for again in trained(path, tmp_path / "again")[1]:
            assert trained(again)[0] == batches[steps_done(again) :], (path, again)


def test_a_resume_within_an_epoch_with_workers(tmp_path):
    saver = SaveAll(tmp_path)
    data = datamodule(Continual(2, epochs=1), OwnDataset(images()), num_workers=2)
    whole = Diary()
    trainer_for(data, callbacks=[saver]).fit(whole, data)
    path = [path for path in saver.paths if "batch-1" in path][1]
    resumed = Diary()
    trainer_for(data).fit(resumed, data, ckpt_path=path)
    assert by_batch(resumed) == by_batch(whole)[steps_done(path) :]


class Peek(pl.Callback):
    """Looks at the data that is about to be trained on, as data-driven methods do."""

    def on_train_start(self, trainer, pl_module):
        next(iter(trainer.datamodule.train_dataloader()))

    def on_train_epoch_start(self, trainer, pl_module):
        list(trainer.datamodule.train_dataloader())

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        next(iter(trainer.train_dataloader))


def test_a_callback_may_look_at_the_data_at_any_time():
    protocol = PROTOCOLS[2]
    assert fit(datamodule(protocol), callbacks=[Peek()]).epochs == fit(datamodule(protocol)).epochs


def order_of(sampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return [int(i) for entry in sampler for i in torch.as_tensor(entry).reshape(-1)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 3, 20, 23])
def test_the_order_is_that_of_torchs_own_sampler(n, ranks, shuffle):
    for rank in range(ranks):
        options = {"shuffle": shuffle, "seed": 5, "num_replicas": ranks, "rank": rank}
        ours, batched = EpochSampler(range(n), **options), EpochBatchSampler(range(n), 4, **options)
        torchs = DistributedSampler(range(n), ranks, rank, shuffle, seed=5 * 1_000_003)
        torchs.set_epoch(2)
        assert order_of(ours, 2) == order_of(batched, 2) == list(torchs)
        assert not n or len(batched) == len(list(batched))
        ours.skip = 2
        assert order_of(ours, 2) == list(torchs)[2:]


def test_rank_and_world_size(monkeypatch):
    """Rank and number of ranks are those of the process group."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    data = datamodule(Continual(2, epochs=(3, 2)))
    sampler = data.train_dataloader().sampler
    assert (sampler.num_replicas, sampler.rank) == (2, 1)
    assert data.steps_per_chunk() == [3 * 2, 2 * 3]  # 12 and 23 samples; 6 and 12 on each rank; batches of 4


class CountSteps(pl.Callback):
    def __init__(self):
        self.steps = {}

    def on_train_batch_end(self, trainer, *args):
        self.steps[trainer.datamodule.chunk] = trainer.global_step


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_grad_batches": 3},
        {"limit_train_batches": 2},
        {"limit_train_batches": 0.5},
        {"accumulate_grad_batches": 2, "limit_train_batches": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_steps_per_chunk_are_those_taken(protocol, options):
    counter = CountSteps()
    data = datamodule(protocol, batch_size=3)
    fit(data, callbacks=[counter], **options)
    ends = [counter.steps[chunk] for chunk in range(data.num_chunks)]
    assert data.steps_per_chunk() == [end - start for start, end in pairwise([0, *ends])]


def test_steps_without_a_trainer_and_in_a_trial_run():
    data = datamodule(WarmStart(0.5, epochs=(10, 2)))
    assert (data.chunk, data.num_chunks, data.epochs_per_chunk, data.total_epochs) == (0, 2, (10, 2), 12)
    assert [len(data.train_indices(chunk)) for chunk in range(2)] == [12, 23]
    assert data.steps_per_chunk() == [10 * 3, 2 * 6]
    fit(data, fast_dev_run=2, max_epochs=None)
    assert data.steps_per_chunk() == [10 * 2, 2 * 2]


def test_seen_classes_grow():
    assert fit(datamodule(PROTOCOLS[0])).seen == [None] * 5
    model = fit(datamodule(ClassIncremental(4, epochs=1)))
    assert [len(seen) for seen in model.seen] == [1, 2, 3, 4]
    assert all(set(seen) < set(more) for seen, more in pairwise(model.seen))


def test_a_tested_checkpoint_knows_the_classes_it_had_seen(tmp_path):
    saver = SaveAll(tmp_path)
    data = datamodule(ClassIncremental(4, epochs=1))
    model = Diary()
    trainer_for(data, callbacks=[saver]).fit(model, data)
    assert data.chunk == 3
    path = next(path for path in saver.paths if "end-1" in path)
    for fresh in (data, datamodule(ClassIncremental(4, epochs=1))):
        trainer_for(fresh).test(Diary(), fresh, ckpt_path=path, verbose=False)
        assert fresh.chunk == 1
        assert fresh.seen_classes.tolist() == model.seen[1]
    resumed = Diary()
    trainer_for(data).fit(resumed, data, ckpt_path=path)
    assert [chunk for _, chunk, _ in resumed.epochs] == [2, 3]
    assert data.chunk == 3


@pytest.mark.parametrize("same_trainer", [True, False])
def test_a_model_tested_after_its_fit_knows_the_classes_it_has_seen(same_trainer):
    """Also by a Trainer of its own, whose epoch is 0."""
    data, model = datamodule(ClassIncremental(4, epochs=1)), Diary()
    trainer = trainer_for(data)
    trainer.fit(model, data)
    (trainer if same_trainer else trainer_for(data)).test(model, datamodule=data, verbose=False)
    assert data.chunk == 3
    assert data.seen_classes.tolist() == [0, 1, 2, 3]


def test_validation_and_test_are_the_whole_test_set_in_order():
    data = datamodule(ClassIncremental(2, epochs=2))
    model = fit(data, limit_val_batches=1.0)
    assert model.tested == list(range(6)) * 4
    model.tested = []
    trainer_for(data, limit_val_batches=1.0).validate(model, data, verbose=False)
    trainer_for(data).test(model, data, verbose=False)
    assert model.tested == list(range(6)) * 2


def test_normalization():
    data = datamodule(WarmStart(0.5, epochs=1), mean=(0.25,), std=(0.5,))
    pixels = torch.tensor([[[[0, 51], [102, 255]]]], dtype=torch.uint8)
    result, labels = data.on_after_batch_transfer((pixels, torch.tensor([3])), 0)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.tensor([[[[-0.5, -0.1], [0.3, 1.5]]]]))
    assert labels.tolist() == [3]
    as_floats, _ = data.on_after_batch_transfer((pixels / 255, torch.tensor([3])), 0)
    torch.testing.assert_close(as_floats, result)
    plain, _ = datamodule(WarmStart()).on_after_batch_transfer((pixels, torch.tensor([3])), 0)
    assert torch.equal(plain, pixels / 255)


def test_each_channel_has_its_own_mean():
    data = datamodule(WarmStart(), mean=(0.1, 0.2, 0.3), std=(1.0, 0.5, 0.25))
    result, _ = data.on_after_batch_transfer([torch.full((2, 3, 1, 1), 255, dtype=torch.uint8), None], 0)
    torch.testing.assert_close(result, torch.tensor([0.9, 1.6, 2.8]).view(1, 3, 1, 1).expand(2, 3, 1, 1))
    with pytest.raises(ValueError, match=r"`mean` must have one number per channel of images \(\.\.\., C, H, W\)"):
        data.on_after_batch_transfer([torch.zeros(2, 1, 4, 4), None], 0)


@pytest.mark.parametrize("pixels", [images().tensors[0], images().tensors[0] / 255])
def test_the_images_of_a_batch_are_not_written_into(pixels):
    before = pixels.clone()
    data = datamodule(WarmStart(), mean=(0.5,), std=(0.25,))
    data.on_after_batch_transfer([pixels, None], 0)
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("batch", [torch.zeros(2, 3), {"x": torch.zeros(2, 1, 2, 2)}, [torch.zeros(2, 3), None]])
def test_what_is_not_images_is_left_alone(batch):
    assert datamodule(WarmStart(), mean=(0.1,), std=(1.0,)).on_after_batch_transfer(batch, 0) is batch


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_images_have_the_precision_of_the_trainer(precision):
    data = datamodule(WarmStart(0.5, epochs=1))
    assert [chunk for _, chunk, _ in fit(data, precision=precision).epochs] == [0, 1]


def test_a_transform_is_for_training_images_only():
    flipped = datamodule(WarmStart(0.5, epochs=1), transform=lambda image: image.flip(-1))
    plain = datamodule(WarmStart(0.5, epochs=1))
    for one, other in zip(flipped.train_dataloader(), plain.train_dataloader(), strict=True):
        assert torch.equal(one[0], other[0].flip(-1)) and torch.equal(one[1], other[1])
    for one, other in zip(flipped.test_dataloader(), plain.test_dataloader(), strict=True):
        assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("labels", ["targets", "labels"])
def test_labels_of_a_strangers_data_set(labels):
    data = datamodule(ClassIncremental(4, epochs=1), OwnDataset(images(), labels))
    assert len(fit(data).epochs) == 4


def test_sample_protocols_need_no_labels():
    data = datamodule(Continual(2, epochs=1), OwnDataset(images(), None))
    assert len(fit(data).epochs) == 2
    assert data.num_classes is None


# Errors


@pytest.mark.parametrize("reload", [0, 2, 3])
def test_data_that_would_not_be_reloaded(reload):
    data = datamodule(Continual(2, epochs=3))
    with pytest.raises(
        MisconfigurationException, match=rf"set Trainer\(reload_dataloaders_every_n_epochs=1\).*{reload}"
    ):
        fit(data, reload_dataloaders_every_n_epochs=reload)
    fit(datamodule(Continual(1, epochs=3)), reload_dataloaders_every_n_epochs=reload)  # one chunk: nothing to switch


@pytest.mark.parametrize("max_epochs", [1, 5, 7, -1])
def test_a_trainer_of_another_length(max_epochs):
    message = rf"takes 6 epochs in all, but the Trainer has max_epochs={max_epochs}: set Trainer\(max_epochs=6\)"
    with pytest.raises(MisconfigurationException, match=message):
        fit(datamodule(Continual(2, epochs=3)), max_epochs=max_epochs)


def test_overfit_batches_raises():
    with pytest.raises(MisconfigurationException, match="use `limit_train_batches` instead, got overfit_batches=2"):
        fit(datamodule(Continual(2, epochs=1)), overfit_batches=2)


def test_the_trainer_does_not_matter_for_a_test():
    data = datamodule(Continual(2, epochs=3))
    trainer_for(data, max_epochs=1, reload_dataloaders_every_n_epochs=0).test(Diary(), data, verbose=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: datamodule(WarmStart(), batch_size=0), r"`batch_size` must be at least 1, got 0"),
        (lambda: datamodule(WarmStart(), mean=(0.5,)), r"`mean` and `std` must have one number per channel each"),
        (
            lambda: datamodule(WarmStart(), mean=(0.5,), std=(1, 2)),
            r"`mean` and `std` must have one number per channel",
        ),
        (lambda: ChunkedDataModule(test=images()).setup(), r"`train` must be a map-style data set .* got None"),
        (lambda: ChunkedDataModule(images()).setup(), r"`test` must be a map-style data set .* got None"),
        (lambda: datamodule(WarmStart(), Stream()).setup(), r"`train` must be a map-style data set"),
        (
            lambda: datamodule(ClassIncremental(2), OwnDataset(images(), None)).setup(),
            r"`train` must show its labels to",
        ),
        (
            lambda: datamodule(ClassIncremental(2), TensorDataset(torch.zeros(4, 1))).setup(),
            r"attribute `targets` or `labels`; TensorDataset has none",
        ),
        (
            lambda: datamodule(ClassIncremental(2), TensorDataset(torch.zeros(4, 1), torch.rand(4))).setup(),
            r"`train` must show its labels to ClassIncremental, whole numbers",
        ),
        (lambda: datamodule(ClassIncremental(2), num_classes=2).setup(), r"`labels` must be in \[0, 2\), got 0 to 3"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def test_unsuitable_data_is_found_before_training_starts():
    model = Diary()
    data = datamodule(Continual(50, epochs=1))
    with pytest.raises(ValueError, match="`num_chunks` must not exceed"):
        trainer_for(data).fit(model, data)
    assert not model.epochs


def test_part_of_the_tensors_gives_samples_and_whole_batches():
    """The images of every other sample lie apart in memory."""
    whole = TensorDataset(images(2 * N).tensors[0][::2], images().tensors[1])
    part = TensorSubset(whole, torch.tensor([7, 3, 22]))
    assert len(part) == 3
    assert all(map(torch.equal, part[1], whole[3]))
    rows = torch.tensor([2, 0])
    assert all(map(torch.equal, part[rows], whole[[22, 7]]))
    with pytest.raises(IndexError):
        part[3]


def test_the_state_before_there_is_a_loader():
    assert datamodule(Continual(3, epochs=1)).state_dict() == {"chunk": 0, "position": None}
