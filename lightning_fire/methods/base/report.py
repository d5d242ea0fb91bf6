"""Report of a change of weights: deviation from isometry before and after, squared Frobenius error."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lightning_fire.distributed import to_list
from lightning_fire.functional import as_matrices, sfe
from lightning_fire.functional.metrics import both_deviations
from lightning_fire.functional.newton_schulz import power_of_two
from lightning_fire.where import WeightView

COLUMNS = (
    "dfi_before",
    "dfi_after",
    "dfi_normalized_before",
    "dfi_normalized_after",
    "sfe",
    "squared_norm",
    "zero",
    "new_norm",
)


@dataclass(frozen=True)
class Report:
    """Metrics of an event.

    `report["sfe"]` reads a value, `print(report)` shows all of them.

    Attributes:
        values: Metrics over all weights, by name. For a change of weights: the means over them of
            `dfi_normalized_before` and `dfi_normalized_after`; the sum of `sfe`, and `sfe_normalized`, that sum divided
            by the sum of ‖W‖_F²; `seconds`, the duration.
        raw: Metrics that depend on the scale of the weights: `dfi_before` and `dfi_after`, each the mean over the
            weights of the mean over the kernel positions.
        layers: By metric, the value of each weight or layer by its name.
        zeros: Names of the weights that hold a matrix of zeros.
        norm_ratio: For a change of weights: the norm of all new weights divided by that of the old ones.
        advice: Advice if that ratio is large.
        taken: Description of the changed part of the model, such as `15 of 16 weight matrices, preset cnn`.
        left_out: Sentences on weights that are not changed, with the reason.
        table: For a change of weights: the value of each weight, by column of `COLUMNS` and by name.

    Example:
        >>> report = Report(values={"sfe": 2.0}, layers={"sfe": {"0.weight": 2.0}})
        >>> report.keyed("fire")
        {'fire/sfe': 2.0, 'fire.layers/sfe/0.weight': 2.0}
    """

    values: Mapping[str, float] = field(default_factory=dict)
    raw: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    zeros: Sequence[str] = ()
    norm_ratio: float | None = None
    advice: str = ""
    taken: str = ""
    left_out: Sequence[str] = ()
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __str__(self) -> str:
        return ", ".join(filter(None, [in_words(self.values), self.ending]))

    @property
    def ending(self) -> str:
        """End of a log line about an event: `norm × 1.7 (advice); 15 of 16 weight matrices, preset cnn`, if known."""
        norm = "" if self.norm_ratio is None else f"norm × {self.norm_ratio:.2g}"
        norm = f"{norm} ({self.advice})" if self.advice else norm
        return "; ".join(filter(None, [norm, self.taken]))

    def __add__(self, other: "Report") -> "Report":
        """Return the report of both changes; of equal names those of the second."""
        table, layers = (
            {key: {**a.get(key, {}), **b.get(key, {})} for key in {**a, **b}}
            for a, b in ((self.table, other.table), (self.layers, other.layers))
        )
        whole = _of_table(table) if table else Report()
        return replace(
            whole,
            values={
                **whole.values,
                **{k: v for k, v in {**self.values, **other.values}.items() if k not in whole.values},
            },
            layers={**layers, **whole.layers},
            advice=self.advice or other.advice,
            taken="; ".join(filter(None, [self.taken, other.taken])),
            left_out=[*self.left_out, *other.left_out],
        )

    def prefixed(self, prefix: str) -> "Report":
        """Return the report with a prefix before the names of weights, and of metrics that are not of weights."""
        table, layers = (
            {metric: {prefix + name: value for name, value in by_name.items()} for metric, by_name in columns.items()}
            for columns in (self.table, self.layers)
        )
        known = _of_table(self.table).values if self.table else {}
        values = {name if name in known else prefix + name: value for name, value in self.values.items()}
        zeros = [prefix + name for name in self.zeros]
        left_out = [f"{one} (of model {prefix[:-1]})" for one in self.left_out]
        return replace(self, values=values, layers=layers, table=table, zeros=zeros, left_out=left_out)

    def keyed(self, prefix: str, layers: bool = True) -> dict[str, float]:
        """Return all metrics by log key.

        Args:
            prefix: First part of each key, such as `fire`.
            layers: Whether to include the values of each layer.
        """
        keyed = {f"{prefix}/{name}": value for name, value in self.values.items()}
        keyed |= {f"{prefix}.raw/{name}": value for name, value in self.raw.items()}
        for metric, by_name in self.layers.items() if layers else ():
            keyed |= {f"{prefix}.layers/{metric}/{name}": value for name, value in by_name.items()}
        return keyed


def check_name(name: str | None) -> None:
    """Raise a TypeError or ValueError if a name cannot be the prefix of log keys."""
    if not isinstance(name, str | None):
        raise TypeError(f"`name` must be a text, got {name!r}")
    if "/" in (name or ""):
        raise ValueError(f"`name` must not have a slash, which separates the parts of a key, got {name!r}")


def in_words(values: Mapping[str, float]) -> str:
    """Format metrics in one line, with `before -> after`, without residuals and costs.

    Example:
        >>> in_words({"loss_before": 2.0, "loss_after": 0.5, "loss_before_residual": 1e-3, "seconds": 0.1})
        'loss 2 -> 0.5, seconds 0.1'
    """
    words = []
    for name, value in values.items():
        metric = name.removesuffix("_before")
        if f"{metric}_after" in values and metric != name:
            words.append(f"{metric} {value:.4g} -> {values[f'{metric}_after']:.4g}")
        elif f"{name.removesuffix('_after')}_before" not in values and not name.endswith(("_residual", "_seconds")):
            words.append(f"{name} {value:.4g}")
    return ", ".join(words)


def differences(old: Sequence[Tensor], new: Sequence[Tensor], groups: int) -> Tensor:
    """Return the metrics of `COLUMNS` of weights (out, in / groups, *kernel) of one shape and their replacements.

    Squares are those of the weights divided by a power of two, usually 1, whose exponent is the last column.

    Returns:
        Shape `(weights, 9)`, float32.
    """
    before, after = (_stack([as_matrices(weight, groups) for weight in weights]) for weights in (old, new))
    empty = before.new_zeros(len(before), dtype=torch.bool)
    zero = (before.abs().amax((-2, -1)) == 0).flatten(1).any(1) if before.numel() else empty
    scale = _scale(before, after)
    scaled = [each / scale for each in (before, after)]
    norms = [each.float().flatten(1).square().sum(1) for each in scaled]
    error = sfe(*scaled).flatten(1).sum(1).float()
    isometry = torch.stack([_isometry(before), _isometry(after)], -1).flatten(1)
    exponent = scale.float().log2().flatten()
    return torch.cat([isometry, torch.stack([error, norms[0], zero.float(), norms[1], exponent], 1)], 1)


def report_of(weights: Sequence[WeightView], differences: Iterable[Tensor]) -> Report:
    """Return the report of a change from the `difference` of each weight."""
    if not weights:
        return Report()
    *columns, exponents = zip(*to_list(list(differences)), strict=True)
    names, scales = [view.name for view in weights], [2.0**exponent for exponent in exponents]
    table = {metric: dict(zip(names, column, strict=True)) for metric, column in zip(COLUMNS, columns, strict=True)}
    for metric in ("sfe", "squared_norm", "new_norm"):
        pairs = zip(table[metric].items(), scales, strict=True)
        table[metric] = {name: value * scale * scale for (name, value), scale in pairs}
    return _of_table(table)


def matrices_in_words(weights: Sequence[WeightView]) -> str:
    """Describe how many weight matrices are selected; for a `Selection` also of how many, and by which preset."""
    return getattr(weights, "summary", f"{len(weights)} weight matrices")


def _of_table(table: Mapping[str, Mapping[str, float]]) -> Report:
    """Return the report of a change of weights from the columns of `COLUMNS`, each by the name of the weight."""
    errors, norms = table["sfe"], table["squared_norm"]
    error, norm = sum(errors.values()), sum(norms.values())
    relative = {name: _relative(errors[name], norms[name]) for name in errors}
    means = {metric: sum(table[metric].values()) / len(errors) for metric in COLUMNS[:4]}
    return Report(
        values={
            **{metric: means[metric] for metric in COLUMNS[2:4]},
            "sfe": error,
            "sfe_normalized": _relative(error, norm),
        },
        raw={metric: means[metric] for metric in COLUMNS[:2]},
        layers={**{metric: table[metric] for metric in COLUMNS[:5]}, "sfe_normalized": relative},
        zeros=[name for name, zero in table["zero"].items() if zero],
        norm_ratio=math.sqrt(sum(table["new_norm"].values()) / norm) if norm else None,
        table=table,
    )


def health(weights: Sequence[WeightView]) -> Report:
    """Measure weights: `dfi_normalized` and raw `dfi`, means and by layer, and the total norm."""
    matrices = [_stack([as_matrices(view.read(), view.groups)]) for view in weights]
    rows = [torch.cat([_isometry(each)[0], each.float().square().sum().unsqueeze(0)]) for each in matrices]
    deviations, normalized, squared_norms = zip(*to_list(rows), strict=True)
    table, names = {"dfi": deviations, "dfi_normalized": normalized}, [view.name for view in weights]
    means = {metric: sum(column) / len(weights) for metric, column in table.items()}
    return Report(
        values={"dfi_normalized": means["dfi_normalized"], "weight_norm": math.sqrt(sum(squared_norms))},
        raw={"dfi": means["dfi"]},
        layers={metric: dict(zip(names, column, strict=True)) for metric, column in table.items()},
    )


def _stack(weights: Sequence[Tensor]) -> Tensor:
    """Stack weights into a contiguous tensor (Gram matrices are then four times as fast); one is not copied."""
    return torch.stack(list(weights)) if len(weights) > 1 else weights[0].unsqueeze(0).contiguous()


def _scale(before: Tensor, after: Tensor) -> Tensor:
    """Return 1, or a power of two where squares would leave the range of float32, `(weights, 1, 1, 1, 1)`."""
    if not before.numel():
        return before.new_ones(len(before), 1, 1, 1, 1)
    largest = torch.maximum(*(each.abs().amax((1, 2, 3, 4), keepdim=True) for each in (before, after)))
    usual = (largest > 1e-12) & (largest < 1e12) | ~largest.isfinite()
    return torch.where(usual, torch.ones_like(largest), power_of_two(largest))


def _isometry(matrices: Tensor) -> Tensor:
    """Return DfI and normalized DfI, means over the matrices of each weight, `(weights, 2)`, float32."""
    return torch.stack([deviation.flatten(1).mean(1).float() for deviation in both_deviations(matrices)], 1)


def _relative(error: float, norm: float) -> float:
    return error / norm if norm else (math.inf if error else 0.0)
