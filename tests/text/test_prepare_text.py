"""`lightning-fire prepare-text`: the tokens are those of the text, for any pieces, interruptions and kills."""

import json
import os
import sys
import tracemalloc
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import killed_processes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_processes import KILLED, lived
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lightning_fire.cli import main as cli
from lightning_fire.data.token_source import open_source
from lightning_fire.text import prepare_command, sources, token_folder, tokenizer
from lightning_fire.text.sources import cut, held_out

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


def tokens(folder: Path, split: str) -> np.ndarray:
    """The tokens of a split, in the way that training reads them."""
    found = getattr(open_source(folder), split)
    return found.blocks(np.array([0]), len(found))[0].numpy()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def bpe_file(tmp_path):
    BPE.save(str(tmp_path / "bpe.json"))
    return tmp_path / "bpe.json"


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(sources, "PIECE", 64)
    monkeypatch.setattr(prepare_command, "_BATCH", 200)
    monkeypatch.setattr(token_folder, "SECONDS_BETWEEN_SAVES", 0.0)


@pytest.fixture
def documents(tmp_path):
    """A folder of 40 texts, one of them empty."""
    folder = tmp_path / "texts"
    (folder / "deeper").mkdir(parents=True)
    for number in range(40):
        place = folder / "deeper" if number % 2 else folder
        (place / f"{number:02d}.txt").write_bytes(
            b"" if number == 7 else f"{number} {VERSE * (number % 4 + 1)}".encode()
        )
    return folder


class Stream:
    """Stand-in for the result of `datasets.load_dataset(..., streaming=True)`."""

    def __init__(self, rows, known=None, fails_at=None, error=None, first=0):
        self.rows, self.first, self.fails_at, self.error = rows, first, fails_at, error
        self.info = SimpleNamespace(splits=known)

    def skip(self, rows):
        return Stream(self.rows, None, self.fails_at, self.error, rows)

    def __iter__(self):
        for number in range(self.first, len(self.rows)):
            if number == self.fails_at:
                raise self.error
            yield {"text": self.rows[number], "id": number}


@pytest.fixture
def hub(monkeypatch):
    """Replaces the data sets of Hugging Face by streams, by split."""
    streams, asked = {}, []

    def load_dataset(name, config, split, streaming):
        asked.append((name, config, split, streaming))
        if split not in streams:
            raise ValueError(f"Bad split: {split}. Available splits: {list(streams)}\nmore")
        return streams[split]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return SimpleNamespace(streams=streams, asked=asked)


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


def test_documents_are_held_out_by_seed_and_number(tmp_path, documents, bpe_file, small_pieces):
    files = [f for f in sorted(documents.rglob("*.txt")) if f.stat().st_size]
    expected = {"train": [], "val": []}
    for number, file in enumerate(files):
        split = "val" if held_out(3, number, 0.2) else "train"
        expected[split] += [*BPE.encode(file.read_bytes().decode()).ids, BPE.token_to_id("<|endoftext|>")]
    words = ["--tokenizer", bpe_file, "--val-share", 0.2, "--seed", 3]
    meta = prepare(tmp_path / "out", documents, *words)
    for split in ("train", "val"):
        assert tokens(tmp_path / "out", split).tolist() == expected[split]
    assert (meta["dtype"], meta["vocab_size"]) == ("uint16", BPE.get_vocab_size())
    assert meta["end_of_text"] == BPE.token_to_id("<|endoftext|>")
    assert meta["splits"]["train"]["documents"] + meta["splits"]["val"]["documents"] == len(files) == 39
    assert meta["splits"]["val"]["documents"] > 2
    prepare(tmp_path / "glob", documents / "**/*.txt", documents / "00.txt", *words)  # the same files, one named twice
    assert (tmp_path / "glob/val.bin").read_bytes() == (tmp_path / "out/val.bin").read_bytes()
    prepare(tmp_path / "seed", documents, *words[:-1], 4)
    assert (tmp_path / "seed/val.bin").read_bytes() != (tmp_path / "out/val.bin").read_bytes()


