"""The image sets, from small files in their own formats; the packaged part of Fashion-MNIST against the original."""

import os
import pickle
import zipfile
from io import BytesIO
from pathlib import Path

import image_files
import numpy as np
import pytest
import torch
import torchvision
from pages import script
from PIL import Image

from lightning_fire import data

ROOT = Path(__file__).parents[2]
ORIGINALS = Path(os.environ.get("LIGHTNING_FIRE_DATA", ROOT.parent / "shared" / "data"))
ONE_PASS = data.WarmStart(0.5, epochs=1)


FILES = {
    "CIFAR10": (image_files.write_cifar10, torchvision.datasets.CIFAR10),
    "CIFAR100": (image_files.write_cifar100, torchvision.datasets.CIFAR100),
    "FashionMNIST": (image_files.write_fashion_mnist, None),
    "TinyImageNet": (image_files.write_tiny_imagenet, data.TinyImageNetDataModule),
}
SETS = [getattr(data, f"{name}DataModule") for name in FILES]


@pytest.fixture
def root(tmp_path, monkeypatch, request):
    """Folder with small files of a data set, whose sums are the published ones."""
    write, source = FILES[request.param]
    for name, value in (write(tmp_path / "root") or {}).items():
        monkeypatch.setattr(source, name, value)
    return tmp_path / "root"


def files_of(name):
    return pytest.mark.parametrize("root", [name], indirect=True)


def ready(datamodule):
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def first_batch(datamodule):
    return datamodule.on_after_batch_transfer(next(iter(datamodule.train_dataloader())), 0)


# What is read


@files_of("CIFAR10")
def test_cifar10(root):
    dm = ready(data.CIFAR10DataModule(str(root), protocol=ONE_PASS, batch_size=8))
    original = torchvision.datasets.CIFAR10(root, train=True)
    images, labels = dm.train_set.tensors
    assert images.dtype == torch.uint8 and labels.dtype == torch.int64
    for i in (0, 37, 99):
        assert np.array_equal(images[i].permute(1, 2, 0), np.asarray(original[i][0])) and labels[i] == original[i][1]
    assert dm.test_set.tensors[0].shape == (20, 3, 32, 32)
    assert first_batch(dm)[0].shape == (8, 3, 32, 32)


@files_of("CIFAR100")
def test_cifar100(root):
    dm = ready(data.CIFAR100DataModule(str(root), protocol=data.class_incremental, batch_size=8))
    original = torchvision.datasets.CIFAR100(root, train=False)
    images, labels = dm.test_set.tensors
    for i in (0, 99):
        assert np.array_equal(images[i].permute(1, 2, 0), np.asarray(original[i][0])) and labels[i] == original[i][1]
    assert [len(dm.train_indices(chunk)) for chunk in range(20)] == [10 * i for i in range(1, 21)]
    assert len(dm.seen_classes) == 5


@files_of("FashionMNIST")
def test_fashion_mnist(root):
    dm = ready(data.FashionMNISTDataModule(str(root), protocol=ONE_PASS, batch_size=8))
    original = torchvision.datasets.FashionMNIST(root, train=True)
    assert torch.equal(dm.train_set.tensors[0].squeeze(1), original.data)
    assert torch.equal(dm.train_set.tensors[1], original.targets)
    assert dm.test_set.tensors[0].shape == (20, 1, 28, 28)
    assert first_batch(dm)[0].shape == (8, 1, 28, 28)


@files_of("FashionMNIST")
def test_padded_fashion_mnist_has_black_margins(root):
    plain, padded = (
        ready(data.FashionMNISTDataModule(str(root), pad=pad, subset=30, protocol=ONE_PASS)) for pad in (0, 2)
    )
    images = padded.train_set.tensors[0]
    assert images.shape == (30, 1, 32, 32) and images.dtype == torch.uint8
    assert torch.equal(images[..., 2:-2, 2:-2], plain.train_set.tensors[0])
    assert images.sum() == plain.train_set.tensors[0].sum()
    assert padded.test_set.tensors[0].shape == (20, 1, 32, 32)
    with pytest.raises(ValueError, match="`pad` must be at least 0, got -1"):
        data.FashionMNISTDataModule(pad=-1)


