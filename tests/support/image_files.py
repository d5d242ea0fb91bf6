"""Writes small files in the on-disk formats of the image sets, for tests that must not download.

Each function writes into `root` what the DataModule of that name reads there. CIFAR's sums are known to torchvision by
heart: `write_cifar10` and `write_cifar100` return the class attributes that have to be patched on torchvision's class,

    for name, value in write_cifar10(root).items():
        monkeypatch.setattr(torchvision.datasets.CIFAR10, name, value)
"""

import hashlib
import pickle
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def random_images(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def write_cifar10(root: Path, per_batch: int = 20, test: int = 20) -> dict:
    """Five training batches and a test batch; sample i of each has label i modulo 10."""
    folder = Path(root) / "cifar-10-batches-py"
    sizes = {f"data_batch_{i}": per_batch for i in range(1, 6)} | {"test_batch": test}
    sums = {}
    for seed, (name, n) in enumerate(sizes.items()):
        content = {"data": random_images(n, 3072, seed=seed), "labels": [i % 10 for i in range(n)]}
        sums[name] = _pickle(folder / name, content)
    names = {"label_names": [f"class {i}" for i in range(10)]}
    return {
        "train_list": [[name, sums[name]] for name in sizes if name != "test_batch"],
        "test_list": [["test_batch", sums["test_batch"]]],
        "meta": {"filename": "batches.meta", "key": "label_names", "md5": _pickle(folder / "batches.meta", names)},
    }


def write_cifar100(root: Path, train: int = 200, test: int = 100) -> dict:
    """A training and a test file; sample i of each has label i modulo 100."""
    folder = Path(root) / "cifar-100-python"
    sums = {
        name: _pickle(
            folder / name,
            {
                "data": random_images(n, 3072, seed=seed),
                "fine_labels": [i % 100 for i in range(n)],
                "coarse_labels": [i % 20 for i in range(n)],
            },
        )
        for seed, (name, n) in enumerate({"train": train, "test": test}.items())
    }
    names = {"fine_label_names": [f"class {i}" for i in range(100)]}
    return {
        "train_list": [["train", sums["train"]]],
        "test_list": [["test", sums["test"]]],
        "meta": {"filename": "meta", "key": "fine_label_names", "md5": _pickle(folder / "meta", names)},
    }


def write_fashion_mnist(root: Path, train: int = 100, test: int = 20) -> None:
    """Four idx files; image i of each part has label i modulo 10."""
    folder = Path(root) / "FashionMNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, n) in enumerate({"train": train, "t10k": test}.items()):
        images, labels = random_images(n, 28, 28, seed=seed), np.arange(n, dtype=np.uint8) % 10
        (folder / f"{part}-images-idx3-ubyte").write_bytes(_idx_header(images) + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(_idx_header(labels) + labels.tobytes())


def tiny_imagenet_members(classes: int = 200, per_class: int = 2, val: int = 20) -> dict[str, bytes]:
    """Path and content of each file in a small tiny-imagenet-200.zip; the first training image is grey."""
    wnids = [f"n{90000000 - 7 * i:08d}" for i in range(classes)]  # not in sorted order, like the original
    top = "tiny-imagenet-200"
    members = {f"{top}/wnids.txt": "".join(f"{wnid}\n" for wnid in wnids).encode()}
    for c, wnid in enumerate(wnids):
        names = [f"{wnid}_{i}.JPEG" for i in range(per_class)]
        members[f"{top}/train/{wnid}/{wnid}_boxes.txt"] = "".join(f"{name}\t0\t0\t63\t63\n" for name in names).encode()
        for i, name in enumerate(names):
            members[f"{top}/train/{wnid}/images/{name}"] = jpeg(c * per_class + i, grey=c == i == 0)
    lines = [f"val_{i}.JPEG\t{wnids[i % classes]}\t0\t0\t63\t63\n" for i in range(val)]
    members[f"{top}/val/val_annotations.txt"] = "".join(lines).encode()
    for i in range(val):
        members[f"{top}/val/images/val_{i}.JPEG"] = jpeg(10_000 + i)
    members[f"{top}/test/images/test_0.JPEG"] = jpeg(20_000)  # without a label, so never read
    return members


def write_tiny_imagenet(root: Path, **sizes: int) -> dict[str, str]:
    """The original's single zip file, with all 200 classes; return its sum as an attribute of the data set."""
    path = Path(root) / "tiny-imagenet-200.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in tiny_imagenet_members(**sizes).items():
            archive.writestr(name, content)
    return {"md5": hashlib.md5(path.read_bytes()).hexdigest()}


def jpeg(seed: int, size: tuple[int, int] = (64, 64), grey: bool = False) -> bytes:
    """An image of one colour, which depends on the seed: survives JPEG."""
    colour = np.random.default_rng(seed).integers(0, 256, 3)
    pixels = np.full((size[1], size[0], 3), colour, dtype=np.uint8)
    image = Image.fromarray(pixels[..., 0] if grey else pixels)
    buffer = BytesIO()
    image.save(buffer, format="JPEG", quality=95)
    return buffer.getvalue()


def _pickle(path: Path, content: dict) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def _idx_header(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
