"""`lightning-fire prepare-text`."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from lightning_fire.cli import run
from lightning_fire.text.documents import Documents, pieces, rows, text_files
from lightning_fire.text.token_folder import TokenFolder
from lightning_fire.text.tokenizer import END_OF_TEXT, Encode, open_tokenizer

_BATCH = 1 << 22  # characters that are tokenised together, on all cores


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire prepare-text",
        allow_abbrev=False,
        description="Tokenise texts into a folder of train.bin, val.bin and meta.json, which TextDataModule reads."
        " After a stop, the same command continues where it was.",
    )
    add = parser.add_argument
    add("output", type=Path, help="output folder")
    files = "UTF-8 text, a document each: files, or folders (their .txt files, at any depth)"
    add("files", nargs="*", help=files)
    add("--dataset", metavar="NAME[:CONFIG]", help="instead of files: a data set of Hugging Face")
    add("--column", default="text", help="of the data set, with the text (default: text)")
    add("--split", default="train", help="of the data set, to train on (default: train)")
    add("--val-split", help="of the data set, to validate with (default: documents held out of --split)")
    add("--tokenizer", default="bytes", help="bytes (default), gpt2, which is downloaded, or a tokenizer.json")
    end_of_text = f"ends each document (default: {END_OF_TEXT}, none for bytes); or none"
    add("--end-of-text", metavar="TOKEN", help=end_of_text)
    add("--val-share", type=float, default=0.0005, help="of documents to hold out, in (0, 1) (default: 0.0005)")
    add("--seed", type=int, default=2357, help="of the choice of those (default: 2357, as nanoGPT)")
    add("--force", action="store_true", help="start again, also where the folder has other tokens")
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command; return the content of `meta.json`."""
    try:
        return run(parser(), args, _run)
    except KeyboardInterrupt:
        raise SystemExit("lightning-fire prepare-text: interrupted; the same command continues from there") from None


def _run(options: argparse.Namespace) -> dict[str, Any]:
    about, encode = open_tokenizer(options.tokenizer, options.end_of_text)
    documents = _documents(options)
    settings = {"tokenizer": about["tokenizer"], "end_of_text": about["end_of_text"], **documents.settings}
    folder = TokenFolder(options.output, about, settings, options.force)
    if folder.meta["complete"]:
        print(f"{options.output} is complete and was not changed")
    else:
        _tokenize(documents, encode, folder)
    train, val = (folder.meta["splits"][split] for split in ("train", "val"))
    print(
        f"{options.output}: {train['tokens']:,} tokens of {train['documents']:,} documents to train on,"
        f" {val['tokens']:,} of {val['documents']:,} to validate with; {about['tokenizer']},"
        f" {about['vocab_size']:,} in all, {about['dtype']}"
    )
    return folder.meta


def _documents(options: argparse.Namespace) -> Documents:
    if bool(options.files) == bool(options.dataset):
        raise ValueError("name files, or a data set: prepare-text OUTPUT FILES..., or OUTPUT --dataset NAME")
    if not 0 < options.val_share < 1:
        raise ValueError(f"--val-share must be in (0, 1), got {options.val_share}")
    if options.files and options.val_split:
        raise ValueError("--val-split belongs to --dataset")
    held_out = options.val_share, options.seed
    if options.files:
        return text_files(options.files, *held_out)
    return rows(options.dataset, options.column, options.split, options.val_split, *held_out)


def _tokenize(documents: Documents, encode: Encode, folder: TokenFolder) -> None:
    """Write the tokens of the batches that the folder does not have yet."""
    end = folder.meta["end_of_text"]
    end = np.array([] if end is None else [end], np.int64)
    folder.begin()
    with tqdm(total=documents.size, unit="B", unit_scale=True, disable=None) as bar:
        for number, (split, batch) in enumerate(_batches(documents)):
            texts, ends = zip(*batch, strict=True)
            bar.update(sum(len(text.encode()) for text in texts))
            if number >= folder.meta["batches"]:
                tokens = [part for found, last in zip(encode(texts), ends, strict=True) for part in (found, end[:last])]
                folder.write(split, tokens, sum(ends))
    folder.finish()


def _batches(documents: Documents) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Yield batches of pieces of one split, each with whether it ends a document."""
    for split, texts in (("train", documents.train), ("val", documents.val)):
        batch, size = [], 0
        for piece in chain.from_iterable(map(pieces, texts)):
            batch.append(piece)
            size += len(piece[0])
            if size >= _BATCH:
                yield split, batch
                batch, size = [], 0
        if batch:
            yield split, batch
