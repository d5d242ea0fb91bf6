"""TextDataModule in real fits: order of the tokens, resume, ranks, workers."""

import json
from itertools import chain

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from processes import run
from small_training import trainer
from token_files import write_tokens
from torch import nn

from lightning_fire.data import KingJamesAndPythonDataModule, TextDataModule
from lightning_fire.data.token_source import Tokens, TokenSource

PHASES = [{"wiki": 1.0}, {"web": 9.0, "wiki": 1.0}]


class Numbered(TextDataModule):
    """Two texts whose tokens say where they are: `wiki` counts from 0, `web` from 1000."""

    def load(self):
        texts = {"wiki": np.arange(400, dtype=np.uint16), "web": np.arange(1000, 1900, dtype=np.uint16)}
        return {
            name: TokenSource(Tokens(text, vocab_size=2000), Tokens(text[:61], vocab_size=2000), 2000)
            for name, text in texts.items()
            if name in self.protocol.names
        }


def numbered(epochs=(2, 2), **options) -> Numbered:
    settings = {"steps_per_epoch": 5, "batch_size": 2, "block_size": 8, "phases": PHASES, **options}
    return Numbered({"wiki": "", "web": ""}, epochs=list(epochs), **settings)


class Diary(pl.LightningModule):
    """Writes down the first token of each block, by epoch and batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: dict[tuple[int, int], list[int]] = {}
        self.chunks: list[int] = []

    def training_step(self, batch, batch_idx):
        tokens, targets = batch
        assert (targets == tokens + 1).all() and tokens.shape == (2, 8)
        self.seen[self.current_epoch, batch_idx] = tokens[:, 0].tolist()
        return self.weight**2

    def validation_step(self, batch, batch_idx):
        pass

    def on_train_epoch_start(self):
        self.chunks.append(self.trainer.datamodule.chunk)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data, **options) -> Diary:
    diary = Diary()
    ckpt_path = options.pop("ckpt_path", None)
    callbacks = options.pop("callbacks", [])
    trainer(*callbacks, max_epochs=data.total_epochs, limit_val_batches=0, **options).fit(
        diary, datamodule=data, ckpt_path=ckpt_path
    )
    return diary


def test_phases_and_their_texts():
    diary = fit(numbered())
    assert diary.chunks == [0, 0, 1, 1] and len(diary.seen) == 20
    first = list(chain(*(starts for (epoch, _), starts in diary.seen.items() if epoch < 2)))
    assert max(first) < 400 and len(set(first)) == 20  # 20 blocks of a pass of 48
    later = [starts for (epoch, _), starts in diary.seen.items() if epoch >= 2]
    assert {start >= 1000 for batch in later for start in batch} == {True, False}
    assert all(len({start >= 1000 for start in batch}) == 1 for batch in later)  # a micro-batch is of one text


@pytest.mark.parametrize("accumulate", [1, 3])
def test_epochs_are_counted_in_optimizer_steps(accumulate):
    data = numbered()
    diary = fit(data, accumulate_grad_batches=accumulate)
    assert diary.trainer.global_step == 20 and len(diary.seen) == 20 * accumulate
    assert data.steps_per_chunk() == [10, 10]


def test_accumulation_joins_the_batches_of_smaller_steps():
    """10 epochs of 5 steps see what 5 epochs of 5 steps of two micro-batches see."""
    small = fit(numbered((10,), phases=PHASES[1:])).seen.values()
    large = fit(numbered((5,), phases=PHASES[1:]), accumulate_grad_batches=2).seen.values()
    assert list(small) == list(large)


class SaveAt(pl.Callback):
    def __init__(self, epoch, batch, path):
        self.place, self.path = (epoch, batch), path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == self.place:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("place", [(0, 2), (1, 4), (2, 0), (3, 3)], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_sees_the_batches_of_the_whole_one(tmp_path, place, workers):
    whole = fit(numbered(), callbacks=[SaveAt(*place, tmp_path / "c.ckpt")]).seen
    rest = fit(numbered(num_workers=workers), ckpt_path=tmp_path / "c.ckpt").seen
    assert rest == {key: starts for key, starts in whole.items() if key > place}


def test_the_length_of_phase_1_does_not_change_phase_2():
    long, short = fit(numbered((3, 2))).seen, fit(numbered((1, 2))).seen
    assert [long[epoch + 2, b] for epoch in (1, 2) for b in range(5)] == [
        short[epoch, b] for epoch in (1, 2) for b in range(5)
    ]


def test_seeds_and_epochs_differ():
    assert fit(numbered()).seen != fit(numbered(seed=1)).seen


RANKS = """
import json
from small_training import trainer
from test_text import Diary, numbered
data, diary = numbered(), Diary()
fit = trainer(max_epochs=4, devices=2, strategy="ddp", limit_val_batches=0, use_distributed_sampler=True)
fit.fit(diary, datamodule=data)
assert data.steps_per_chunk() == [10, 10]
with open(f"{folder}/rank{{fit.global_rank}}.json", "w") as file:
    json.dump([[*key, starts] for key, starts in diary.seen.items()], file)
