"""The order of blocks and texts, by number alone."""

import numpy as np
import pytest

from lightning_fire.data.mixture import BlockOrder, Mixture


@pytest.mark.parametrize("tokens", [9, 10, 16, 17, 23, 24, 25, 1000])
def test_a_pass_sees_each_block_once_and_all_but_some_tokens_at_the_ends(tokens):
    order = BlockOrder(tokens, block_size=8, seed=[0])
    for number in range(4):
        starts = np.sort(order.starts(number * order.blocks, order.blocks))
        assert (np.diff(starts) == 8).all()  # one behind the other: disjoint, and nothing between them
        assert starts[0] >= 0 and starts[-1] + 8 < tokens  # with the last target
        assert tokens - 8 * order.blocks < 3 * 8


def test_passes_have_their_own_offset_and_order():
    order = BlockOrder(1000, block_size=8, seed=[0])
    passes = [order.starts(number * order.blocks, order.blocks) for number in range(20)]
    assert len({int(starts.min()) for starts in passes}) > 4
    assert len({tuple(starts // 8) for starts in passes}) == 20


def test_blocks_do_not_depend_on_how_many_are_asked_for_at_once():
    at_once = BlockOrder(300, 7, [3]).starts(0, 200)
    order = BlockOrder(300, 7, [3])
    pieces = [order.starts(first, min(9, 200 - first)) for first in range(0, 200, 9)]
    assert (np.concatenate(pieces) == at_once).all()
    assert (BlockOrder(300, 7, [3]).starts(150, 50) == at_once[150:]).all()


def mixture(seed=(0,), weights=(9, 0.1), tokens=(1001, 501), batch_size=2) -> Mixture:
    return Mixture(weights, tokens, block_size=10, batch_size=batch_size, seed=seed)


def test_texts_come_with_their_probabilities():
    """p = 0.1 / 9.1 of 100,000 draws: 1099 expected, standard deviation 33."""
    mixed = mixture()
    share = sum(mixed.source_of(number) for number in range(100_000))
    assert abs(share - 1099) < 4 * 33


def test_micro_batches_of_a_text_go_through_its_blocks():
    """In any mixture, the batches of one text are those of this text alone, one after another."""
    mixed, alone = mixture(weights=(1, 1)), BlockOrder(501, 10, [0, 2])
    of_second = [starts for source, starts in map(mixed.batch, range(50)) if source == 1]
    assert len(of_second) > 10
    assert (np.concatenate(of_second) == alone.starts(0, 2 * len(of_second))).all()


def test_any_micro_batch_can_be_asked_for_first():
    in_order = [mixture_batch for mixture_batch in map(mixture(weights=(1, 1)).batch, range(3000))]
    for number in (2999, 0, 1024, 1023):
        source, starts = mixture(weights=(1, 1)).batch(number)
        assert (source, starts.tolist()) == (in_order[number][0], in_order[number][1].tolist())


def test_seeds_differ():
    drawn = {tuple(mixture(seed=seed).batch(0)[1].tolist()) for seed in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert len(drawn) == 4