@files_of("FashionMNIST")
def test_a_subset_of_fashion_mnist_is_fixed(root):
    whole = ready(data.FashionMNISTDataModule(str(root), protocol=ONE_PASS)).train_set.tensors[0]
    parts = [
        ready(data.FashionMNISTDataModule(str(root), subset=n, protocol=ONE_PASS, seed=seed))
        for n, seed in ((30, 0), (30, 1), (50, 0))
    ]
    first = parts[0].train_set.tensors[0]
    assert torch.equal(first, parts[1].train_set.tensors[0])  # independent of the seed of the run
    assert torch.equal(first, parts[2].train_set.tensors[0][:30])
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first, whole[order[:30]])
    assert len(parts[0].test_set) == 20


@files_of("TinyImageNet")
def test_tiny_imagenet(root):
    dm = ready(data.TinyImageNetDataModule(str(root), protocol=data.class_incremental, batch_size=8))
    (images, labels), (val_images, val_labels) = dm.train_set.tensors, dm.test_set.tensors
    assert images.shape == (400, 3, 64, 64) and val_images.shape == (20, 3, 64, 64)
    assert labels.bincount().tolist() == [2] * 200
    with zipfile.ZipFile(root / "tiny-imagenet-200.zip") as archive:
        top = "tiny-imagenet-200"
        wnids = archive.read(f"{top}/wnids.txt").decode().split()
        classes = {wnid: i for i, wnid in enumerate(sorted(wnids))}
        assert list(classes) != wnids
        for wnid in (wnids[0], wnids[77]):
            one = archive.read(f"{top}/train/{wnid}/images/{wnid}_1.JPEG")
            of_class = images[labels == classes[wnid]]
            assert np.array_equal(of_class[1].permute(1, 2, 0), np.asarray(Image.open(BytesIO(one))))
        grey = images[labels == classes[wnids[0]]][0]
        assert (grey == grey[0]).all()  # the grey one became RGB
        lines = [line.split() for line in archive.read(f"{top}/val/val_annotations.txt").decode().splitlines()]
        assert val_labels.tolist() == [classes[line[1]] for line in lines]
        one = archive.read(f"{top}/val/images/{lines[5][0]}")
        assert np.array_equal(val_images[5].permute(1, 2, 0), np.asarray(Image.open(BytesIO(one))))
    assert os.listdir(root) == ["tiny-imagenet-200.zip"]


def every_datamodule():
    """Of images that arrive in chunks."""
    every = [getattr(data, name) for name in data.__all__ if name.endswith("DataModule")]
    return [cls for cls in every if issubclass(cls, data.ChunkedDataModule) and cls is not data.ChunkedDataModule]


@pytest.mark.parametrize("datamodule", every_datamodule(), ids=lambda cls: cls.__name__)
def test_arguments_are_explicit_and_reach_the_base(datamodule):
    """The command line shows them; a data set with a name takes no data sets."""
    given = {"protocol": data.continual, "batch_size": 7, "seed": 3, "num_workers": 2, "transform": len}
    dm = datamodule(**given)
    assert {name: getattr(dm, name) for name in given} == given
    for wrong in ("train", "test", "mean", "num_classes"):
        with pytest.raises(TypeError, match=wrong):
            datamodule(**{wrong: None})


# The packaged part of Fashion-MNIST


