"""`lightning-fire prepare-text`: the tokens are those of the text, for any pieces, interruptions and kills."""

import importlib
import json
import os
import sys
import tracemalloc
from itertools import count
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from fuzz import fuzz
from hypothesis import given
from hypothesis import strategies as st
from killed_processes import KILLED, lived
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lightning_fire import prepare_text
from lightning_fire.cli import main as cli
from lightning_fire.data.token_source import open_source
from lightning_fire.prepare_text import cut

VERSE = "In the beginning was the Word, and the Word was with God:\n\n  1 and the Word wasn't far – é.\r\n\tThe same\n"


def prepare(*words):
    return cli(["prepare-text", *map(str, words)])


def trained_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([VERSE], trainer)
    return tokenizer


BPE = trained_bpe()
END = BPE.token_to_id("<|endoftext|>")


def tokens(folder: Path, split: str) -> np.ndarray:
    """The tokens of a split, in the way that training reads them."""
    found = getattr(open_source(folder), split)
    return found.blocks(np.array([0]), len(found))[0].numpy()


def expected(texts: list[str], numbers: np.ndarray) -> list[int]:
    """The tokens of some of the texts, each with the end of a text."""
    return [token for number in numbers for token in (*BPE.encode(texts[number]).ids, END)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def bpe_file(tmp_path):
    BPE.save(str(tmp_path / "bpe.json"))
    return tmp_path / "bpe.json"


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(prepare_text, "PIECE", 64)
    monkeypatch.setattr(prepare_text, "_SHARD", 10)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def documents(tmp_path):
    """A folder of 12 texts, one of them empty."""
    folder = tmp_path / "texts"
    (folder / "deeper").mkdir(parents=True)
    for number in range(12):
        text = "" if number == 7 else f"{number} {VERSE * (number % 4 + 1)}"
        (folder / ("deeper" if number % 2 else "") / f"{number:02d}.txt").write_bytes(text.encode())
    return folder


# the tokens


def test_bytes_of_one_file_are_cut_at_a_line(tmp_path, capsys):
    text = "".join(f"line {number} é\n" for number in range(1000)).encode()
    (tmp_path / "book.md").write_bytes(text)
    meta = prepare(tmp_path / "out", tmp_path / "book.md", "--val-share", "0.1")
    train, val = tokens(tmp_path / "out", "train"), tokens(tmp_path / "out", "val")
    assert bytes(train.tolist()) + bytes(val.tolist()) == text
    assert train[-1] == ord("\n")
    assert len(text) * 0.1 - 12 <= len(val) <= len(text) * 0.1
    assert meta == json.loads((tmp_path / "out/meta.json").read_text())
    assert (meta["dtype"], meta["vocab_size"], meta["tokenizer"], meta["end_of_text"]) == ("uint8", 256, "bytes", None)
    assert meta["splits"]["train"] == {"tokens": len(train), "documents": 1}
    assert set(contents(tmp_path / "out")) == {"train.bin", "val.bin", "meta.json"}
    assert f"{len(train):,} tokens of 1 documents to train on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "val"), [(b"a\nb", b"b"), (b"a\nb\n", b"b\n"), (b"a\n\n", b"\n"), (b"a\r\nbc", b"bc")]
)
def test_the_last_line_is_the_least_that_is_held_out(tmp_path, text, val):
    (tmp_path / "a.txt").write_bytes(text)
    prepare(tmp_path / "out", tmp_path / "a.txt")
    assert (tmp_path / "out/val.bin").read_bytes() == val
    assert (tmp_path / "out/train.bin").read_bytes() + val == text


def test_documents_are_held_out_by_seed(tmp_path, documents, bpe_file, small_pieces):
    texts = [file.read_bytes().decode() for file in sorted(documents.rglob("*.txt"))]
    order = np.random.default_rng(3).permutation(12)
    words = ["--tokenizer", bpe_file, "--val-share", 0.12, "--seed", 3]
    meta = prepare(tmp_path / "out", documents, documents / "00.txt", *words)  # a file that is named twice
    for split, numbers in (("train", order[2:]), ("val", order[:2])):
        assert tokens(tmp_path / "out", split).tolist() == expected(texts, numbers)
        assert meta["splits"][split]["documents"] == len(numbers)
    assert (meta["dtype"], meta["vocab_size"], meta["end_of_text"]) == ("uint16", BPE.get_vocab_size(), END)


