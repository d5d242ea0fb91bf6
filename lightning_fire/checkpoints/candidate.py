"""A weight of a model, or a tensor of a file, that could be selected."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_fire.where.weight_view import WeightView

DEPTHWISE = "depthwise convolution: single columns, no matrices"
LOW_RANK = "low-rank factor of an adapter"


@dataclass
class Candidate:
    """A weight of a model, or a tensor of a file, that could be selected.

    Attributes:
        views: Its parts: one; several for a fused weight; none if it is not the weight of a layer.
        reason: Why it can never be selected; empty if it can.
        note: A remark for the table.
        attention: Whether it holds a query, key or value projection, in a known order or not.
        aliases: Its other names, which patterns match as well.
        parametrization: Name of the parametrization that computes it, such as `weight_norm`; its views then only have
            shapes.
        declared: Whether the user has declared its layout.
    """

    name: str
    views: Sequence[WeightView] = ()
    reason: str = ""
    note: str = ""
    attention: bool = False
    aliases: tuple[str, ...] = ()
    parametrization: str = ""
    declared: bool = False

    def __post_init__(self) -> None:
        self.attention = self.attention or any(view.role in ("q", "k", "v", "kv") for view in self.views)

    @property
    def whole(self) -> WeightView:
        """All parts together."""
        return replace(self.views[0], name=self.name, rows=None, blocks=1, role="")


def is_vector(view: WeightView) -> bool:
    """Return whether a weight has, for each group, one row or one column in total."""
    rows, columns, *kernel = view.shape
    return min(rows // view.groups, columns) == 1 and math.prod(kernel) == 1


def is_matrix(candidate: Candidate) -> bool:
    """Return whether a candidate is a weight matrix or several, selected or not."""
    vectors = all(map(is_vector, candidate.views))  # also without views
    return not vectors and candidate.reason not in (DEPTHWISE, LOW_RANK, "empty")
