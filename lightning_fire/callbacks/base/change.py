"""New values of weights, what they do to plasticity and stability, and their writing in place."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, distributed
from torch.optim import Optimizer

from lightning_fire.callbacks.base.optimizer_state import OptimizerPolicy, forget_state
from lightning_fire.distributed import is_sharded, local, put
from lightning_fire.functional import as_matrices, dfi, dfi_normalized, sfe, singular_values
from lightning_fire.where import WeightView

_MEASURES = ("dfi_before", "dfi_after", "dfi_normalized_before", "dfi_normalized_after", "sfe", "norm", "zero")


@torch.no_grad()
def new_weights(
    views: Sequence[WeightView],
    new_weight: Callable[[WeightView, Tensor], Tensor],
    group: str,
    rank: int = 0,
    world_size: int = 1,
) -> tuple[dict[Tensor, Tensor], dict[str, float], list[str]]:
    """Compute a new weight for each selected one, for `write`.

    Several ranks share the work: each computes some of the new weights, and sends them to the others.

    Args:
        views: The weights; left as they are.
        new_weight: From a view and its weight, shape `(out, in / groups, *kernel)`, to the new weight, same shape.
        group: Prefix of the keys, such as `"fire"`.
        rank: Number of this process.
        world_size: Number of processes; all have the same weights and call this.

    Returns:
        The new values by parameter, sharded as it is; what to log, by key; and the names of the views that hold an
        all-zero matrix. Keys, as means over the weights: `{group}/dfi_normalized_before`,
        `…/dfi_normalized_after`, and without the normalization, which mixes in the scale, `{group}.raw/dfi_before`,
        `…/dfi_after` (each a mean over the kernel positions of a weight); as sums: `{group}/sfe`; and
        `{group}/sfe_normalized`, the sum of SFE by the sum of ‖W‖_F². The same per weight as
        `{group}.layers/{measure}/{name}`. `{group}/seconds`: time taken.

    Raises:
        ValueError: If a weight has a NaN or Inf; names the weight.
    """
    start = time.perf_counter()
    owners = share_out([cost(view.shape) for view in views], world_size)
    # Sharded weights are gathered by all ranks together, before each goes its own way; others are not copied.
    weights = [
        weight if owner == rank else None for owner, weight in zip(owners, map(WeightView.read, views), strict=True)
    ]
    device = views[0].parameter.device if views else None
    seen = [torch.zeros((), device=device) if weight is None else weight for weight in weights]
    require_finite({view.name: weight for view, weight in zip(views, seen, strict=True)}, by_ranks=world_size > 1)
    del seen
    values = {parameter: parameter.detach().clone() for parameter in dict.fromkeys(view.parameter for view in views)}
    copies = [replace(view, parameter=values[view.parameter]) for view in views]
    rows, kept = [], {}
    for index, (view, copy) in enumerate(zip(views, copies, strict=True)):
        weight, weights[index] = weights[index], None  # frees what was gathered
        if weight is None:
            rows.append(torch.zeros(len(_MEASURES), device=device))
            continue
        new = new_weight(view, weight)
        rows.append(_change(weight, new, view.groups))
        if is_sharded(view.parameter):
            kept[copy] = new
        else:
            copy.write(new)
    if world_size > 1:
        _exchange(copies, owners, rank, kept)
        table = torch.stack(rows)
        distributed.all_reduce(table)  # zeros from all but the owner
        rows = list(table)
    return values, *_report(views, rows, group, start)


@torch.no_grad()
def new_values(
    pairs: Iterable[tuple[Tensor, Tensor]], views: Sequence[WeightView], group: str
) -> tuple[dict[Tensor, Tensor], dict[str, float]]:
    """Gather new values of whole tensors, for `write`, and measure what they do to some weights.

    Args:
        pairs: Each tensor with the new values of the whole of it, of any dtype and device.
        views: The weights to measure.
        group: Prefix of the keys.

    Returns:
        The new values by tensor, sharded as it is; and what to log, by key, see `new_weights`.
    """
    start = time.perf_counter()
    values = {}
    for tensor, whole in pairs:
        values[tensor] = torch.empty_like(tensor)
        put(values[tensor], whole)
    copies = [replace(view, parameter=values.get(view.parameter, view.parameter)) for view in views]
    rows = [_change(view.read(), copy.read(), view.groups) for view, copy in zip(views, copies, strict=True)]
    return values, _report(views, rows, group, start)[0]


@torch.no_grad()
def write(values: Mapping[Tensor, Tensor], policy: OptimizerPolicy, optimizers: Iterable[Optimizer]) -> None:
    """Replace values in place, and drop optimizer state; done a second time it changes nothing.

    Args:
        values: The new values by tensor, sharded as it is.
        policy: What to drop, see `forget_state`.
        optimizers: The optimizers.
    """
    for tensor, new in values.items():
        local(tensor).copy_(local(new))
    forget_state(policy, optimizers, values)


def cost(shape: Sequence[int]) -> int:
    """Return what a new weight costs beside others, in multiplications of one Gram matrix.

    Args:
        shape: Of the weight, `(out, in / groups, *kernel)`.
    """
    return math.prod(shape) * min(shape[:2])


def share_out(costs: Sequence[int], world_size: int) -> list[int]:
    """Share work out among ranks, so that none has much more than the others: the dearest first, to the least laden.

    Args:
        costs: Of each piece.
        world_size: Number of ranks.

    Returns:
        The rank of each piece.

    Example:
        >>> share_out([1, 7, 3, 2], 2)
        [1, 0, 1, 1]
    """
    load = [0] * world_size
    owners = [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[piece] = min(range(world_size), key=load.__getitem__)
        load[owners[piece]] += costs[piece]
    return owners


def _exchange(views: Sequence[WeightView], owners: Sequence[int], rank: int, kept: dict[WeightView, Tensor]) -> None:
    """Send each weight from its owner to the others; of sharded ones, the new weights that the owner has kept."""
    for view, owner in zip(views, owners, strict=True):
        if owner == rank:
            new = kept.pop(view) if view in kept else view.read()
            new = new.contiguous()
        else:
            new = torch.empty(view.shape, dtype=view.parameter.dtype, device=view.parameter.device)
        distributed.broadcast(new, owner)
        if owner != rank or is_sharded(view.parameter):
            view.write(new)


def _report(
    views: Sequence[WeightView], changes: Sequence[Tensor], group: str, start: float
) -> tuple[dict[str, float], list[str]]:
    """Turn the `_MEASURES` of each view, shape (7,), into the values and names that `new_weights` returns."""
    if not views:
        return {}, []
    rows = torch.stack(list(changes)).tolist()  # the one place that waits for the GPU
    table = {view.name: dict(zip(_MEASURES, row, strict=True)) for view, row in zip(views, rows, strict=True)}
    groups = [f"{group}.raw", f"{group}.raw", group, group]  # the headlines are those without the scale
    values = {
        f"{prefix}/{measure}": sum(row[measure] for row in table.values()) / len(table)
        for prefix, measure in zip(groups, _MEASURES, strict=False)
    }
    values |= _stability(group, sum(row["sfe"] for row in table.values()), sum(row["norm"] for row in table.values()))
    values[f"{group}/seconds"] = time.perf_counter() - start
    for name, row in table.items():
        values |= {f"{group}.layers/{measure}/{name}": row[measure] for measure in _MEASURES[:4]}
        values |= {
            f"{key}/{name}": value for key, value in _stability(f"{group}.layers", row["sfe"], row["norm"]).items()
        }
    return values, [name for name, row in table.items() if row["zero"]]


def measure(views: Sequence[WeightView], group: str) -> dict[str, float]:
    """Measure selected weights.

    Args:
        views: The weights.
        group: Prefix of the keys.

    Returns:
        `{group}/dfi` and `{group}/dfi_normalized`, means over the weights, and per weight
        `{group}.layers/{measure}/{name}`; `{group}/weight_norm`, the Frobenius norm of all of them together.
    """
    rows = torch.stack([_health(as_matrices(view.read(), view.groups)) for view in views]).tolist()
    values = {
        f"{group}/dfi": sum(row[0] for row in rows) / len(rows),
        f"{group}/dfi_normalized": sum(row[1] for row in rows) / len(rows),
        f"{group}/weight_norm": math.sqrt(sum(row[2] for row in rows)),
    }
    for view, row in zip(views, rows, strict=True):
        values[f"{group}.layers/dfi/{view.name}"], values[f"{group}.layers/dfi_normalized/{view.name}"] = row[:2]
    return values


@torch.no_grad()
def spectra(views: Sequence[WeightView]) -> dict[str, Tensor]:
    """Return the singular values of each weight, for histograms.

    Args:
        views: The weights.

    Returns:
        By name, of all groups and kernel positions together, shape `(matrices · min(m, n),)`, on the CPU; nothing for a
        weight that has a NaN or Inf.
    """
    matrices = {view.name: as_matrices(view.read(), view.groups) for view in views}
    finite = {name: matrix for name, matrix in matrices.items() if matrix.isfinite().all()}
    return {name: singular_values(matrix).flatten().cpu() for name, matrix in finite.items()}


def require_finite(tensors: Mapping[str, Tensor], by_ranks: bool = False) -> None:
    """Refuse weights that hold a NaN or Inf.

    Args:
        tensors: The weights by name, any shapes; of sharded ones, each rank looks at its part.
        by_ranks: Whether each rank may have looked at some of them only, and has something finite for the others.

    Raises:
        ValueError: On all ranks that share the work; names each such weight.
    """
    if not tensors:
        return
    flags = torch.stack([~_is_finite(tensor) for tensor in tensors.values()]).int()
    if by_ranks or any(is_sharded(tensor) for tensor in tensors.values()):
        distributed.all_reduce(flags)
    if broken := [name for name, flag in zip(tensors, flags.tolist(), strict=True) if flag]:
        raise ValueError(
            f"NaN or Inf in {', '.join(broken)}: training has diverged; no weight has been changed."
            " Resume from an earlier checkpoint, or lower the learning rate."
        )


def _is_finite(tensor: Tensor) -> Tensor:
    """Return whether no entry is a NaN or Inf, by the extremes: ten times as fast, as some act at each step."""
    tensor = local(tensor)
    if tensor.is_complex() or not tensor.numel():
        return tensor.isfinite().all()
    return torch.stack(torch.aminmax(tensor)).isfinite().all()


def _change(old: Tensor, new: Tensor, groups: int) -> Tensor:
    """Return the `_MEASURES` of a weight of shape `(out, in / groups, *kernel)` and of what takes its place, (7,)."""
    before, after = as_matrices(old, groups), as_matrices(new, groups)
    all_zero = (before.abs().amax((-2, -1)) == 0).any() if before.numel() else before.new_tensor(0.0)
    norm = before.float().square().sum()
    changed = torch.stack([sfe(before, after).sum().float(), norm, all_zero.float()])
    return torch.cat([torch.stack([_isometry(before), _isometry(after)]).T.flatten(), changed])


def _health(matrices: Tensor) -> Tensor:
    """Return `_isometry` and the squared Frobenius norm of all matrices together, shape (3,), float32."""
    return torch.cat([_isometry(matrices), matrices.float().square().sum().unsqueeze(0)])


def _isometry(matrices: Tensor) -> Tensor:
    """Return DfI and normalised DfI, means over groups and kernel positions, shape (2,), float32."""
    return torch.stack([dfi(matrices).mean().float(), dfi_normalized(matrices).mean().float()])


def _stability(prefix: str, error: float, norm: float) -> dict[str, float]:
    normalized = error / norm if norm else (float("inf") if error else 0.0)
    return {f"{prefix}/sfe": error, f"{prefix}/sfe_normalized": normalized}