def test_a_separator_in_a_text_is_text_and_another_may_be_chosen(tmp_path, bpe_file):
    (tmp_path / "a.txt").write_text("one <|endoftext|> two\nthree\n")
    prepare(tmp_path / "out", tmp_path / "a.txt", "--tokenizer", bpe_file)
    found = tokens(tmp_path / "out", "train")
    assert np.flatnonzero(found == END).tolist() == [len(found) - 1]
    assert BPE.decode(found.tolist(), skip_special_tokens=False) == "one <|endoftext|> two\n<|endoftext|>"
    for name, number in (("none", []), ("!", [BPE.token_to_id("!")])):
        prepare(tmp_path / name, tmp_path / "a.txt", "--tokenizer", bpe_file, "--end-of-text", name)
        assert tokens(tmp_path / name, "train").tolist() == [*found[:-1], *number]


@pytest.mark.parametrize(("size", "dtype"), [(65536, "uint16"), (65537, "uint32")])
def test_the_vocabulary_decides_the_type(tmp_path, size, dtype):
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text(f"w5 w{size - 1} w1 w2\nunknown\n")
    words = ["--tokenizer", tmp_path / "words.json", "--end-of-text", "none"]
    meta = prepare(tmp_path / "out", tmp_path / "a.txt", *words)
    assert (meta["dtype"], meta["vocab_size"]) == (dtype, size)
    assert tokens(tmp_path / "out", "train").tolist() == [5, size - 1, 1, 2]
    assert tokens(tmp_path / "out", "val").tolist() == [0]


@fuzz(300)
@given(st.text(alphabet="abé1.' \n\t\r\u2003", max_size=60))
def test_both_sides_of_a_cut_have_the_tokens_of_the_whole(text):
    at = cut(text)
    assert at == len(text) or BPE.encode(text[:at]).ids + BPE.encode(text[at:]).ids == BPE.encode(text).ids


@pytest.mark.parametrize("text", [VERSE * 9, "a b " * 99, "a" * 500, "", "a\r\nb " * 60])
def test_pieces_have_the_tokens_of_the_whole(tmp_path, bpe_file, small_pieces, text):
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt").write_bytes(text.encode() + b"\nb")
    prepare(tmp_path / "out", tmp_path / "a.txt", tmp_path / "b.txt", "--tokenizer", bpe_file, "--seed", 0)
    assert tokens(tmp_path / "out", "train").tolist() == expected(
        [text, text + "\nb"], np.random.default_rng(0).permutation(2)[1:]
    )


@pytest.mark.slow(5)
def test_a_long_file_is_never_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_text, "PIECE", 256)  # 1000 of them are in memory
    peaks = []
    for megabytes in (1, 2):
        (tmp_path / "a.txt").write_bytes(b"abc def ghi jklm\n" * (megabytes << 15))
        tracemalloc.start()
        prepare(tmp_path / f"{megabytes}", tmp_path / "a.txt")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2


# data sets


@pytest.fixture
def data_set(tmp_path):
    """A data set of 60 rows, two of them without text, and a validation split."""
    texts = [f"row {number} {VERSE * (number % 5)}" for number in range(58)] + ["", None]
    (tmp_path / "set").mkdir()
    for split, lines in (("train", texts), ("validation", ["held out", "too"])):
        rows = (json.dumps({"text": text, "id": number}) for number, text in enumerate(lines))
        (tmp_path / f"set/{split}.jsonl").write_text("\n".join(rows))
    return tmp_path / "set", [text or "" for text in texts]


