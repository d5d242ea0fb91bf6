"""A sample of the zoo: everything has a reason, splits are those of the heads; the check of splits finds wrong ones."""

import csv
from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_fire.where import Weights

from .__main__ import STORED
from .architectures import LIBRARIES
from .gradients import confirmed
from .outcome import is_right, outcome

SAMPLE = {
    "torchvision": ["mobilenet_v3_small", "vit_b_16"],
    "transformers": ["gpt2", "phi3", "bloom, n_head"],
    "timm": [
        *("levit_384_s8", "vit_relpos_small_patch16_224", "pvt_v2_b0", "swinv2_tiny_window8_256"),
        *("efficientformer_l1", "mobilenetv3_small_050", "mobilevit_s", "efficientvit_b0", "gcvit_tiny"),
    ],
    "torch_geometric": ["GCN", "GAT"],
    "litgpt": ["Llama-3-8B"],
    "torchrl": ["MLP"],
}
TABLE = list(csv.DictReader(STORED.read_text(encoding="utf-8").splitlines()))
STORED_ROWS = {(row["library"], row["architecture"]): row for row in TABLE}


@pytest.mark.parametrize(("library", "name"), [(library, name) for library in SAMPLE for name in SAMPLE[library]])
def test_a_sample_is_as_stored(library, name):
    """Other releases of a library may have other weights, but none without a reason."""
    known = dict(LIBRARIES[library](pytest.importorskip(library)))
    found, stored = outcome(library, name, known[name]), STORED_ROWS[library, name]
    assert found["weights"] == found["taken"] + found["left_out"] and found["taken"]
    assert not found["silent"] and not found["unconfirmed"]
    if str(found["weights"]) == stored["weights"]:
        assert {key: str(found[key]) for key in ("taken", "split", "auto", "reasons")} == {
            key: stored[key] for key in ("taken", "split", "auto", "reasons")
        }


def test_the_stored_table_has_a_reason_for_each_weight_and_confirms_each_split():
    assert len(STORED_ROWS) >= 450 and {library for library, _ in STORED_ROWS} == set(LIBRARIES)
    for row in STORED_ROWS.values():
        numbers = {key: int(value) for key, value in row.items() if value.isdigit()}
        assert numbers["weights"] == numbers["taken"] + numbers["left_out"], row["architecture"]
        assert not numbers["silent"], row["architecture"]
        assert not numbers["unconfirmed"], row["architecture"]
        assert numbers["split"] == sum(numbers[key] for key in ("by_heads", "by_gradient", "unconfirmed"))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.head_dim = 2, 4
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_the_checks_of_splits_find_a_wrong_one():
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(2, 5, 8)
    split = {"qkv": {"q": 8, "k": 8, "v": 8}}
    views = [view for view in Weights("cnn", split=split).select(model) if "qkv" in view.name]
    right = {"qkv.weight": {view.role: view for view in views}}
    assert is_right(model, "qkv.weight", views) and confirmed(model, x, right) == {"qkv.weight"}
    others = [replace(view, rows=rows) for view, rows in zip(views, [(0, 12), (12, 18), (18, 24)], strict=True)]
    assert not is_right(model, "qkv.weight", others)
    assert confirmed(model, x, {"qkv.weight": {view.role: view for view in others}}) == set()
    by_head = [replace(view, rows=(4 * i, 4 * i + 4), blocks=2) for i, view in enumerate(views)]
    assert is_right(model, "qkv.weight", by_head)  # the same numbers of rows, in another order
    assert confirmed(model, x, {"qkv.weight": {view.role: view for view in by_head}}) == set()