def test_a_separator_in_a_text_is_text_and_another_may_be_chosen(tmp_path, bpe_file):
    (tmp_path / "a.txt").write_text("one <|endoftext|> two\nthree\n")
    separator = BPE.token_to_id("<|endoftext|>")
    prepare(tmp_path / "out", tmp_path / "a.txt", "--tokenizer", bpe_file)
    found = tokens(tmp_path / "out", "train")
    assert np.flatnonzero(found == separator).tolist() == [len(found) - 1]
    assert BPE.decode(found.tolist(), skip_special_tokens=False) == "one <|endoftext|> two\n<|endoftext|>"
    meta = prepare(tmp_path / "none", tmp_path / "a.txt", "--tokenizer", bpe_file, "--end-of-text", "none")
    assert meta["end_of_text"] is None
    assert tokens(tmp_path / "none", "train").tolist() == found[:-1].tolist()
    meta = prepare(tmp_path / "own", tmp_path / "a.txt", "--tokenizer", bpe_file, "--end-of-text", "!")
    assert tokens(tmp_path / "own", "train").tolist() == [*found[:-1], BPE.token_to_id("!")]


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


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abé1.' \n\t\r\u2003", min_size=1, max_size=60))
def test_pieces_have_the_tokens_of_the_whole(text):
    """With white space after the window's first word, for any text after the window."""
    window = text[: len(text) // 2 + 1]
    at = cut(window)
    assert 1 <= at <= len(window)
    if at < len(window):
        assert BPE.encode(text[:at]).ids + BPE.encode(text[at:]).ids == BPE.encode(text).ids


def test_a_long_file_is_never_in_memory(tmp_path, monkeypatch):
    encoded = []
    encode = tokenizer.encode_bytes
    monkeypatch.setattr(tokenizer, "encode_bytes", lambda texts: encoded.append(sum(map(len, texts))) or encode(texts))
    monkeypatch.setattr(sources, "PIECE", 1 << 14)
    monkeypatch.setattr(prepare_command, "_BATCH", 1 << 15)
    peaks = []
    for megabytes in (1, 6):
        (tmp_path / "a.txt").write_bytes(b"abc def ghi jklm\n" * (megabytes << 16))
        tracemalloc.start()
        prepare(tmp_path / f"{megabytes}", tmp_path / "a.txt")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert sum(encoded) == 7 * 17 << 16
    assert max(encoded) < (1 << 15) + (1 << 14)
    assert peaks[1] < 1 << 19
    assert peaks[1] < peaks[0] * 1.5


# data sets


def test_a_data_set_with_its_own_validation(tmp_path, hub, bpe_file, small_pieces):
    rows, val = ["one two", "", VERSE * 5, None, "end"], ["held out", "too"]
    hub.streams.update(train=Stream(rows), validation=Stream(val))
    words = ["--dataset", "wikitext:raw", "--tokenizer", bpe_file, "--val-split", "validation"]
    meta = prepare(tmp_path / "out", *words)
    assert hub.asked == [("wikitext", "raw", "train", True), ("wikitext", "raw", "validation", True)]
    end = BPE.token_to_id("<|endoftext|>")
    for split, texts in (("train", rows), ("val", val)):
        expected = [token for text in texts if text for token in (*BPE.encode(text).ids, end)]
        assert tokens(tmp_path / "out", split).tolist() == expected
    assert [meta["splits"][split]["documents"] for split in ("train", "val")] == [3, 2]


@pytest.mark.slow
@pytest.mark.parametrize("error", [ConnectionError("gone\nfor now"), KeyboardInterrupt()], ids=["network", "ctrl-c"])
@pytest.mark.parametrize("fails_at", [0, 1, 30, 59])
def test_a_data_set_that_breaks_off_continues_where_it_was(
    tmp_path, hub, bpe_file, small_pieces, capsys, error, fails_at
):
    rows = [f"row {number} {VERSE * (number % 5)}" for number in range(60)]
    words = ["--dataset", "some/set", "--tokenizer", bpe_file, "--val-share", 0.2]
    hub.streams["train"] = Stream(rows)
    prepare(tmp_path / "undisturbed", *words)
    hub.streams["train"] = Stream(rows, fails_at=fails_at, error=error)
    message = "interrupted; the same" if isinstance(error, KeyboardInterrupt) else "some/set cannot be read any further"
    with pytest.raises(SystemExit, match=message) as refusal:
        prepare(tmp_path / "out", *words)
    assert "\n" not in str(refusal.value)
    assert (tmp_path / "out").exists() == (fails_at > 1)  # less than a batch is nothing
    served = []
    hub.streams["train"] = Stream(rows)
    hub.streams["train"].skip = lambda first: served.append(first) or Stream(rows, first=first)
    capsys.readouterr()
    prepare(tmp_path / "out", *words)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    assert ("continuing after" in capsys.readouterr().out) == (fails_at > 1)
    assert served == [] if fails_at <= 1 else fails_at - 5 < served[0] <= fails_at


def test_what_a_data_set_lacks(tmp_path, hub, monkeypatch):
    known = {"train": SimpleNamespace(num_examples=3)}
    hub.streams["train"] = Stream(["a", "b", "c"], known)
    words = [tmp_path / "out", "--dataset", "some/set"]
    for more, message in (
        (
            ["--split", "tran"],
            r"some/set, split 'tran', cannot be opened: ValueError: Bad split: tran\. Available.*'\]$",
        ),
        (
            ["--column", "txt", "--val-share", 0.4, "--seed", 3],
            "some/set has no column 'txt', but text, id: --column NAME",
        ),
        (["--column", "id", "--val-share", 0.4, "--seed", 3], "column 'id' of some/set holds no text, but int"),
        (
            ["--val-share", 1e-9],
            "no document is left for validation, of 3 with --val-share 1e-09 and --seed 0: --val-s",
        ),
        (["--val-share", 0.1, "--val-split", "v"], "--val-share and --val-split exclude each other"),
    ):
        with pytest.raises(SystemExit, match=message):
            prepare(*words, *more)
    hub.streams["train"] = Stream(["a", "b", "c"])  # how many is not known before
    with pytest.raises(SystemExit, match="no document is left for validation, of 3: try another --val-share"):
        prepare(*words, "--val-share", 1e-9)
    hub.streams["train"] = Stream(["", None])
    with pytest.raises(SystemExit, match="no text in the input"):
        prepare(*words)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SystemExit, match=r"--dataset needs `datasets`: pip install 'lightning-fire\[text\]'"):
        prepare(*words)
    assert not (tmp_path / "out").exists()