"""


@pytest.mark.slow
def test_two_ranks_see_disjoint_data_which_is_that_of_one(tmp_path):
    """Two ranks with a step each see what one process sees with two micro-batches a step."""
    run(RANKS.format(folder=tmp_path), tmp_path, ranks=2)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    first = [{start for epoch, _, starts in rank if epoch < 2 for start in starts} for rank in ranks]
    assert len(first[0]) == len(first[1]) == 20 and not first[0] & first[1]
    together = [starts for pair in zip(*ranks, strict=True) for _, _, starts in pair]
    assert together == list(fit(numbered(), accumulate_grad_batches=2).seen.values())


def test_validation_is_on_the_same_blocks_of_the_present_texts():
    data = numbered(val_blocks=3)
    data.setup()
    batches = [(tokens[:, 0].tolist(), int(text)) for tokens, _, text in data.val_dataloader()]
    assert batches == [([0, 24], 0), ([48], 0)] == [(t[:, 0].tolist(), int(n)) for t, _, n in data.val_dataloader()]
    assert data.texts == ["wiki", "web"] and data.text_weights == {"wiki": 1.0}
    later = numbered(phases=PHASES[1:], epochs=(1,), val_blocks=None)
    later.setup()
    texts = [int(text) for *_, text in later.val_dataloader()]
    assert texts == [0, 1] * 4 and later.text_weights == {"web": 0.9, "wiki": 0.1}
    assert sorted(
        start for tokens, _, text in later.val_dataloader() if text == 1 for start in tokens[:, 0].tolist()
    ) == list(range(0, 49, 8))


def test_files_of_two_folders(tmp_path):
    generator = np.random.default_rng(0)
    texts = {name: generator.integers(0, 256, 500) for name in ("a", "b")}
    folders = {name: str(write_tokens(tmp_path / name, text, text[:40])) for name, text in texts.items()}
    data = TextDataModule(folders, [{"a": 1, "b": 1}], steps_per_epoch=50, batch_size=1, block_size=16)
    data.setup()
    assert data.vocab_size == 256
    every = [text[i : i + 16].tolist() for text in texts.values() for i in range(484)]
    for tokens, targets in data.train_dataloader():
        assert tokens[0].tolist() in every and tokens[0, 1:].tolist() == targets[0, :-1].tolist()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"phases": []}, "`phases` must be a list of one or more mixtures"),
        ({"phases": {"wiki": 1.0}}, "`phases` must be a list of one or more mixtures"),
        ({"phases": [{}]}, "one or more texts a weight"),
        ({"phases": [{"wiki": 0.0}]}, "weights of texts in a phase must be positive"),
        ({"phases": [{"wiki": float("inf")}]}, "weights of texts in a phase must be positive"),
        ({"phases": [{"books": 1}, {"web": 1}]}, r"`phases` name \['books'\], but `sources` has \['web', 'wiki'\]"),
        ({"epochs": (1, 2, 3)}, r"one per chunk \(2\)"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be at least 1, got 0"),
        ({"val_blocks": 0}, "`val_blocks` must be at least 1, got 0"),
    ],
)
def test_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        numbered(**options)


def test_invalid_texts(tmp_path):
    with pytest.raises(ValueError, match=r"val of 'wiki' \(an array\) has 61 tokens: too few .* `block_size`=61"):
        numbered(block_size=61).setup()
    with pytest.raises(ValueError, match=r"`vocab_size` must be at least that of the texts \(2000\), got 100"):
        numbered(vocab_size=100).setup()
    one = write_tokens(tmp_path / "one", np.arange(100), np.arange(100))
    two = write_tokens(tmp_path / "two", np.arange(100), np.arange(100))
    (two / "meta.json").write_text((two / "meta.json").read_text().replace('"own"', '"gpt2"'))
    data = TextDataModule({"a": str(one), "b": str(two)}, [{"a": 1, "b": 1}], block_size=8)
    with pytest.raises(ValueError, match=r"all texts must be made by one tokenizer, got \['gpt2', 'own'\]"):
        data.setup()


@pytest.mark.slow
def test_king_james_and_python(tmp_path):
    (tmp_path / "text").mkdir()
    text = bytes(range(97, 123)) * 100
    (tmp_path / "text" / "kjv.txt").write_bytes(text)
    data = KingJamesAndPythonDataModule(str(tmp_path), kjv_bytes=1000, python_bytes=20_000, steps_per_epoch=2)
    sources = data.load()
    assert sources["kjv"].train.blocks(np.array([0]), 1000)[0].tolist() == list(text[:1000])
    assert sources["kjv"].val.blocks(np.array([0]), 100)[0].tolist() == list(text[1000:1100])
    python = bytes(sources["python"].train.blocks(np.array([0]), 20_000)[0].tolist()).decode(errors="replace")
    assert "import " in python and len(sources["python"].val) == 2000
    assert (
        data.load()["python"].train.blocks(np.array([0]), 500).equal(sources["python"].train.blocks(np.array([0]), 500))
    )
    with pytest.raises(ValueError, match=r"`kjv_bytes`: .*kjv\.txt has 2600 bytes, but 5500 are needed"):
        KingJamesAndPythonDataModule(str(tmp_path), kjv_bytes=5000).load()
    with pytest.raises(FileNotFoundError, match=r"kjv\.txt does not exist: put the King James text there"):
        KingJamesAndPythonDataModule(str(tmp_path / "empty")).load()


@pytest.fixture
def bible(tmp_path):
    """A folder with a text whose bytes are all different from those around them."""
    (tmp_path / "text").mkdir()
    text = bytes(np.random.default_rng(3).integers(0, 256, 6600, dtype=np.uint8))
    (tmp_path / "text" / "kjv.txt").write_bytes(text)
    return str(tmp_path), text


def test_parts_of_a_text_are_all_of_it_and_nothing_twice(bible):
    root, text = bible
    phases = [{"kjv_1": 1.0}, {"kjv_2": 1.0}, {"kjv_3": 2.0, "kjv_1": 1.0}]
    sources = KingJamesAndPythonDataModule(root, phases, kjv_bytes=6000).load()
    assert list(sources) == ["kjv_1", "kjv_2", "kjv_3"]
    parts = [bytes(source.train.blocks(np.array([0]), 2000)[0].tolist()) for source in sources.values()]
    assert b"".join(parts) == text[:6000] and [len(source.train) for source in sources.values()] == [2000] * 3
    for source in sources.values():
        assert bytes(source.val.blocks(np.array([0]), 600)[0].tolist()) == text[6000:]
    with pytest.raises(ValueError, match=r"`phases` name \['odyssey_1'\], but `sources` has \['kjv', 'python'\]"):
        KingJamesAndPythonDataModule(root, [{"odyssey_1": 1.0}])


def test_the_held_out_task_is_the_validation_text_with_permuted_bytes_for_any_seed(bible):
    root, text = bible
    options = {"kjv_bytes": 6000, "block_size": 20, "batch_size": 4}
    first, second = (
        list(KingJamesAndPythonDataModule(root, seed=seed, **options).probe_dataloader()) for seed in (0, 1)
    )
    assert len(first) == (599 // 20 - 1) // 4
    permuted = np.random.default_rng(0).permutation(256)
    back, seen = np.argsort(permuted), set()
    for (tokens, targets), (again, _) in zip(first, second, strict=True):
        assert torch.equal(tokens, again) and tokens.shape == targets.shape == (4, 20)
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        for block in tokens.numpy():
            start = text.index(bytes(back[block].tolist()))
            assert start >= 6000
            seen.add(start)
    assert len(seen) == 4 * len(first)  # each once
