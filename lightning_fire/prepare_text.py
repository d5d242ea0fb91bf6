"""`lightning-fire prepare-text`: convert texts to token files, by `datasets` and `tokenizers`."""

import argparse
import hashlib
import json
import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from lightning_fire.atomic import flush
from lightning_fire.cli import run

try:
    import datasets
    import tokenizers
except ImportError as error:
    raise ImportError(f"prepare-text needs two libraries: pip install 'lightning-fire[text]' ({error})") from error

END_OF_TEXT = "<|endoftext|>"  # GPT-2's separator of documents, number 50256
PIECE = 1 << 15  # characters of a file that are tokenized as one text
_SHARD = 100_000  # documents, or pieces of files, that are tokenized again at most after a stop

Part = tuple[str, int, int, int]  # piece of a file: path, first byte, byte after the last, time (for the cache)
Splits = dict[str, tuple[datasets.Dataset, int]]  # `train` and `val`: texts, and the number of documents


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire prepare-text",
        allow_abbrev=False,
        description="Tokenize texts into a folder of train.bin, val.bin and meta.json, which TextDataModule reads."
        " If interrupted, the same command continues from Hugging Face's cache.",
    )
    add = parser.add_argument
    add("output", type=Path, help="output folder")
    files = "UTF-8 text files, one document each, or folders (their .txt files, at any depth)"
    add("files", nargs="*", help=files)
    add("--dataset", metavar="NAME[:CONFIG]", help="Hugging Face data set, instead of files")
    add("--column", default="text", help="column of the data set with the text (default: text)")
    add("--split", default="train", help="split of the data set for training (default: train)")
    add("--val-split", help="split of the data set for validation (default: documents held out of --split)")
    add("--tokenizer", default="bytes", help="bytes (default), gpt2, which is downloaded, or a tokenizer.json")
    end_of_text = f"token at the end of each document (default: {END_OF_TEXT}, none for bytes); or none"
    add("--end-of-text", metavar="TOKEN", help=end_of_text)
    add("--val-share", type=float, default=0.0005, help="fraction of documents to hold out (default: 0.0005)")
    add("--seed", type=int, default=2357, help="seed of the held-out documents (default: 2357, as nanoGPT)")
    add("--force", action="store_true", help="start again, even if the folder has other tokens")
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command; return the content of `meta.json`."""
    return run(parser(), args, _run)


def _run(options: argparse.Namespace) -> dict[str, Any]:
    if bool(options.files) == bool(options.dataset):
        raise ValueError("name files, or a data set: prepare-text OUTPUT FILES..., or OUTPUT --dataset NAME")
    if not 0 < options.val_share < 1:
        raise ValueError(f"--val-share must be in (0, 1), got {options.val_share}")
    if options.files and options.val_split:
        raise ValueError("--val-split belongs to --dataset")
    about, tokenizer = _open(options.tokenizer, options.end_of_text)
    splits, text = (_files if options.files else _rows)(options)
    names = ("dataset", "column", "split", "val_split", "val_share", "seed")
    settings = {"text": text, **about, **{name: getattr(options, name) for name in names}}
    folder, file = options.output, options.output / "meta.json"
    if (folder / "train.bin").exists() and not options.force:
        meta: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if meta.get("settings") != settings:
            raise FileExistsError(
                f"{folder} contains tokens from a different source, now {settings}: --force starts again"
            )
        print(f"{folder} is complete and was not changed")
    else:
        meta = {**about, "settings": settings, "splits": {}}
        _write(folder, meta, splits, tokenizer)
    train, val = meta["splits"]["train"], meta["splits"]["val"]
    print(
        f"{folder}: {train['tokens']:,} tokens of {train['documents']:,} documents to train on,"
        f" {val['tokens']:,} of {val['documents']:,} to validate with; {meta['tokenizer']},"
        f" {meta['vocab_size']:,} in all, {meta['dtype']}"
    )
    return meta


def _files(options: argparse.Namespace) -> tuple[Splits, str]:
    """Return files of UTF-8 text in pieces; from a single file the last lines are held out."""
    parts: dict[str, tuple[int, int, int]] = {}
    for name in map(Path, options.files):
        found = sorted(name.rglob("*.txt")) if name.is_dir() else [name]
        if not found or not all(file.is_file() for file in found):
            raise FileNotFoundError(f"{name} is neither a file nor a folder with .txt files")
        parts |= {str(file.absolute()): (0, file.stat().st_size, file.stat().st_mtime_ns) for file in found}
    every = [(path, *part) for path, part in parts.items()]
    if len(every) == 1:
        path, _, size, time = every[0]
        start = _start_of_last_lines(path, size, options.val_share)
        splits = {"train": [(path, 0, start, time)], "val": [(path, start, size, time)]}
    else:
        splits = {name: [every[number] for number in numbers] for name, numbers in _drawn(len(every), options).items()}
    digest = hashlib.sha256(repr(every).encode(errors="surrogateescape")).hexdigest()[:16]
    try:
        return {
            name: (datasets.Dataset.from_generator(_pieces, gen_kwargs={"parts": part}), len(part))
            for name, part in splits.items()
        }, f"{len(every)} files of {sum(size for _, _, size, _ in every)} bytes, {digest}"
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _rows(options: argparse.Namespace) -> tuple[Splits, str]:
    """Return the rows of a text column of a Hugging Face data set, one document each."""
    path, _, config = options.dataset.partition(":")
    names = [name for name in (options.split, options.val_split) if name]
    try:
        found = [datasets.load_dataset(path, config or None, split=name) for name in names]
    except Exception as error:  # errors of any library that uses the network
        brief = next(iter(str(error).splitlines()), "")
        raise RuntimeError(f"{options.dataset} cannot be loaded: {type(error).__name__}: {brief}") from error
    if options.column not in found[0].column_names:
        columns = ", ".join(found[0].column_names)
        raise ValueError(f"{options.dataset} has no column {options.column!r}, but {columns}: --column NAME")
    found = [part.select_columns([options.column]) for part in found]
    text = f"{sum(map(len, found))} rows"
    if options.val_split is None:
        found = [found[0].select(numbers) for numbers in _drawn(len(found[0]), options).values()]
    return {name: (part, len(part)) for name, part in zip(("train", "val"), found, strict=True)}, text


def _drawn(documents: int, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Draw the documents for training and for validation, as `datasets` and nanoGPT do."""
    order, held_out = np.random.default_rng(options.seed).permutation(documents), ceil(documents * options.val_share)
    if held_out == documents:
        raise ValueError(f"no document is left for training, of {documents} with --val-share {options.val_share:g}")
    return {"train": order[held_out:], "val": order[:held_out]}


