"""Embedding tables in files are left alone, whatever their name, as they are in training."""

import pytest
from checkpoint_files import stored
from torch import nn

from lightning_fire import Weights
from lightning_fire.checkpoints import Stored, select_weights
from lightning_fire.checkpoints.weights import by_tensor, tied_embedding

NAMES = ("wte", "tok", "pos", "word_vectors", "lut", "vocab", "lookup", "codebook", "item_factors", "speakers")
STRANGE = ("things", "E", "first", "symbols")  # known by their shapes alone


class Reader(nn.Module):
    """A table of tokens, two blocks without biases, and an output layer, tied or not."""

    def __init__(self, table: str, head: str = "", bias: bool = False):
        super().__init__()
        self.add_module(table, nn.Embedding(31, 8))
        self.blocks = nn.ModuleList(self.block() for _ in range(2))
        self.norm = nn.LayerNorm(8)
        if head:
            self.readout = nn.Linear(8, 31, bias=bias)
            if head == "tied":
                self.readout.weight = self.get_submodule(table).weight

    def block(self) -> nn.Module:
        return nn.ModuleDict({"up": nn.Linear(8, 20, bias=False), "down": nn.Linear(20, 8, bias=False)})


@pytest.mark.parametrize("head", ["", "untied", "tied"])
@pytest.mark.parametrize("table", NAMES + STRANGE)
def test_a_file_has_the_matrices_of_its_model(table, head):
    model = Reader(table, head)
    tensors = stored(model.state_dict())
    of_model = {view.name for view in Weights("cnn").select(model)}
    of_model -= {f"{table}.weight", "readout.weight"} if head == "tied" else set()  # a tied table needs --tied
    assert set(by_tensor(select_weights(tensors, Weights("cnn")))) == of_model


@pytest.mark.parametrize("table", NAMES[:2] + NAMES[3:7])
def test_a_tied_table_is_found(table):
    model = Reader(table, "tied")
    assert tied_embedding(stored(model.state_dict())) == f"{table}.weight"
    names = set(by_tensor(select_weights(stored(model.state_dict()), Weights("cnn"), tied=True)))
    assert names == {f"{table}.weight", *(f"blocks.{i}.{part}.weight" for i in (0, 1) for part in ("up", "down"))}


@pytest.mark.parametrize(
    "tensors",
    [
        {"attn.qkv.weight": (24, 8), "attn.out.weight": (8, 8), "mlp.weight": (8, 8)},
        {"actions.weight": (3, 8), "fc.weight": (8, 8)},
        {"policy.weight": (30, 8), "value.weight": (2, 8), "fc.weight": (8, 8)},
        {"body.weight": (16, 5), "mu.weight": (18, 16), "mu.bias": (18,), "log_std.weight": (18, 16)},
        {"attn.pos_proj.weight": (27, 8), "attn.linear_pos.weight": (27, 8), "fc.weight": (8, 8)},
        {"0.weight": (16, 5), "2.weight": (3, 16)},
        {"only.weight": (40, 3)},
        {"conv.weight": (6, 4, 3, 3), "fc.weight": (5, 6), "end.weight": (3, 5)},
    ],
    ids=lambda tensors: next(iter(tensors)),
)
def test_layers_without_a_bias_are_not_tables(tensors):
    selection = select_weights([Stored(name, shape, "F32") for name, shape in tensors.items()], Weights("cnn"))
    assert set(by_tensor(selection)) == {name for name in tensors if name.endswith("weight")}


def test_a_table_is_taken_where_a_pattern_names_it():
    tensors = stored(Reader("things").state_dict())
    assert "things.weight" in by_tensor(select_weights(tensors, Weights("cnn", include=[".", "things"])))