def test_rows_are_held_out_as_nanogpt_does(tmp_path, data_set, bpe_file, small_pieces):
    name, texts = data_set
    from datasets import Dataset

    split = Dataset.from_dict({"text": texts}).train_test_split(test_size=0.03, seed=2357, shuffle=True)
    meta = prepare(tmp_path / "out", "--dataset", name, "--tokenizer", bpe_file, "--val-share", 0.03)
    for ours, theirs in (("train", split["train"]["text"]), ("val", split["test"]["text"])):
        assert tokens(tmp_path / "out", ours).tolist() == expected(theirs, range(len(theirs)))
    assert meta["splits"]["val"]["documents"] == ceil(60 * 0.03) == 2


def test_a_data_set_with_its_own_validation(tmp_path, data_set, bpe_file, small_pieces):
    name, texts = data_set
    prepare(tmp_path / "out", "--dataset", name, "--tokenizer", bpe_file, "--val-split", "validation")
    assert tokens(tmp_path / "out", "train").tolist() == expected(texts, range(60))
    assert tokens(tmp_path / "out", "val").tolist() == expected(["held out", "too"], range(2))


def test_what_a_data_set_lacks(tmp_path, data_set):
    words = [tmp_path / "out", "--dataset", data_set[0]]
    for more, message in (
        (["--split", "tran"], r"set cannot be loaded: ValueError: Unknown split \"tran\""),
        (["--column", "txt"], "set has no column 'txt', but text, id: --column NAME"),
        (["--val-share", 0.999], "no document is left for training, of 60 with --val-share 0.999"),
    ):
        with pytest.raises(SystemExit, match=message):
            prepare(*words, *more)
    assert not (tmp_path / "out").exists()


# interruptions


