"""Units behind reshapes, poolings and norms: their inputs to the next layer, found by values that mark them."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_fire.where import HiddenUnits

UNITS = 3
STEPS = {
    "flatten": lambda h: h.flatten(1),
    "flatten positions": lambda h: h.flatten(2),
    "flatten units and rows": lambda h: h.flatten(1, 2),
    "view as vectors": lambda h: h.view(len(h), -1),
    "unflatten": lambda h: h.unflatten(1, (3, -1)),
    "unsqueeze": lambda h: h.unsqueeze(1),
    "squeeze": lambda h: h.squeeze(1),
    "transpose": lambda h: h.transpose(1, 2),
    "transpose by names": lambda h: h.transpose(dim0=1, dim1=-1),
    "channels last": lambda h: h.permute(0, 2, 3, 1),
    "mean of positions": lambda h: h.mean((2, 3)),
    "mean of columns": lambda h: h.mean(-1),
    "largest row": lambda h: h.amax(dim=2, keepdim=True),
    "largest of the second": lambda h: h.amax(dim=1, keepdim=True),
    "first mean": lambda h: h.mean(1),
    "pooling": lambda h: F.avg_pool2d(h, 2),
}


class Marked(nn.Module):
    """A convolution whose unit u is u + 1 at each of 2 × 4 positions, some steps, and a last layer."""

    def __init__(self, steps, flatten=False):
        super().__init__()
        self.first = nn.Conv2d(1, UNITS, 1)
        self.steps, self.flatten = steps, flatten
        with torch.no_grad():
            self.first.weight.zero_()
            self.first.bias.copy_(torch.arange(1.0, UNITS + 1))
            self.last = nn.Linear(self.before_last(torch.zeros(2, 1, 2, 4)).shape[-1], 2)

    def before_last(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        for step in self.steps:
            h = step(h)
        return h.flatten(1) if self.flatten else h

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.before_last(x))


def found_in(net: Marked) -> tuple[object, Tensor, str]:
    """Return the units of the first layer or None, the input of the last layer, and the table."""
    x, inputs = torch.zeros(2, 1, 2, 4), []
    handle = net.last.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    try:
        selection = HiddenUnits().select(net, lambda: net(x))
    except ValueError as error:
        return None, inputs[0].detach(), str(error)
    finally:
        handle.remove()
    return selection[0], inputs[0].detach(), str(selection)


def chains():
    for length in (1, 2):
        for names in product(STEPS, repeat=length):
            for flatten in (False, True):
                try:
                    net = Marked([STEPS[name] for name in names], flatten=flatten)
                except (RuntimeError, IndexError, ValueError):
                    continue  # does not fit the shape
                yield names, net


def test_the_inputs_of_a_unit_are_those_that_its_values_mark():
    taken = set()
    for names, net in chains():
        layer, inputs, _ = found_in(net)
        if layer is None:
            continue
        taken.add((*names, *(["flatten"] if net.flatten else [])))
        (outgoing,) = layer.outgoing
        marks = inputs.flatten(0, -2)  # (samples and positions, inputs)
        for unit in range(UNITS):
            expected = (marks == unit + 1).all(0).nonzero().flatten()
            assert outgoing.columns(torch.tensor([unit])).tolist() == expected.tolist(), names
            assert outgoing.block == len(expected) and outgoing.block * UNITS == marks.shape[1], names
        assert layer.observed is net.last
        assert torch.equal(layer.activity(inputs), torch.tensor([1.0, 2.0, 3.0]).expand(marks.numel() // UNITS, -1))
    assert taken >= {
        ("flatten", "view as vectors"),  # a second reshape
        ("flatten positions", "flatten"),
        ("flatten units and rows", "flatten"),
        ("pooling", "view as vectors"),
        ("unsqueeze", "squeeze", "flatten"),
        ("unsqueeze", "largest of the second", "flatten"),
        ("transpose", "transpose", "flatten"),
        ("mean of positions",),
        ("largest row", "flatten"),
        ("channels last",),
    }


@pytest.mark.parametrize("norm", ["batch", "instance", "group", "layer"])
@pytest.mark.parametrize(
    "steps", [[], ["flatten"], ["flatten positions"], ["flatten units and rows"], ["channels last"]]
)
def test_a_norm_is_taken_only_if_it_has_one_entry_for_each_unit(norm, steps):
    """After flattening it has one for each unit and position, which belongs to none of the units alone."""

    def normed(h: Tensor) -> Tensor:
        size = h.shape[-1] if norm == "layer" else h.shape[1]
        own, moving = [nn.Parameter(torch.ones(size)) for _ in range(2)], [torch.zeros(size), torch.ones(size)]
        used.extend(own)
        if norm == "batch":
            return F.batch_norm(h, *moving, *own, training=False)
        if norm == "instance":  # a vector has no positions
            return F.instance_norm(h if h.ndim > 2 else h.unsqueeze(-1), *moving, *own, use_input_stats=False)
        return F.group_norm(h, 1, *own) if norm == "group" else F.layer_norm(h, (size,), *own)

    used: list[nn.Parameter] = []
    net = Marked([*(STEPS[name] for name in steps), normed], flatten=norm != "layer")
    used.clear()
    layer, _, table = found_in(net)
    one_each = len(used[0]) == UNITS and (norm == "layer") == (steps == ["channels last"])
    assert (layer is not None) == one_each
    if one_each:
        assert [entries.tensor.shape for entries in layer.entries] == [(UNITS,)] * len(layer.entries)
        assert {id(entries.tensor) for entries in layer.entries} >= {id(tensor) for tensor in used}
    else:
        assert "first: goes into " in table and f"{norm}_norm" in table
