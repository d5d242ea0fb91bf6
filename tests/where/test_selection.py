"""What a selection has taken: by position, by name, and as a table."""

import pytest
import torch
from torch import nn

from lightning_fire.where import HiddenMatrices, HiddenUnits, Parameters, Selection, Weights

NET = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
SELECTIONS = {  # with the names of what they take
    "weights": (Weights(exclude=["^4"]).select(NET), ["0.weight", "2.weight"]),
    "parameters": (Parameters(include=["^2"]).select(NET), ["2.weight", "2.bias"]),
    "matrices": (HiddenMatrices().select(NET), ["2.weight"]),
    "units": (HiddenUnits().select(NET, lambda: NET(torch.zeros(1, 3))), ["0", "2"]),
}


@pytest.mark.parametrize("kind", SELECTIONS)
def test_what_is_taken_is_found_by_position_and_by_name(kind):
    selection, names = SELECTIONS[kind]
    assert type(selection) is Selection
    assert selection.names == names and len(selection) == len(names)
    taken = list(selection)
    assert [selection[name] for name in names] == [selection[at] for at in range(len(names))] == taken
    assert list(selection.items()) == list(zip(names, taken, strict=True)) and list(selection.values()) == taken
    assert selection[-1] is taken[-1] and selection[:-1] == taken[:-1]
    assert all(name in selection and selection[name] in selection for name in names)
    assert "4.weight" not in selection and NET[4].weight not in selection
    with pytest.raises(KeyError):
        selection["4.weight"]
    with pytest.raises(IndexError):
        selection[len(names)]


@pytest.mark.parametrize("kind", SELECTIONS)
def test_the_table_has_a_row_for_everything(kind):
    selection, names = SELECTIONS[kind]
    assert {row.name for row in selection.rows if row.reason == "taken"} == set(names)
    *lines, last = str(selection).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [row.name for row in selection.rows]
    assert len(selection.rows) == (3 if kind == "units" else 6)
    assert last.split()[0] == ("8" if kind == "units" else str(len(names))) and "taken" in last
