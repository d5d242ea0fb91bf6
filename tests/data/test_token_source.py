"""Token files: reading and errors."""

import pickle

import numpy as np
import pytest
from token_files import write_tokens

from lightning_fire.data.token_source import Tokens, open_source


@pytest.mark.parametrize("dtype, largest", [("uint8", 255), ("uint16", 65_535), ("uint32", 4_000_000_000)])
def test_blocks_are_those_of_the_file(tmp_path, dtype, largest):
    numbers = np.linspace(0, largest, 1000).astype(np.int64)
    source = open_source(write_tokens(tmp_path, numbers, numbers[:20], dtype, vocab_size=largest + 1))
    assert (len(source.train), len(source.val), source.vocab_size) == (1000, 20, largest + 1)
    blocks = source.train.blocks(np.array([0, 990, 5]), 10)
    assert blocks.dtype.is_signed and blocks.tolist() == [numbers[s : s + 10].tolist() for s in (0, 990, 5)]


def test_files_of_nanogpt_have_no_meta(tmp_path):
    source = open_source(write_tokens(tmp_path, np.arange(300), np.arange(20), meta=False))
    assert (len(source.train), source.vocab_size, source.tokenizer) == (300, None, None)
    assert len(open_source(tmp_path, "uint8").train) == 600


def test_an_open_file_travels_as_its_name(tmp_path):
    train = open_source(write_tokens(tmp_path, np.arange(60_000), np.arange(9), vocab_size=60_000)).train
    train.blocks(np.array([0]), 3)
    data = pickle.dumps(train)
    assert len(data) < 1000
    assert pickle.loads(data).blocks(np.array([59_990]), 3).tolist() == [[59_990, 59_991, 59_992]]


def test_a_token_outside_the_vocabulary_is_named_with_its_position():
    tokens = Tokens(np.array([1, 2, 3, 300, 4, 5], dtype=np.uint16), vocab_size=256)
    assert tokens.blocks(np.array([0]), 3).tolist() == [[1, 2, 3]]
    with pytest.raises(ValueError, match="token 3 of an array is 300, but the vocabulary has 256"):
        tokens.blocks(np.array([0, 2]), 3)


def test_missing_or_broken_files_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train\.bin does not exist; `lightning-fire prepare-text .* makes it"):
        open_source(tmp_path / "nothing")
    write_tokens(tmp_path, np.arange(100), np.arange(20))
    whole = (tmp_path / "train.bin").read_bytes()
    (tmp_path / "train.bin").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"train\.bin is truncated, or not of uint16: its 199 bytes"):
        open_source(tmp_path)
    (tmp_path / "train.bin").write_bytes(whole[:-2])
    with pytest.raises(ValueError, match=r"has 99 tokens, meta\.json says 100"):
        open_source(tmp_path)
    with pytest.raises(ValueError, match="`dtype` must be one of"):
        open_source(write_tokens(tmp_path / "other", np.arange(9), np.arange(9), meta=False), "int64")
