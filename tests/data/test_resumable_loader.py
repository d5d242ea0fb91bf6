"""`ResumableLoader`: order of the samples and draws in worker processes, by seed, epoch and batch alone."""

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from lightning_fire.data.resumable_loader import ResumableLoader


class Augmented(Dataset):
    """Samples with a random number that a worker draws."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return index, torch.rand(())


def drawn(seed, epoch, skip=0, dataset=None, **options):
    """Sample numbers, and the numbers drawn for them, in one epoch of a new loader."""
    loader = ResumableLoader(dataset or Augmented(), 2, seed=seed, **options)
    loader.sampler.set_epoch(epoch)
    loader.load_state_dict({"epoch": epoch, "batches": skip})
    torch.rand(seed + epoch + skip)  # the global random state is another one each time
    batches = list(loader)
    assert all(len(numbers) for numbers, _ in batches)
    return tuple([number for batch in batches for number in batch[part].tolist()] for part in (0, 1))


def test_what_workers_draw_depends_on_seed_and_epoch_alone():
    first = drawn(0, 0, num_workers=1)
    others = [drawn(seed, epoch, num_workers=1) for seed, epoch in ((0, 1), (1, 0), (1, 1))]
    torch.manual_seed(7)
    state = torch.get_rng_state()
    again = ResumableLoader(Augmented(), 2, num_workers=1)
    assert [number for batch in again for number in batch[1].tolist()] == first[1]
    assert torch.equal(torch.get_rng_state(), state)
    numbers = [number for _, several in (first, *others) for number in several]
    assert len(set(numbers)) == 20  # no two epochs and seeds draw the same
    assert all(sorted(order) == list(range(5)) for order, _ in (first, *others))
    assert len({tuple(order) for order, _ in (first, *others)}) == 4


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resumed_epoch_has_the_rest_of_its_batches_and_the_next_one_all(by_batch, shuffle):
    dataset = TensorDataset(torch.arange(7), torch.arange(7.0))
    options = {"dataset": dataset, "by_batch": by_batch, "shuffle": shuffle}
    whole = {epoch: drawn(3, epoch, **options)[0] for epoch in (4, 5)}
    assert sorted(whole[4]) == list(range(7)) and (whole[4] == sorted(whole[4])) == (not shuffle)
    for skip in range(5):
        assert drawn(3, 4, skip, **options)[0] == whole[4][2 * skip :]
    loader = ResumableLoader(dataset, 2, by_batch=by_batch, shuffle=shuffle, seed=3)
    loader.load_state_dict({"epoch": 4, "batches": 2})
    for epoch in (4, 5, 4):
        loader.sampler.set_epoch(epoch)
        order, done = [], 2 * (epoch == 4)
        for batch in loader:
            done += 1
            order += batch[0].tolist()
            assert loader.state_dict() == {"epoch": epoch, "batches": done}
        assert order == whole[epoch][4 * (epoch == 4) :]