def _start_of_last_lines(path: str, size: int, share: float) -> int:
    """Return the byte after the first line end in the last fraction of a file, or after the last one before it."""
    if not size:
        raise ValueError(f"no text in {path}")
    target = size - max(1, round(size * share))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = text.find(b"\n", target) + 1
        if not 0 < start < size:
            start = text.rfind(b"\n", 0, target) + 1
    if not start:
        raise ValueError(f"no document is left for validation: {path} is the only one, and has a single line")
    return start


def _pieces(parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """Cut files at tokenizer boundaries; yield each piece, and whether it ends its document."""
    for path, at, end, _ in parts:
        piece = ""
        with open(path, "rb") as file:
            file.seek(at)
            for line in islice(file, None if at < end else 0):
                try:
                    piece += line.decode()
                except UnicodeDecodeError as error:
                    position = at + error.start
                    raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {position}") from None
                if len(piece) > PIECE:
                    yield {"text": piece[: cut(piece)], "last": False}
                    piece = piece[cut(piece) :]
                at += len(line)
                if at >= end:
                    break
        yield {"text": piece, "last": True}


def cut(text: str) -> int:
    """Return the end of a piece: a position at which a tokenizer that splits words at spaces always splits.

    This is after the last single line end, or without one before the last white space. With the byte pair encodings of
    GPT-2 and its successors, the pieces then have the same tokens as the whole text.

    Example:
        >>> text = "one two\\nthree four"
        >>> text[: cut(text)], "no lines"[: cut("no lines")], cut("oneword")
        ('one two\\n', 'no', 7)
    """
    found = re.match(r".*\S\n(?=\S)", text, re.S) or re.match(r".*\S(?=\s)", text, re.S)
    return found.end() if found else len(text)


def _open(name: str, end_of_text: str | None) -> tuple[dict[str, Any], str | None]:
    """Return the entries of a tokenizer in `meta.json`, and its file, None for bytes."""
    if name == "bytes":
        if end_of_text not in (None, "none"):
            raise ValueError(f"bytes have no token {end_of_text}: --end-of-text needs another --tokenizer")
        return {"dtype": "uint8", "vocab_size": 256, "tokenizer": "bytes", "end_of_text": None}, None
    try:
        if not Path(name).is_file() and not name.endswith(".json"):
            origin, tokenizer = name, tokenizers.Tokenizer.from_pretrained(name)
        else:
            content = Path(name).read_bytes()
            origin = f"tokenizer.json {hashlib.sha256(content).hexdigest()[:16]}"
            tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises only Exception
        brief = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{name} is neither a tokenizer.json nor one that can be downloaded ({brief})") from error
    numbers = tokenizer.get_vocab(with_added_tokens=True)
    end = None if end_of_text == "none" else end_of_text or END_OF_TEXT
    if end is not None and end not in numbers:
        raise ValueError(f"{name} has no token {end}: --end-of-text names another one, or none")
    size = max(numbers.values()) + 1
    dtype = "uint16" if size <= 1 << 16 else "uint32"
    number = None if end is None else numbers[end]
    return {"dtype": dtype, "vocab_size": size, "tokenizer": origin, "end_of_text": number}, tokenizer.to_str()


@lru_cache(1)
def _encoder(tokenizer: str | None) -> Callable[[list[str]], list[Any]]:
    """Return a function from texts to tokens; special tokens in a text are treated as text, as in nanoGPT."""
    if tokenizer is None:
        return lambda texts: [np.frombuffer(text.encode(), np.uint8) for text in texts]
    encoder = tokenizers.Tokenizer.from_str(tokenizer)
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    if getattr(encoder.model, "dropout", None):
        encoder.model.dropout = None
    return lambda texts: [found.ids for found in encoder.encode_batch_fast(texts, add_special_tokens=False)]


def _tokenize(texts: list[str | None], ends: list[bool] | None = None, **how: Any) -> dict[str, list[np.ndarray]]:
    found = _encoder(how["tokenizer"])([text or "" for text in texts])
    end = [] if how["end"] is None else [how["end"]]
    lasts = ends or [True] * len(texts)
    return {"tokens": [np.append(x, end[:last]).astype(how["dtype"]) for x, last in zip(found, lasts, strict=True)]}


def _write(folder: Path, meta: dict[str, Any], splits: Splits, tokenizer: str | None) -> None:
    """Write the three files; add the numbers of tokens and documents to `meta`."""
    folder.mkdir(parents=True, exist_ok=True)
    how = {"tokenizer": tokenizer, "end": meta["end_of_text"], "dtype": meta["dtype"]}
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value(meta["dtype"]))})
    for split, (texts, documents) in splits.items():
        size, shards, columns = 0, ceil(len(texts) / _SHARD), texts.column_names
        options = {"input_columns": columns, "remove_columns": columns, "features": features, "fn_kwargs": how}
        with (folder / f"{split}.bin.part").open("wb") as file:
            for shard in (texts.shard(shards, number, contiguous=True) for number in range(shards)):
                tokens = shard.map(_tokenize, batched=True, **options).with_format("arrow")
                for chunk in (chunk for table in tokens.iter(1000) for chunk in table["tokens"].chunks):
                    size += file.write(chunk.flatten().to_numpy())
        if not size:
            raise ValueError(f"there is no text for {split}.bin")
        meta["splits"][split] = {"tokens": size // np.dtype(meta["dtype"]).itemsize, "documents": documents}
    (folder / "meta.json.part").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    (folder / "train.bin").unlink(missing_ok=True)  # without it the folder is not complete
    for name in ("meta.json", "val.bin", "train.bin"):
        flush(folder / f"{name}.part")
        os.replace(folder / f"{name}.part", folder / name)
        flush(folder)
