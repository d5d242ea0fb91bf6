"""What a selection has taken of a file, and why not the rest."""

from lightning_fire.where import Selection, WeightView
from lightning_fire.where.selection import Row, some


class StoredSelection(Selection):
    """The selected weights of a file. `print` shows every tensor of the file, taken or why not.

    Args:
        views: The selected weights, without values.
        rows: The table.
    """

    def by_tensor(self) -> dict[str, list[WeightView]]:
        """Return the selected weights by the name of the tensor that holds them."""
        grouped: dict[str, list[WeightView]] = {}
        for view in self:
            grouped.setdefault(view.name.removesuffix(f"[{view.role}]"), []).append(view)
        return grouped

    def refused(self) -> dict[str, list[Row]]:
        """Return the rows of tensors of which nothing is taken, by the reason."""
        taken = self.by_tensor()
        grouped: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.name not in taken:
                grouped.setdefault(row.verdict, []).append(row)
        return grouped


def about(refused: dict[str, list[Row]]) -> str:
    """Say each reason once, with how many tensors it holds for and the first of them.

    Args:
        refused: Rows by reason, see `StoredSelection.refused`.
    """
    reasons = [f"{len(rows)} {reason} ({some([row.name for row in rows], most=2)})" for reason, rows in refused.items()]
    return some(reasons, "; ")
