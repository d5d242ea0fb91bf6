"""`lightning-fire prepare-text`."""

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lightning_fire.cli import run
from lightning_fire.text.sources import SPLITS, HubDataset, Piece, TextFiles
from lightning_fire.text.token_folder import TokenFolder
from lightning_fire.text.tokenizer import END_OF_TEXT, Encode, open_tokenizer

_BATCH = 1 << 21  # characters that are tokenised together, on all cores


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire prepare-text",
        allow_abbrev=False,
        description="Tokenise texts into a folder of train.bin, val.bin and meta.json, which TextDataModule reads. The"
        " files are there in full or not at all. After a stop, the same command continues where it was.",
    )
    add = parser.add_argument
    add("output", type=Path, help="output folder")
    files = "UTF-8 text, a document each: files, folders (their .txt files, at any depth), patterns"
    add("files", nargs="*", help=files)
    add("--dataset", metavar="NAME[:CONFIG]", help="instead of files: a data set of Hugging Face")
    add("--column", help="of the data set, with the text (default: text)")
    add("--split", help="of the data set, to train on (default: train)")
    add("--val-split", help="of the data set, to validate with (default: documents held out of --split)")
    add("--tokenizer", default="bytes", help="bytes (default), gpt2, which is downloaded, or a tokenizer.json")
    end_of_text = f"ends each document (default: {END_OF_TEXT}, none for bytes); or none"
    add("--end-of-text", metavar="TOKEN", help=end_of_text)
    add("--val-share", type=float, help="of documents to hold out, in (0, 1) (default: 0.0005)")
    add("--seed", type=int, default=0, help="of the choice of those (default: 0)")
    add("--force", action="store_true", help="start again where the folder has other tokens")
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command; return the content of `meta.json`."""
    try:
        return run(parser(), args, _run)
    except KeyboardInterrupt:
        raise SystemExit("lightning-fire prepare-text: interrupted; the same command continues from there") from None


def _run(options: argparse.Namespace) -> dict[str, Any]:
    begin = time.perf_counter()
    about, encode = open_tokenizer(options.tokenizer, options.end_of_text)
    source, held_out = _source(options)
    folder = TokenFolder(options.output, about, {**about, **held_out, **source.identity}, options.force)
    if not (complete := folder.meta is not None):
        if folder.tokens:
            print(f"{options.output}: continuing after {folder.tokens:,} tokens")
        with folder:
            _tokenize(source, encode, folder)
    meta = folder.meta
    train, val = (meta["splits"][split] for split in SPLITS)
    end = "; it is complete and was not changed" if complete else f", {time.perf_counter() - begin:.1f} s"
    print(
        f"{options.output}: {train['tokens']:,} tokens of {train['documents']:,} documents to train on,"
        f" {val['tokens']:,} of {val['documents']:,} to validate with; {meta['tokenizer']},"
        f" {meta['vocab_size']:,} in all, {meta['dtype']}{end}"
    )
    return meta


def _source(options: argparse.Namespace) -> tuple[TextFiles | HubDataset, dict[str, Any]]:
    """Check the options that name a text; return it, and the settings by which documents are held out."""
    if bool(options.files) == bool(options.dataset):
        raise ValueError("name files, or a data set: prepare-text OUTPUT FILES..., or OUTPUT --dataset NAME")
    for name in ("column", "split", "val_split"):
        if options.files and getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} belongs to --dataset")
    if options.val_split and options.val_share is not None:
        raise ValueError("--val-share and --val-split exclude each other")
    share = 0.0005 if options.val_share is None else options.val_share
    if not 0 < share < 1:
        raise ValueError(f"--val-share must be in (0, 1), got {share}")
    held_out = {} if options.val_split else {"seed": options.seed, "val_share": share}
    if options.files:
        return TextFiles(options.files, options.seed, share), held_out
    column, split = options.column or "text", options.split or "train"
    return HubDataset(options.dataset, column, split, options.val_split, options.seed, share), held_out


def _tokenize(source: TextFiles | HubDataset, encode: Encode, folder: TokenFolder) -> None:
    if folder.state["finished"]:
        return
    split, done, _ = position = folder.state["position"]
    initial = source.before[split] + done
    with tqdm(total=source.total, initial=initial, unit=source.unit, unit_scale=True, disable=None) as bar:
        for batch in _batches(source.pieces(position)):
            folder.write(batch, encode([piece.text for piece in batch]))
            split, done, _ = batch[-1].following
            bar.update(source.before[split] + done - bar.n)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
