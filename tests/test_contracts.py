"""Optional members of a user's module and data: found on wrappers too, and documented on a page."""

import inspect
from pathlib import Path

import pytest
from torch import nn

from lightning_fire import contracts
from lightning_fire.contracts import HasAct, HasChunk, HasLossOn, HasTexts, chunk_of, implements, num_chunks_of

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "callbacks.md"
HEAD = "| offered by | member | meaning |\n|---|---|---|\n"


def table() -> str:
    rows = []
    for protocol in vars(contracts).values():
        if inspect.isclass(protocol) and protocol.__module__ == contracts.__name__:
            for name, member in vars(protocol).items():
                if not name.startswith("_"):
                    is_property = isinstance(member, property)
                    arguments = "" if is_property else f"({', '.join([*inspect.signature(member).parameters][1:])})"
                    owner = inspect.getdoc(protocol).rstrip(".")
                    rows.append(f"| {owner} | `{name}{arguments}` | {' '.join(inspect.getdoc(member).split())} |\n")
    return HEAD + "".join(rows)


def test_the_page_is_written_from_the_protocols():
    assert table() in PAGE.read_text(), f"write it with: python {Path(__file__).name}"


class ByDelegation:
    """A wrapper."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Inner:
    chunk, texts = 3, ["a"]

    def act(self, observations, step, generator): ...


@pytest.mark.parametrize("thing", [Inner(), ByDelegation(Inner())])
def test_members_are_found_on_an_object_and_through_a_wrapper(thing):
    assert implements(thing, HasChunk)
    assert implements(thing, HasAct)
    assert not implements(thing, HasLossOn)
    assert not implements(thing, HasTexts), "text_weights is missing"


def test_a_submodule_is_a_method_and_a_number_is_not():
    module = nn.Module()
    module.loss_on = nn.Linear(1, 1)
    assert implements(module, HasLossOn)
    module = nn.Module()
    module.loss_on = 3
    assert not implements(module, HasLossOn)


@pytest.mark.parametrize(("chunk", "expected"), [(2, 2), (True, 1), ("2024-05", None), (1.0, None), (None, None)])
def test_only_a_whole_number_is_a_chunk(chunk, expected):
    data = Inner()
    data.chunk = chunk
    assert chunk_of(data) == expected
    assert num_chunks_of(data) is None


if __name__ == "__main__":
    before, _, after = PAGE.read_text().partition(HEAD)
    PAGE.write_text(before + table() + after[after.index("\n\n") + 1 :])