# interruptions


@pytest.mark.slow
def test_killed_before_any_change_to_the_disk_it_continues_to_the_same_files(tmp_path, documents, small_pieces):
    words = [documents, "--val-share", 0.2]
    prepare(tmp_path / "undisturbed", *words)
    expected = contents(tmp_path / "undisturbed")
    moments = 0
    for operations in count(2, 17):
        folder = tmp_path / f"out{operations}"
        code = lived(lambda folder=folder: prepare(folder, *words), operations=operations)
        if code == 0:
            break
        assert code == KILLED
        moments += 1
        if all((folder / f"{split}.bin").exists() for split in ("train", "val")):
            try:
                assert len(open_source(folder).train) == len(expected["train.bin"])
            except ValueError as error:
                assert "is not complete" in str(error)
        prepare(folder, *words)
        assert contents(folder) == expected
    assert moments > 6


@pytest.mark.slow
def test_killed_while_old_files_are_replaced(tmp_path, documents, small_pieces):
    """At the end: the last moments are those where names are given."""
    (tmp_path / "a.txt").write_text("old\ntext\n")
    words = [documents, "--val-share", 0.2, "--force"]
    operations = _operations(lambda: prepare(tmp_path / "undisturbed", *words), tmp_path / "count")
    expected = contents(tmp_path / "undisturbed")
    seen = set()
    for back in range(8):
        prepare(tmp_path / "out", tmp_path / "a.txt", "--force")
        assert lived(lambda: prepare(tmp_path / "out", *words), operations=operations - back) == KILLED
        try:
            found = (tmp_path / "out/train.bin").read_bytes()
            assert len(open_source(tmp_path / "out").train) == len(found)
            seen.add({b"old\n": "old", expected["train.bin"]: "new"}[found])
        except ValueError as error:
            assert "is not complete" in str(error)
            seen.add("incomplete")
        prepare(tmp_path / "out", *words)
        assert contents(tmp_path / "out") == expected
    assert seen == {"old", "incomplete", "new"}


