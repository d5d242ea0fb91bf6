"""Formats that are not supported, recognized by their first bytes or name, with advice."""

import zipfile
from pathlib import Path

_EXPORT = "export the model from the training framework as .safetensors, or by torch.save of its state_dict()"
_KERAS = "in Keras on torch, save by torch.save(model.state_dict(), …)"
_UNPACK = "unpack it first"
_FIRST_BYTES = {  # offset and bytes: format, advice
    (0, b"GGUF"): ("GGUF, a format for inference", _EXPORT),
    (0, b"\x89HDF\r\n\x1a\n"): ("HDF5, as Keras writes it", _KERAS),
    (0, b"\x93NUMPY"): ("a NumPy array", "torch.save a dict from names to tensors"),
    (4, b"TFL3"): ("TensorFlow Lite", _EXPORT),
    (4, b"ET12"): ("ExecuTorch", _EXPORT),
    (0, b"ftrt"): ("TensorRT", _EXPORT),
    (0, b"\x1f\x8b"): ("compressed by gzip", _UNPACK),
    (0, b"BZh"): ("compressed by bzip2", _UNPACK),
    (0, b"\xfd7zXZ\x00"): ("compressed by xz", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd"): ("compressed by zstd", _UNPACK),
    (0, b"7z\xbc\xaf"): ("a 7-Zip archive", _UNPACK),
    (257, b"ustar"): ("a tar archive", _UNPACK),
    (0, b"version https://git-lfs."): ("a pointer of Git LFS instead of the weights", "git lfs pull fetches them"),
}
_SUFFIXES = {
    ".onnx": ("ONNX", _EXPORT),
    ".tflite": ("TensorFlow Lite", _EXPORT),
    ".pb": ("TensorFlow's SavedModel", _EXPORT),
    ".msgpack": ("msgpack, as Flax writes it", _EXPORT),
    ".mlmodel": ("Core ML", _EXPORT),
    ".engine": ("TensorRT", _EXPORT),
    ".trt": ("TensorRT", _EXPORT),
    ".distcp": ("a part of torch.distributed.checkpoint", "name its folder"),
}
_SAFETENSORS = "of safetensors"
_MOST = 512  # number of bytes to inspect


def require_format(path: Path, safetensors: bool = False) -> None:
    """Raise a ValueError that names the format of a file if it is known and unsupported."""
    found = _format_of(path)
    if safetensors and not found and zipfile.is_zipfile(path):
        found = "of torch.save", "give it the ending .pt"
    if found and not (safetensors and found[0] == _SAFETENSORS):
        raise ValueError(f"{path} is {found[0]}: {found[1]}")


def _format_of(path: Path) -> tuple[str, str] | None:
    with path.open("rb") as file:
        first = file.read(_MOST)
    for (offset, magic), found in _FIRST_BYTES.items():
        if first[offset : offset + len(magic)] == magic:
            return found
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    start = first.lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page or XML, not weights", "a download may have failed"
    if start.startswith((b"{", b"[")):
        return "JSON text, not weights", "name the file or the folder that holds the tensors"
    if first[8:9] == b"{" and int.from_bytes(first[:8], "little") < 10**8:
        return _SAFETENSORS, "give it the ending .safetensors"
    try:
        return _kind_of_zip(path) if zipfile.is_zipfile(path) else None
    except Exception:  # of a damaged archive, which `torch.load` will name
        return None


def _kind_of_zip(path: Path) -> tuple[str, str] | None:
    """Distinguish archives of `torch.save` from others."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    members = {name.partition("/")[2] or name for name in names}
    if "constants.pkl" in members:
        return "TorchScript, a program", "torch.save the state_dict() of the module that it was made of"
    if any(name.endswith(".npy") for name in names):
        return "an archive of NumPy arrays", "torch.save a dict from names to tensors"
    if "model.weights.h5" in names:
        return "a model of Keras", _KERAS
    if "archive_format" in members or "models/model.json" in members:
        return "a program of torch.export", "torch.save its state_dict"
    if "policy.pth" in names:
        return "an agent of Stable-Baselines3", f'its weights are zipfile.ZipFile("{path.name}").extract("policy.pth")'
    if "data.pkl" not in members:
        return "a zip archive, but not of torch.save", _UNPACK
    return None
