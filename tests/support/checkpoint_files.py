"""Small checkpoints, and the commands on them."""

import json
from pathlib import Path

import pytest
import torch

from lightning_fire.checkpoints import Stored
from lightning_fire.checkpoints.stored import stored_tensors
from lightning_fire.cli import main

WORDS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def small_state(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A convolution, two Linear layers, a norm, an embedding and a counter."""
    return {
        "stem.weight": draw(6, 4, 3, 3, seed=1, dtype=dtype),
        "norm.weight": draw(6, seed=2, dtype=dtype),
        "norm.num_batches_tracked": torch.tensor(3),
        "embed.weight": draw(9, 4, seed=3, dtype=dtype),
        "fc.weight": draw(5, 6, seed=4, dtype=dtype),
        "fc.bias": draw(5, seed=5, dtype=dtype),
        "head.weight": draw(3, 5, seed=6, dtype=dtype),
    }


TAKEN = ("stem.weight", "fc.weight", "head.weight")


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_safetensors(path: Path, state: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    """In the order of `state`, which the usual writer would sort."""
    header: dict = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, tensor in state.items():
        end = position + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": WORDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(map(raw, state.values())))
    return path


def header_of(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: 8 + int.from_bytes(content[:8], "little")]


def load(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def stored(state: dict[str, torch.Tensor]) -> list[Stored]:
    return stored_tensors(state)


def reinit(*words: object):
    return main(["reinit", *map(str, words)])


def error_of(*words: object) -> str:
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    message = str(leaving.value)
    assert message.startswith(f"lightning-fire {words[0]}: error: ")
    assert "\n" not in message
    return message
