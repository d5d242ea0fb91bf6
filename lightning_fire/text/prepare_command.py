"""`lightning-fire prepare-text`."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from lightning_fire.checkpoints.printable import printable
from lightning_fire.text.hub_dataset import HubDataset
from lightning_fire.text.pieces import Piece
from lightning_fire.text.text_files import TextFiles
from lightning_fire.text.token_folder import TokenFolder
from lightning_fire.text.tokenizer import END_OF_TEXT, ByteTokenizer, TokenizerFile

_BATCH = 1 << 21  # characters that are tokenised together, on all cores


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire prepare-text",
        allow_abbrev=False,
        description="Tokenise texts into a folder of train.bin, val.bin and meta.json, which TextDataModule reads. The"
        " files are there in full or not at all. Stopped or killed, the same command goes on where it was.",
    )
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument(
        "files",
        nargs="*",
        help="UTF-8 text, a document each: files, folders (their .txt files, at any depth), patterns",
    )
    parser.add_argument("--dataset", metavar="NAME[:CONFIG]", help="instead of files: a data set of Hugging Face")
    parser.add_argument("--column", help="of the data set, with the text (default: text)")
    parser.add_argument("--split", help="of the data set, to train on (default: train)")
    parser.add_argument(
        "--val-split", help="of the data set, to validate with (default: documents held out of --split)"
    )
    parser.add_argument(
        "--tokenizer", default="bytes", help="bytes (default), gpt2, which is downloaded, or a tokenizer.json"
    )
    parser.add_argument(
        "--end-of-text", metavar="TOKEN", help=f"ends each document (default: {END_OF_TEXT}, none for bytes); or none"
    )
    parser.add_argument("--val-share", type=float, help="of documents to hold out, in (0, 1) (default: 0.0005)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of those (default: 0)")
    parser.add_argument("--force", action="store_true", help="begin anew where there are other tokens")
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command."""
    options = parser().parse_args(args)
    try:
        return _run(options)
    except KeyboardInterrupt:
        raise SystemExit("lightning-fire prepare-text: interrupted; the same command goes on from there") from None
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        raise SystemExit(f"lightning-fire prepare-text: error: {printable(str(error))}") from None


def _run(options: argparse.Namespace) -> dict[str, Any]:
    begin = time.perf_counter()
    _check(options)
    tokenizer = _tokenizer(options)
    source = _source(options)
    about = {
        "dtype": tokenizer.dtype,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.name,
        "end_of_text": tokenizer.end_of_text,
    }
    held_out = {} if options.val_split else {"seed": options.seed, "val_share": _val_share(options)}
    folder = TokenFolder(options.output, about, {**about, **held_out, **source.identity}, source.start, options.force)
    if folder.meta:
        print(f"{_described(options.output, folder.meta)}; it is complete, and left as it is")
        return folder.meta
    if folder.position != source.start:
        print(f"{options.output}: going on after {folder.tokens:,} tokens")
    with folder:
        _tokenize(source, tokenizer, folder)
        meta = folder.finish()
    print(f"{_described(options.output, meta)}, {time.perf_counter() - begin:.1f} s")
    return meta


def _check(options: argparse.Namespace) -> None:
    if bool(options.files) == bool(options.dataset):
        raise ValueError("name files, or a data set: prepare-text OUTPUT FILES..., or OUTPUT --dataset NAME")
    for name in ("column", "split", "val_split"):
        if options.files and getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} belongs to --dataset")
    if options.val_split and options.val_share is not None:
        raise ValueError("--val-share and --val-split exclude each other")
    if not 0 < _val_share(options) < 1:
        raise ValueError(f"--val-share must be in (0, 1), got {options.val_share}")


def _tokenizer(options: argparse.Namespace) -> ByteTokenizer | TokenizerFile:
    token = None if options.end_of_text == "none" else options.end_of_text or END_OF_TEXT
    if options.tokenizer != "bytes":
        return TokenizerFile(options.tokenizer, token)
    if options.end_of_text not in (None, "none"):
        raise ValueError(f"bytes have no token {options.end_of_text}: --end-of-text needs another --tokenizer")
    return ByteTokenizer()


def _source(options: argparse.Namespace) -> TextFiles | HubDataset:
    if options.files:
        return TextFiles(options.files, options.seed, _val_share(options))
    column, split = options.column or "text", options.split or "train"
    return HubDataset(options.dataset, column, split, options.val_split, options.seed, _val_share(options))


def _val_share(options: argparse.Namespace) -> float:
    return 0.0005 if options.val_share is None else options.val_share


def _tokenize(source: TextFiles | HubDataset, tokenizer: ByteTokenizer | TokenizerFile, folder: TokenFolder) -> None:
    if folder.finished:
        return
    done = source.done(folder.position)
    with tqdm(total=source.total, initial=done, unit=source.unit, unit_scale=True, disable=None) as bar:
        batch: list[Piece] = []
        size = 0
        for piece in source.pieces(folder.position):
            batch.append(piece)
            size += len(piece.text)
            if size >= _BATCH:
                _write(batch, tokenizer, folder)
                bar.update(source.done(folder.position) - bar.n)
                batch, size = [], 0
        if batch:
            _write(batch, tokenizer, folder)
            bar.update(source.done(folder.position) - bar.n)


def _write(batch: list[Piece], tokenizer: ByteTokenizer | TokenizerFile, folder: TokenFolder) -> None:
    tokens: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    documents = {"train": 0, "val": 0}
    for piece, found in zip(batch, tokenizer.encode([piece.text for piece in batch]), strict=True):
        tokens[piece.split].append(found)
        if piece.ends:
            documents[piece.split] += 1
            if tokenizer.end_of_text is not None:
                tokens[piece.split].append(np.array([tokenizer.end_of_text]))
    folder.write(tokens, documents, batch[-1].following)


def _described(output: Path, meta: dict[str, Any]) -> str:
    train, val = meta["splits"]["train"], meta["splits"]["val"]
    return (
        f"{output}: {train['tokens']:,} tokens of {train['documents']:,} documents to train on, {val['tokens']:,} of"
        f" {val['documents']:,} to validate with; {meta['tokenizer']}, {meta['vocab_size']:,} in all, {meta['dtype']}"
    )
