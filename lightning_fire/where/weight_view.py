"""A weight of a model as `(out, in / groups, *kernel)`, for any storage layout."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_fire.distributed import gathered, is_sharded, put

Layout = Literal["out_in", "in_out", "transposed_conv", "stacked_out_in", "stacked_in_out"]
LAYOUTS: tuple[str, ...] = get_args(Layout)


@dataclass(frozen=True, eq=False)
class WeightView:
    """A weight, or one part of a fused weight, that can be read and replaced.

    A fused weight holds several matrices: changing `parameter.data` as one matrix damages them. Use `read` and `write`.

    Attributes:
        name: Name of the parameter; for a part of a fused weight followed by its letter: `attn.qkv.weight[q]`.
        parameter: The parameter that holds it.
        groups: Number of convolution groups, or of the matrices in a stack.
        layout: How the parameter is stored. `out_in`: as Linear and convolutions do. `in_out`: `(*kernel, in, out)`, as
            Hugging Face's Conv1D and Keras do. `transposed_conv`: `(in, out / groups, *kernel)`. `stacked_out_in`,
            `stacked_in_out`: a stack of such weights, as of experts, `(groups, out / groups, in)` or
            `(groups, in, out / groups)`.
        rows: For a fused weight, the range (first, last + 1) of this part's outputs in each group.
        blocks: For an interleaved fused weight, the number of equal blocks of outputs; `rows` refers to each block.
        role: `q`, `k` or `v` for a projection of attention, otherwise empty.
    """

    name: str
    parameter: Parameter
    groups: int = 1
    layout: Layout = "out_in"
    rows: tuple[int, int] | None = None
    blocks: int = 1
    role: str = ""

    def of(self, tensor: Tensor) -> "WeightView":
        """Return the same view of another tensor of the parameter's shape, such as a gradient."""
        return replace(self, parameter=tensor)  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `(out, in / groups, *kernel)`."""
        groups, blocks, out, *rest = self._grid_of(torch.empty(self.parameter.shape, device="meta")).shape
        return (groups * blocks * out, *rest)

    def read(self) -> Tensor:
        """Return the weight. A sharded parameter is gathered: all processes must call this.

        Returns:
            Shape `(out, in / groups, *kernel)`, detached. It may share memory with the parameter: do not write into it.
        """
        weight = self._grid_of(gathered(self.parameter)).flatten(0, 2)
        part = self.rows is not None and is_sharded(self.parameter)
        return weight.clone() if part else weight  # frees the rest of the gathered weight

    @torch.no_grad()
    def write(self, weight: Tensor) -> None:
        """Replace the weight in place; storage, strides, dtype and sharding of the parameter stay.

        Args:
            weight: Shape `(out, in / groups, *kernel)`; for a sharded parameter the same on all processes, which must
                all call this.

        Raises:
            ValueError: If the shape is different.
        """
        if tuple(weight.shape) != self.shape:
            raise ValueError(f"`weight` for {self.name} must have shape {self.shape}, got {tuple(weight.shape)}")
        whole = gathered(self.parameter)
        grid = self._grid_of(whole)
        grid.copy_(weight.unflatten(0, grid.shape[:3]))
        if is_sharded(self.parameter):
            put(self.parameter, whole)

    def grid(self) -> Tensor:
        """Return a strided view of the parameter, which must not be sharded, to be written into.

        Returns:
            Shape `(groups, blocks, out / groups / blocks, in / groups, *kernel)`; detached.
        """
        return self._grid_of(self.parameter.detach())

    def _grid_of(self, stored: Tensor) -> Tensor:
        """Return a view `(groups, blocks, …, in / groups, *kernel)` of the storage."""
        if self.layout == "in_out":
            grid = torch.unflatten(stored.movedim((-1, -2), (0, 1)), 0, (self.groups, -1))
        elif self.layout == "transposed_conv":
            grid = torch.unflatten(stored, 0, (self.groups, -1)).transpose(1, 2)
        elif self.layout == "stacked_in_out":
            grid = stored.mT
        else:
            grid = stored if self.layout == "stacked_out_in" else torch.unflatten(stored, 0, (self.groups, -1))
        grid = torch.unflatten(grid, 1, (self.blocks, -1))
        return grid if self.rows is None else grid[:, :, self.rows[0] : self.rows[1]]
