"""Which runs of a comparison share the training before the first event."""

import json
from dataclasses import replace

import pytest
import yaml

from lightning_fire.experiments.branching import with_shared_starts
from lightning_fire.experiments.runs import MARKER, START, Run

BASE = "trainer: {max_epochs: 8}\nmodel: {class_path: lightning_fire.Classifier}\n"


def reset(when):
    return f"method: {{class_path: FullReset}}\nwhen: {{class_path: {when}}}"


AT_NEW_DATA, AT_2, AT_4 = reset("AtNewData"), *(
    reset(f"AtEpochs, init_args: {{epochs: [{epoch}]}}") for epoch in (2, 4)
)  # fmt: skip


def run_of(folder, name, overlay="", seed=0, base=BASE):
    return Run(name, seed, folder / name / f"seed{seed}", [yaml.safe_load(text) for text in (base, overlay) if text])


def finish(run):
    """Leave the files of a finished training."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for file in run.products:
        file.touch()
    (run.folder / MARKER).write_text(json.dumps({"settings": run.fingerprint()}))


def sharing(runs):
    """Names of the runs that continue from a start, with the epochs that it has."""
    found = {}
    for run in with_shared_starts(runs):
        if run.start is not None:
            assert run.start.configs == run.configs[:1] and run.start.seed == run.seed
            assert run.checkpoint == run.start.products[0]
            found[run.method, run.seed] = run.start.saves[START]
    return found


def test_the_largest_group_shares_and_vanilla_with_it(tmp_path):
    vanilla, one, other, later = (
        run_of(tmp_path, name, overlay)
        for name, overlay in {"vanilla": "", "one": AT_2, "other": AT_2.replace("{epochs: [2]}", "{epochs: [2, 5]}"),
                              "later": AT_4}.items()
    )  # fmt: skip
    assert sharing([vanilla, one, other, later]) == dict.fromkeys([("vanilla", 0), ("one", 0), ("other", 0)], 2)
    assert sharing([one, later, vanilla]) == dict.fromkeys([("one", 0), ("vanilla", 0)], 2)
    assert sharing([one, other]) == dict.fromkeys([("one", 0), ("other", 0)], 2)
    for alone in ([vanilla], [one], [one, later]):
        assert sharing(alone) == {}


def test_runs_share_with_the_same_base_and_seed_alone(tmp_path):
    first, second = (run_of(tmp_path, "fire", AT_NEW_DATA, seed) for seed in (0, 1))
    vanilla = run_of(tmp_path, "vanilla", seed=1)
    assert sharing([first, second, vanilla]) == {("fire", 1): None, ("vanilla", 1): None}
    of_another_base = run_of(tmp_path, "vanilla", seed=0, base=BASE.replace("8", "9"))
    assert sharing([first, of_another_base]) == {}


@pytest.mark.parametrize("when", [AT_NEW_DATA, AT_2])
def test_a_run_that_is_added_continues_from_the_start_that_was_kept(tmp_path, when):
    one, other, added = (run_of(tmp_path, name, when) for name in ("one", "other", "added"))
    started, _ = with_shared_starts([one, other], keep=True)
    assert started.start.kept
    assert sharing([added]) == {}
    finish(started.start)
    epochs = started.start.saves[START]
    assert sharing([added]) == {("added", 0): epochs}
    assert sharing([replace(added, extra={"trainer": {"max_epochs": 9}})]) == {}  # of another training
    started.start.products[0].unlink()
    assert sharing([added]) == {}


def test_finished_runs_keep_their_start_so_that_it_is_removed(tmp_path):
    one, other = (run_of(tmp_path, name, AT_2) for name in ("one", "other"))
    finish(one)
    (found,) = with_shared_starts([one])
    assert found.start is not None and found.start.folder == tmp_path / "shared_start/seed0"
    assert set(sharing([one, other])) == {("one", 0)}  # the other alone needs none
