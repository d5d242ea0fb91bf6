"""Which weights of a file to act on: a preset, narrowed by names."""

import re
from collections.abc import Sequence

from lightning_fire.checkpoints.candidates import Candidate, candidates_of
from lightning_fire.checkpoints.names import UNLESS_NAMED, path_of
from lightning_fire.checkpoints.selection import StoredSelection, about
from lightning_fire.checkpoints.stored import Stored
from lightning_fire.where import WeightView
from lightning_fire.where.selection import ByName, Row, times
from lightning_fire.where.weights import PRESETS, Preset, preset_for, require_preset, verdict_of


class StoredWeights(ByName):
    """Selects weight matrices of a file by a preset, narrowed by names: `lightning_fire.Weights` without a module.

    Taken are floating tensors of at least 2 dimensions that are named as the weight of a layer. Embeddings are left
    alone, with an output layer tied to one, and so are convolutions of one column: these are taken only where a pattern
    of `include` spells out the layer's own name.

    Args:
        preset: `cnn`: every matrix and convolution. `vit`: query and key projections. `gpt`: every matrix, a fused
            query-key-value projection in three parts. `auto`: `vit` where there is attention, otherwise `cnn`;
            a file does not tell whether it is of a causal language model.
        include: Regular expressions, searched in names such as `layer1.0.conv1.weight` or `attn.qkv.weight[q]`.
        exclude: Likewise.

    Raises:
        ValueError: If `preset` is unknown, or `include` or `exclude` is no list of regular expressions.

    Example:
        >>> tensors = [Stored("wte.weight", (9, 4), "F32"), Stored("h.0.mlp.c_fc.weight", (16, 4), "F32")]
        >>> print(StoredWeights().select(tensors))
        parameter            shape  matrices
        wte.weight           9×4    9×4       embedding
        h.0.mlp.c_fc.weight  16×4   16×4      taken
        1 weight matrices taken
    """

    def __init__(self, preset: Preset = "auto", include: list[str] | None = None, exclude: list[str] | None = None):
        require_preset(preset)
        self.preset = preset
        super().__init__(include, exclude)

    def select(self, tensors: Sequence[Stored]) -> StoredSelection:
        """Apply the selection to the tensors of a file.

        Args:
            tensors: All of them.

        Returns:
            The selected weights.

        Raises:
            ValueError: If nothing is selected, or a pattern matches no weight.
        """
        candidates = candidates_of(tensors)
        names = [view.name for candidate in candidates for view in candidate.views]
        self.check([*names, *(alias for stored in tensors for alias in stored.aliases)])
        preset = preset_for(self.preset, any(candidate.attention for candidate in candidates))
        taken, rows = [], []
        for candidate in candidates:
            reasons = {view: self._why_not(preset, candidate, view) for view in candidate.views}
            taken += [view for view, reason in reasons.items() if not reason]
            rows.append(_row(candidate, reasons))
        selection = StoredSelection(taken, rows)
        if not taken:
            raise ValueError(f"no weight is taken by {self}: {about(selection.refused()) or 'there are no tensors'}")
        return selection

    def _why_not(self, preset: str, candidate: Candidate, view: WeightView) -> str:
        if candidate.obstacle and not (candidate.obstacle in UNLESS_NAMED and self._names(candidate.stored)):
            return candidate.obstacle
        return self._refusal(candidate, view) if PRESETS[preset](candidate.kind, view) else f"not in preset {preset}"

    def _refusal(self, candidate: Candidate, view: WeightView) -> str:
        """Say why none of its names takes a weight; a name that is excluded excludes it."""
        reasons = {self.refusal(name) for name in (view.name, *candidate.stored.aliases)}
        return "excluded" if "excluded" in reasons else "" if "" in reasons else "not included"

    def _names(self, stored: Stored) -> bool:
        """Whether some pattern spells out the layer's own name, and does not only match that of the whole model."""
        for name in stored.names:
            layer = path_of(name)[1]
            first = name.rindex(layer)
            last = first + len(layer)
            found = [match.span() for pattern in self.include or () for match in re.finditer(pattern, name)]
            if any(start <= first and end >= last and end > start + 1 for start, end in found):
                return True
        return False


def _row(candidate: Candidate, reasons: dict[WeightView, str]) -> Row:
    views = ", ".join(f"{view.role} {times(view.shape)}".strip() for view in candidate.views)
    verdict = verdict_of(reasons) if reasons else candidate.obstacle
    if candidate.note:
        verdict += f" ({candidate.note})"
    if candidate.stored.aliases:
        verdict += f" (tied with {', '.join(candidate.stored.aliases)})"
    return Row(candidate.stored.name, candidate.stored.shape, views, verdict)