def _operations(work, result: Path) -> int:
    """Return the number of changes to the disk, as `lived` counts them."""

    def counted():
        seen = []

        def note(event, arguments):
            opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if opens or event in killed_processes._CHANGES:
                seen.append(event)

        sys.addaudithook(note)
        work()
        result.write_text(str(len(seen)))

    assert lived(counted) == 0
    return int(result.read_text())


def test_changed_settings_and_files_raise_without_force(tmp_path, documents, hub, small_pieces, capsys):
    words = [tmp_path / "out", documents, "--val-share", 0.2]
    assert lived(lambda: prepare(*words), operations=40) == KILLED
    with pytest.raises(
        SystemExit, match=r"tokens of an unfinished run with other settings \(seed: 0, now 1\): --force"
    ):
        prepare(*words, "--seed", 1)
    with pytest.raises(FileNotFoundError, match=r"train\.bin does not exist"):
        open_source(tmp_path / "out")
    stat = (documents / "00.txt").stat()
    os.utime(documents / "00.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(
        SystemExit, match=r"other settings \(files: 40 files of \d+ bytes, .*, now 40 files of \d+ bytes"
    ):
        prepare(*words)
    prepare(*words, "--force")
    complete = contents(tmp_path / "out")
    capsys.readouterr()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert prepare(*words) == json.loads(complete["meta.json"])
    assert "it is complete and was not changed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == stamps
    with pytest.raises(SystemExit, match=r"is complete, but was made with other settings \(val_share: 0.2, now 0.3\)"):
        prepare(*words[:-1], 0.3)
    assert contents(tmp_path / "out") == complete
    prepare(*words[:-1], 0.3, "--force")
    assert contents(tmp_path / "out") != complete


def test_tokens_of_another_origin_raise_without_force(tmp_path):
    (tmp_path / "a.txt").write_text("a\nb\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train.bin").write_bytes(b"nanoGPT")
    with pytest.raises(SystemExit, match=r"out has train\.bin of another origin: --force starts again"):
        prepare(tmp_path / "out", tmp_path / "a.txt")
    assert (tmp_path / "out/train.bin").read_bytes() == b"nanoGPT"
    prepare(tmp_path / "out", tmp_path / "a.txt", "--force")
    assert (tmp_path / "out/train.bin").read_bytes() == b"a\n"


@pytest.mark.parametrize("damage", ["lost", "unreadable"])
def test_an_unfinished_run_that_is_damaged_restarts_only_with_force(tmp_path, documents, small_pieces, damage):
    words = [tmp_path / "out", documents, "--val-share", 0.2]
    assert lived(lambda: prepare(*words), operations=40) == KILLED
    if damage == "lost":
        (tmp_path / "out/train.bin.part").write_bytes(b"")
    else:
        (tmp_path / "out/progress.json").write_text("{")
    message = "that has lost some, as train.bin.part is shorter" if damage == "lost" else "by something else"
    with pytest.raises(SystemExit, match=f"unfinished run {message}.*: --force starts again"):
        prepare(*words)
    prepare(*words, "--force")
    prepare(tmp_path / "undisturbed", *words[1:])
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_two_at_once_raise(tmp_path, documents, small_pieces, monkeypatch):
    tokenize = prepare_command._tokenize

    def another_begins(*args):
        monkeypatch.setattr(prepare_command, "_tokenize", tokenize)
        with pytest.raises(SystemExit, match="another process is preparing a text in"):
            prepare(tmp_path / "out", documents, "--val-share", 0.2)
        tokenize(*args)

    monkeypatch.setattr(prepare_command, "_tokenize", another_begins)
    prepare(tmp_path / "out", documents, "--val-share", 0.2)
    prepare(tmp_path / "undisturbed", documents, "--val-share", 0.2)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


# errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.txt"], "nothing.txt does not exist"),
        (["*.md"], r"\*\.md does not exist"),
        (["folder"], r"folder has no \.txt files"),
        (["latin.txt"], r"latin\.txt is not UTF-8: invalid continuation byte at byte 102$"),
        (["cut.txt"], r"cut\.txt is not UTF-8: unexpected end of data at byte 4$"),
        (["empty.txt"], r"no text in empty\.txt: 1 files, all empty"),
        (["line.txt"], r"no document is left for validation: line\.txt is the only one, and has a single line"),
        (["line.txt", "cut.txt"], r"no document is left for validation, of 2 .*: --val-share 0\.\d+ holds one out$"),
        (["line.txt", "cut.txt", "--val-share", "0.9999"], "no document is left for training, of 2 with"),
        ([], "name files, or a data set"),
        (["line.txt", "--dataset", "x"], "name files, or a data set"),
        (["line.txt", "--val-split", "x"], "--val-split belongs to --dataset"),
        (["line.txt", "--val-share", "1"], r"--val-share must be in \(0, 1\), got 1.0"),
        (["line.txt", "--end-of-text", "x"], "bytes have no token x"),
        (["line.txt", "--tokenizer", "x.json"], "--tokenizer must be bytes, gpt2 or a tokenizer.json, and x.json does"),
        (["line.txt", "--tokenizer", "line.txt"], r"line\.txt is not a tokenizer\.json of the `tokenizers` library \("),
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
    assert not Path("out").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "a.txt").write_text("a\nb\n")
    with pytest.raises(SystemExit, match=r"a\.txt is a file: name a folder"):
        prepare(tmp_path / "a.txt", tmp_path / "a.txt")
    with pytest.raises(SystemExit, match=r"error: \[Errno 20\] Not a directory: .*a\.txt/out/progress\.json'$"):
        prepare(tmp_path / "a.txt/out", tmp_path / "a.txt")


def test_a_file_that_changes_under_the_reader(tmp_path, small_pieces, monkeypatch):
    (tmp_path / "a.txt").write_text(VERSE * 20)
    tokenize = prepare_command._tokenize

    def shrink(*args):
        os.truncate(tmp_path / "a.txt", 500)
        tokenize(*args)

    monkeypatch.setattr(prepare_command, "_tokenize", shrink)
    with pytest.raises(SystemExit, match=r"a\.txt has changed while the text was prepared"):
        prepare(tmp_path / "out", tmp_path / "a.txt")
    assert not (tmp_path / "out").exists()


def test_gpt2_is_downloaded_only_when_asked_for(tmp_path, monkeypatch, bpe_file):
    (tmp_path / "a.txt").write_text(VERSE)
    asked = []

    class Downloading:
        @staticmethod
        def from_pretrained(name):
            asked.append(name)
            return Tokenizer.from_file(str(bpe_file))

    monkeypatch.setattr("tokenizers.Tokenizer", Downloading)
    assert prepare(tmp_path / "out", tmp_path / "a.txt", "--tokenizer", "gpt2")["tokenizer"] == "gpt2"
    assert asked == ["gpt2"]

    def offline(name):
        raise Exception("no route\nto host")

    monkeypatch.setattr(Downloading, "from_pretrained", offline)
    with pytest.raises(
        SystemExit, match=r"gpt2 cannot be downloaded \(no route\): give its file, --tokenizer FILE\.json"
    ):
        prepare(tmp_path / "other", tmp_path / "a.txt", "--tokenizer", "gpt2")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SystemExit, match=r"needs `tokenizers`: pip install 'lightning-fire\[text\]'"):
        prepare(tmp_path / "other", tmp_path / "a.txt", "--tokenizer", bpe_file)


def test_a_full_disk_keeps_what_was_saved(tmp_path, documents, small_pieces, monkeypatch):
    words = [documents, "--val-share", 0.2]
    written = token_folder.TokenFolder.write
    calls = count()

    def full(self, *args):
        if next(calls) == 12:
            self._files["train"].write(b"half of a batch")
            raise OSError(28, "No space left on device")
        written(self, *args)

    monkeypatch.setattr(token_folder.TokenFolder, "write", full)
    with pytest.raises(SystemExit, match="No space left on device"):
        prepare(tmp_path / "out", *words)
    assert set(contents(tmp_path / "out")) == {"train.bin.part", "val.bin.part", "progress.json"}
    prepare(tmp_path / "out", *words)
    prepare(tmp_path / "undisturbed", *words)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