def test_the_packaged_fashion_mnist():
    dm = ready(data.SmallFashionMNISTDataModule())
    for dataset, n in ((dm.train_set, 10_000), (dm.test_set, 2_000)):
        images, labels = dataset.tensors
        assert images.shape == (n, 1, 28, 28) and images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert labels.bincount().tolist() == [n // 10] * 10
        assert len(images.flatten(1).unique(dim=0)) > 0.99 * n  # the original has a few images twice
    pixels = dm.train_set.tensors[0] / 255
    found = pixels.mean().item(), pixels.std().item()
    assert found == pytest.approx((*dm.mean, *dm.std), abs=2e-3)  # those of all 60,000 images
    assert first_batch(dm)[0].shape == (256, 1, 28, 28)
    assert [len(dm.train_indices(chunk)) for chunk in range(2)] == [1_000, 10_000]
    notice = (ROOT / "lightning_fire" / "data" / "FASHION_MNIST_LICENSE.txt").read_text()
    assert "MIT License" in notice and "Zalando SE" in notice and "seeded with 0" in notice


@pytest.mark.skipif(not (ORIGINALS / "FashionMNIST").exists(), reason=f"the original is not in {ORIGINALS}")
@pytest.mark.parametrize(("part", "train", "per_class"), [("train", True, 1000), ("test", False, 200)])
def test_the_packaged_fashion_mnist_is_the_draw_that_it_says(part, train, per_class):
    maker = script("benchmarks/make_small_fashion_mnist.py")
    images, labels = maker.draw(str(ORIGINALS), train, per_class)
    with np.load(ROOT / maker.OUT, allow_pickle=False) as packaged:
        assert np.array_equal(packaged[f"{part}_images"], images)
        assert np.array_equal(packaged[f"{part}_labels"], labels)
    full = torchvision.datasets.FashionMNIST(ORIGINALS, train=train)
    order = torch.randperm(len(full), generator=torch.Generator().manual_seed(0)).tolist()
    taken, chosen = dict.fromkeys(range(10), 0), []
    for i in order:  # the same draw, one image at a time
        if taken[label := int(full.targets[i])] < per_class:
            taken[label] += 1
            chosen.append(i)
    assert np.array_equal(full.data[chosen].numpy(), images)


@pytest.mark.slow
@pytest.mark.skipif(not (ORIGINALS / "FashionMNIST").exists(), reason=f"the original is not in {ORIGINALS}")
def test_the_original_fashion_mnist():
    dm = ready(data.FashionMNISTDataModule(str(ORIGINALS)))
    assert (len(dm.train_set), len(dm.test_set)) == (60_000, 10_000)
    images = dm.train_set.tensors[0].double().div_(255)
    assert images.mean().item() == pytest.approx(dm.mean[0], abs=5e-5)
    assert images.std().item() == pytest.approx(dm.std[0], abs=5e-5)


# Missing and damaged files


@pytest.mark.parametrize("datamodule", SETS)
def test_a_missing_file_is_named_with_both_ways_to_get_it(datamodule, tmp_path):
    message = (
        rf"{datamodule.__name__} misses whole files in {tmp_path} \(.* and set download=True or put the files there"
    )
    with pytest.raises(RuntimeError, match=message):
        datamodule(str(tmp_path)).setup()


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
@files_of("CIFAR10")
def test_a_damaged_cifar_file_is_never_unpickled(root, name):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemError('unpickled')",))

    path = root / "cifar-10-batches-py" / name
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(RuntimeError, match=r"misses whole files in .*corrupted.*: delete damaged ones"):
        data.CIFAR10DataModule(str(root)).setup()


@pytest.mark.parametrize("keep", [0, 3, 10, -1, -800])
@pytest.mark.parametrize(
    "name",
    ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
)
@files_of("FashionMNIST")
def test_a_truncated_fashion_mnist_file(root, name, keep):
    path = root / "FashionMNIST" / "raw" / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RuntimeError, match=r"misses whole files in .*: delete damaged ones"):
        data.FashionMNISTDataModule(str(root)).setup()


@pytest.mark.parametrize("subset", [0, 101])
@files_of("FashionMNIST")
def test_an_impossible_subset(root, subset):
    with pytest.raises(ValueError, match=rf"`subset` must .*, got {subset}"):
        data.FashionMNISTDataModule(str(root), subset=subset).setup()


@pytest.mark.parametrize("damage", [lambda b: b[:1000], lambda b: b"", lambda b: b[:90] + b"x" + b[91:]])
@files_of("TinyImageNet")
def test_another_zip_than_the_published_one(root, tmp_path, damage):
    whole = (root / "tiny-imagenet-200.zip").read_bytes()
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(damage(whole))
    with pytest.raises(RuntimeError, match=r"misses whole files in .* \(tiny-imagenet-200\.zip, MD5 sum "):
        data.TinyImageNetDataModule(str(tmp_path)).setup()


# Download


@pytest.mark.parametrize("datamodule", SETS)
def test_torchvision_downloads_only_if_asked(datamodule, tmp_path, monkeypatch):
    calls = []
    source, asked = "image_sets.download_url", {"md5": data.TinyImageNetDataModule.md5}
    if datamodule is not data.TinyImageNetDataModule:
        source, asked = f"{datamodule.__name__}.source", {"download": True}
    monkeypatch.setattr(f"lightning_fire.data.{source}", staticmethod(lambda *args, **kw: calls.append((args, kw))))
    datamodule(str(tmp_path)).prepare_data()
    assert not calls
    datamodule(str(tmp_path), download=True).prepare_data()
    ((args, kwargs),) = calls
    assert str(tmp_path) in args and kwargs == asked
