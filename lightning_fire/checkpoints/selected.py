"""Selection among candidates of a file: splits, presets, names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lightning_fire.checkpoints.candidate import Candidate, is_matrix, is_vector
from lightning_fire.checkpoints.fused import candidate_in
from lightning_fire.where import Selection, Weights, WeightView
from lightning_fire.where.presets import PRESETS
from lightning_fire.where.selection import Row, format_shape, shorten

VECTOR = "one row or column: only its length would change"


def declared(weights: Weights, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, split according to `split`."""
    for pattern in weights.split:
        if not any(re.search(pattern, candidate.name) for candidate in candidates):
            names = shorten([candidate.name for candidate in candidates]) or "none"
            raise ValueError(f"`split` has {pattern!r}, which matches no weight; there are: {names}")
    return [_declared(weights, candidate) for candidate in candidates]


def _declared(weights: Weights, candidate: Candidate) -> Candidate:
    rows = next((rows for pattern, rows in weights.split.items() if re.search(pattern, candidate.name)), None)
    if rows is None or not candidate.views:
        return candidate
    shape, blocks = candidate.whole.shape, rows.get("blocks", 1)
    widths = {name: number for name, number in rows.items() if name != "blocks"}
    if blocks * sum(widths.values()) != shape[0]:
        raise ValueError(
            f"`split` gives {candidate.name} {blocks} · ({' + '.join(map(str, widths.values()))}) ="
            f" {blocks * sum(widths.values())} rows, but it has {shape[0]}"
        )
    reason = "" if candidate.reason.startswith("fused") else candidate.reason
    return replace(candidate, views=candidate_in((widths, blocks), candidate.whole).views, reason=reason)


def reasons_of(weights: Weights, candidates: Sequence[Candidate], preset: str) -> dict[WeightView, str]:
    """Return for each view of candidates why it is not taken."""
    weights.check([name for c in candidates for name in (*(view.name for view in c.views), *c.aliases)])
    found = {}
    for candidate in candidates:
        for view in candidate.views:
            vector = VECTOR if is_vector(view) and not weights.vectors else ""
            found[view] = candidate.reason or vector
            found[view] = found[view] or (f"not in preset {preset}" if not PRESETS[preset](view) else "")
            found[view] = found[view] or weights.reason(view.name, *candidate.aliases)
    return found


def preset_for(weights: Weights, candidates: Sequence[Candidate], language_model: bool) -> str:
    """Return the preset; `auto` is resolved from all candidates of a file."""
    if weights.preset != "auto":
        return weights.preset
    if language_model and any(candidate.attention for candidate in candidates):
        return "gpt"
    return "vit" if mostly_attention(candidates) else "cnn"


def mostly_attention(candidates: Sequence[Candidate]) -> bool:
    """Return whether queries and keys are more than a quarter of all matrices with more than three inputs."""
    matrices = [candidate for candidate in filter(is_matrix, candidates) if candidate.whole.shape[1] > 3]
    unknown = [c for c in matrices if c.attention and not any(view.role for view in c.views)]  # counted as three
    number = sum(len(c.views) if c.attention else 1 for c in matrices) + 2 * len(unknown)
    found = sum(view.role in ("q", "k") for c in matrices for view in c.views) + 2 * len(unknown)
    return 4 * found > number


def selected_weights(
    reasons: Mapping[WeightView, str], rows: Sequence[Row], candidates: Iterable[Candidate], preset: str
) -> Selection[WeightView]:
    """Return the selection of the views without a reason, with the total number of matrices."""
    taken = {view.name: view for view, reason in reasons.items() if not reason}
    # counts each part of a fused weight, and the selected vectors
    matrices = sum(is_matrix(c) or view.name in taken for c in candidates for view in c.views)
    counted = f"{len(taken)} of {matrices} weight matrices"
    return Selection(taken, rows, ("parameter", "shape", "matrices"), counted, preset=preset)


def row_of(candidate: Candidate, shape: tuple[int, ...], reasons: Mapping[WeightView, str]) -> Row:
    """Return the row of a candidate in the table of a selection."""
    parts = {view.role: reasons[view] or "taken" for view in candidate.views} or {"": candidate.reason}
    reason = parts.popitem()[1] if len(set(parts.values())) == 1 else ", ".join(map(" ".join, parts.items()))
    notes = [candidate.note, f"tied with {', '.join(candidate.aliases)}" if candidate.aliases else ""]
    views = ", ".join(f"{view.role} {_matrices_of(view)}".strip() for view in candidate.views)
    return Row(candidate.name, shape, views, reason + "".join(f" ({note})" for note in notes if note))


def _matrices_of(view: WeightView) -> str:
    """Format the shape of a view; a stack as `4 of 16×8`."""
    if not view.layout.startswith("stacked"):
        return format_shape(view.shape)
    return f"{view.groups} of {format_shape((view.shape[0] // view.groups, *view.shape[1:]))}"