@pytest.mark.slow
def test_killed_before_any_change_to_the_disk_it_continues_to_the_same_files(
    tmp_path, documents, small_pieces, monkeypatch
):
    words = [documents, "--val-share", 0.2]
    prepare(tmp_path / "undisturbed", *words)
    expected = contents(tmp_path / "undisturbed")
    moments = 0
    for operations in count(1, 13):
        folder = tmp_path / f"out{operations}"
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / f"cache{operations}")
        code = lived(lambda folder=folder: prepare(folder, *words), operations=operations)
        if code == 0:
            break
        assert code == KILLED
        moments += 1
        with pytest.raises(FileNotFoundError, match=r"does not exist"):
            open_source(folder)
        prepare(folder, *words)
        assert contents(folder) == expected
    assert moments > 6


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["ctrl-c", "disk"])
def test_an_interrupted_run_continues_where_it_was(tmp_path, documents, small_pieces, monkeypatch, error):
    encode, encoded = prepare_text._encoder, []

    def interrupted(texts):
        if None not in encoded and len(encoded) == 19:  # after two of four shards
            raise error
        encoded.extend(texts)
        return encode(None)(texts)

    monkeypatch.setattr(prepare_text, "_encoder", lambda tokenizer: interrupted)
    words = [documents, "--val-share", 0.2]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        prepare(tmp_path / "out", *words)
    assert len(encoded) == 19 and not (tmp_path / "out/train.bin").exists()
    encoded.append(None)
    prepare(tmp_path / "out", *words)
    again = encoded[20:]
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "another cache")
    encoded[:] = [None]
    prepare(tmp_path / "undisturbed", *words)
    assert again == encoded[20:]
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_other_tokens_raise_without_force(tmp_path, documents, small_pieces, capsys):
    words = [tmp_path / "out", documents, "--val-share", 0.2]
    prepare(*words)
    complete = contents(tmp_path / "out")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    capsys.readouterr()
    assert prepare(*words) == json.loads(complete["meta.json"])
    assert "is complete and was not changed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == stamps
    stat = (documents / "00.txt").stat()
    os.utime(documents / "00.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    for more in ([], ["--seed", 1]):
        with pytest.raises(
            SystemExit, match=r"out contains tokens from a different source, now .*: --force starts again"
        ):
            prepare(*words, *more)
        assert contents(tmp_path / "out") == complete
    assert prepare(*words, "--force", "--seed", 1)["settings"]["seed"] == 1
    assert contents(tmp_path / "out") != complete


@pytest.mark.parametrize("meta", [None, "{", "{}"])
def test_files_of_another_origin_raise_without_force(tmp_path, documents, small_pieces, meta):
    words = [tmp_path / "out", documents, "--val-share", 0.2]
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train.bin").write_text("1")
    if meta is not None:
        (tmp_path / "out/meta.json").write_text(meta)
    before = contents(tmp_path / "out")
    with pytest.raises(SystemExit, match=r"out contains tokens from a different source|Expecting property name"):
        prepare(*words)
    assert contents(tmp_path / "out") == before
    prepare(*words, "--force")
    prepare(tmp_path / "undisturbed", *words[1:])
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


# errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.txt"], r"nothing\.txt is neither a file nor a folder with \.txt files"),
        (["folder"], r"folder is neither a file nor a folder with \.txt files"),
        (["latin.txt"], r"latin\.txt is not UTF-8: invalid continuation byte at byte 102$"),
        (["cut.txt"], r"cut\.txt is not UTF-8: unexpected end of data at byte 4$"),
        (["empty.txt"], r"no text in .*empty\.txt"),
        (["line.txt"], r"no document is left for validation: .*line\.txt is the only one, and has a single line"),
        (["line.txt", "cut.txt", "--val-share", "0.9999"], "no document is left for training, of 2 with"),
        (["line.txt", "empty.txt"], r"there is no text for \w+\.bin"),
        ([], "name files, or a data set"),
        (["line.txt", "--dataset", "x"], "name files, or a data set"),
        (["line.txt", "--val-split", "x"], "--val-split belongs to --dataset"),
        (["line.txt", "--val-share", "1"], r"--val-share must be in \(0, 1\), got 1.0"),
        (["line.txt", "--end-of-text", "x"], "bytes have no token x"),
        (
            ["line.txt", "--tokenizer", "x.json"],
            r"x\.json is neither a tokenizer\.json nor one that can be downloaded \(",
        ),
        (["line.txt", "--tokenizer", "line.txt"], r"line\.txt is neither a tokenizer\.json nor one that"),
        (
            ["line.txt", "--tokenizer", "bpe.json", "--end-of-text", "</s>"],
            r"bpe\.json has no token </s>: --end-of-text",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, bpe_file, small_pieces, words, message):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("latin.txt").write_bytes(b"0123 5678\n" * 10 + "caf\xe9 au lait\n".encode("latin-1").replace(b"f", b""))
    Path("cut.txt").write_bytes(b"a\nb\n\xc3")
    Path("empty.txt").touch()
    Path("line.txt").write_text("one line\n")
    with pytest.raises(SystemExit, match=f"^lightning-fire prepare-text: error: .*{message}") as refusal:
        prepare("out", *words)
    assert "\n" not in str(refusal.value)
    assert not Path("out/meta.json").exists()


def test_gpt2_is_downloaded_only_when_asked_for(tmp_path, monkeypatch, bpe_file):
    (tmp_path / "a.txt").write_text(VERSE)
    asked = []

    class Downloading:
        @staticmethod
        def from_pretrained(name):
            asked.append(name)
            if len(asked) > 1:
                raise Exception("no route\nto host")
            return Tokenizer.from_file(str(bpe_file))

        from_str = Tokenizer.from_str

    monkeypatch.setattr("tokenizers.Tokenizer", Downloading)
    words = [tmp_path / "out", tmp_path / "a.txt", "--tokenizer", "gpt2"]
    assert prepare(*words)["tokenizer"] == "gpt2"
    assert asked == ["gpt2"]
    with pytest.raises(SystemExit, match=r"gpt2 is neither .* nor one that can be downloaded \(no route\)"):
        prepare(*words, "--force")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"two libraries: pip install 'lightning-fire\[text\]' \(.*datasets"):
        importlib.reload(prepare_text)
