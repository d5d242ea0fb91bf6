"""Token files on disk, as nanoGPT's and our own `prepare` write them."""

import json
from pathlib import Path

import numpy as np


def write_tokens(
    folder: Path, train: np.ndarray, val: np.ndarray, dtype: str = "uint16", meta: bool = True, vocab_size: int = 256
) -> Path:
    """Write `train.bin`, `val.bin` and, if asked to, `meta.json`; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, tokens in (("train", train), ("val", val)):
        (folder / f"{split}.bin").write_bytes(np.asarray(tokens, dtype=np.dtype(dtype).newbyteorder("<")).tobytes())
    if meta:
        splits = {split: {"tokens": len(tokens), "documents": 1} for split, tokens in (("train", train), ("val", val))}
        about = {"format": 1, "dtype": dtype, "vocab_size": vocab_size, "end_of_text": 0, "tokenizer": "own"}
        (folder / "meta.json").write_text(json.dumps({**about, "splits": splits}))
    return folder
