"""`lightning-fire reinit` with each method: values against slow ones, NaN and Inf, tied tensors."""

import itertools
import math

import pytest
import reference
import torch
from checkpoint_files import TAKEN, draw, error_of, load, raw, reinit, small_state, write_safetensors

from lightning_fire.where.selection import ByName

METHODS = ("fire", "shrink_and_perturb", "full_reset")
KINDS = (".safetensors", ".pt")


def write(path, state):
    if path.suffix == ".pt":
        torch.save({"state_dict": state, "epoch": 3}, path)
        return path
    return write_safetensors(path, state)


def read(path):
    return torch.load(path)["state_dict"] if path.suffix == ".pt" else load(path)


def initial_of(state):
    numbered = enumerate(state.items(), start=50)
    return {key: draw(*t.shape, seed=n) if t.is_floating_point() else torch.zeros_like(t) for n, (key, t) in numbered}


def options_of(method, start):
    return ["--method", method, *([] if method == "fire" else ["--initial", start])]


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize(
    ("strength", "perturb"), list(itertools.product([None, 0.0, 0.3, 1.0], [None, 0.0, 0.5])), ids=str
)
def test_shrink_and_perturb_by_its_options(tmp_path, strength, perturb, suffix):
    state = small_state()
    start = write(tmp_path / f"start{suffix}", initial_of(state))
    path, output = write(tmp_path / f"in{suffix}", state), tmp_path / f"out{suffix}"
    options = [word for name, value in (("--strength", strength), ("--perturb", perturb)) if value is not None
               for word in (name, value)]  # fmt: skip
    reinit(path, "-o", output, *options_of("shrink_and_perturb", start), *options)
    for key, value in read(output).items():
        if key == "norm.num_batches_tracked":
            assert value == 3
            continue
        factor = 0.8 if strength is None else strength
        expected = reference.shrink_and_perturb(state[key], initial_of(state)[key], factor, perturb)
        torch.testing.assert_close(value, expected.to(value.dtype), rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_each_method_changes_what_it_takes_and_no_other_bit(tmp_path, method, suffix):
    state = small_state() | {"norm.running_mean": draw(6, seed=7)}
    initial = initial_of(state)
    start = write(tmp_path / f"start{suffix}", dict(reversed(initial.items())))
    path, output = write(tmp_path / f"in{suffix}", state), tmp_path / f"out{suffix}"
    reinit(path, "-o", output, *options_of(method, start), "--exclude", "head")
    new = {
        "fire": lambda key: reference.fire(state[key]),
        "shrink_and_perturb": lambda key: reference.shrink_and_perturb(state[key], initial[key], 0.8),
        "full_reset": lambda key: initial[key],
    }[method]
    taken = {
        "fire": {"stem.weight", "fc.weight"},
        "shrink_and_perturb": state.keys() - {"head.weight", "norm.num_batches_tracked", "norm.running_mean"},
        "full_reset": state.keys() - {"head.weight"},
    }[method]
    assert "head.weight" in TAKEN
    for key, value in read(output).items():
        if key in taken:
            torch.testing.assert_close(value, new(key).to(value.dtype), rtol=1e-4, atol=1e-5, msg=key)
        else:
            assert raw(value) == raw(state[key]), key
    assert all(raw(value) == raw(state[key]) for key, value in read(path).items())


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["the checkpoint", "the initial values"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_written_that_is_not_finite(tmp_path, method, place, bad, suffix):
    state, output = small_state(), tmp_path / f"out{suffix}"
    initial = initial_of(state)
    (state if place == "the checkpoint" else initial)["fc.weight"][1, 2] = bad
    start, path = write(tmp_path / f"start{suffix}", initial), write(tmp_path / f"in{suffix}", state)
    words = [path, "-o", output, *options_of(method, start)]
    if (method, place) in (("fire", "the initial values"), ("full_reset", "the checkpoint")):  # of no use here
        reinit(*words)
        assert all(value.isfinite().all() for value in read(output).values())
        return
    assert f"NaN or Inf in fc.weight of {place}; nothing has been written" in error_of("reinit", *words)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"in{suffix}", f"start{suffix}"]


SELECTIONS = [None, ["head"], ["embed"], ["other"], ["head", "embed"]]


@pytest.mark.parametrize("exclude", SELECTIONS, ids=str)
@pytest.mark.parametrize("include", SELECTIONS, ids=str)
def test_one_excluded_name_excludes_and_one_included_name_includes(include, exclude):
    """A tensor with several names, as tied ones have."""
    selection = ByName(include, exclude)
    for names in itertools.permutations(["head.weight", "embed.weight"]):
        included = include is None or any(pattern in name for pattern in include for name in names)
        excluded = any(pattern in name for pattern in exclude or () for name in names)
        assert (selection.reason(*names) == "") == (included and not excluded)


@pytest.mark.parametrize("exclude", ["head", "embed"])
@pytest.mark.parametrize("method", METHODS[1:])
def test_a_tied_tensor_is_kept_if_one_of_its_names_is_excluded(tmp_path, method, exclude):
    state = {"embed.weight": draw(9, 4), "fc.weight": draw(5, 6, seed=1)}
    state["head.weight"] = state["embed.weight"]
    start = write(tmp_path / "start.pt", {"embed.weight": draw(9, 4, seed=2), "fc.weight": draw(5, 6, seed=3)})
    path, output = write(tmp_path / "in.pt", state), tmp_path / "out.pt"
    reinit(path, "-o", output, *options_of(method, start), "--exclude", exclude)
    new = read(output)
    assert torch.equal(new["embed.weight"], state["embed.weight"]) and torch.equal(
        new["head.weight"], state["head.weight"]
    )
    assert not torch.equal(new["fc.weight"], state["fc.weight"])
    reinit(path, "-o", output, *options_of(method, start), "--force")
    new = read(output)
    assert torch.equal(new["embed.weight"], new["head.weight"])
    assert not torch.equal(new["embed.weight"], state["embed.weight"])


def test_initial_values_of_a_larger_model_are_noted(tmp_path, capsys):
    path, larger = (
        write(tmp_path / "in.pt", small_state()),
        initial_of(small_state()) | {"fc2.weight": draw(5, 5, seed=9)},
    )
    reinit(path, "-o", tmp_path / "out.pt", *options_of("full_reset", write(tmp_path / "start.pt", larger)))
    assert "start.pt were of another model: fc2.weight" in capsys.readouterr().out
