"""Rejuvenation before reinforcement learning: a pull to the base model and a reset of neurons (Liu et al., 2026)."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_fire.distributed import gathered, mean_over_ranks
from lightning_fire.functional import shrink_and_perturb
from lightning_fire.functional.checks import at_least, one_of, precise
from lightning_fire.methods.base.change import Change, new_values, require_finite, with_report
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import EventMethod, left_out_of
from lightning_fire.methods.base.optimizers import OptimizerPolicy, Optimizers
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.reset import trained_tensors
from lightning_fire.methods.initial_values import check_values, initial_of
from lightning_fire.where import Parameters, Weights, WeightView

Score = Literal["attribution", "drift", "random"]
WRITERS = r"(c_proj|o_proj|out_proj|down_proj|fc2|fc_out|wo|w2|dense_4h_to_h|(attention|output)\.dense)\.weight$"


def confident_logits(logits: Tensor, base_logits: Tensor, targets: Tensor, positions: int) -> Tensor:
    """Sum of target logits at the positions where the prediction entropy differs most from that of the base model.

    Args:
        logits: Logits of the fine-tuned model on one example, shape `(..., tokens)`, with a graph.
        base_logits: Logits of the base model on it, same shape.
        targets: The token after each position, int64, shape `(...)`.
        positions: Number of positions, at least 1; all if there are fewer.

    Returns:
        A scalar with a graph, for `losses` of `rejuvenate_`.

    Example:
        >>> logits, base_logits = torch.tensor([[8.0, 0.0], [1.0, 0.0]]), torch.zeros(2, 2)
        >>> confident_logits(logits, base_logits, torch.tensor([0, 1]), positions=1)
        tensor(8.)
    """
    at_least(1, positions=positions)
    entropy, base_entropy = (torch.special.entr(each.detach().softmax(-1)).sum(-1) for each in (logits, base_logits))
    gap = (entropy - base_entropy).abs().flatten()
    chosen = gap.topk(min(positions, len(gap))).indices
    return logits.gather(-1, targets.unsqueeze(-1)).flatten()[chosen].sum()


def rejuvenate_(
    model: nn.Module | Sequence[nn.Module],
    base: Mapping[str, Tensor],
    losses: Iterable[Tensor] | Callable[[], Iterable[Tensor]] | None = None,
    strength: float = 0.5,
    fraction: float = 0.01,
    score: Score = "attribution",
    where: Weights | None = None,
    *,
    writers: str = WRITERS,
    seed: int = 0,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    averages: Any = (),
) -> Report:
    """Pull a fine-tuned model towards its base model and reset some neurons to the base, in place.

    Source: Liu et al., When RL fails after SFT, arXiv:2606.09932, as far as known; docs/rejuvenation.md lists the
    unverified parts. Every trained parameter θ becomes (1 − λ)·θ + λ·θ_base. Then the neurons with the highest scores
    are set to their values in the base: rows of a matrix, or columns of a matrix that writes into the residual stream.

    Args:
        model: Any module, or a list of them, which change together, see `EventMethod.__call__`.
        base: θ_base by name: `initial_values(model)`, called before the fine-tuning. The same on all ranks.
        losses: For `score="attribution"`: scalars with a graph, best one per example, such as `confident_logits`, from
            a generator.
        strength: λ in [0, 1], 1 − α of the paper (0.5).
        fraction: ρ in [0, 1], fraction of all neurons of the selected matrices (paper: 0.01).
        score: `attribution`: Σ over losses of |Σ w · ∂loss/∂w|, over the weights w of the neuron, which is its output
            (or input) times the gradient, summed over positions. `drift`: ‖w − w_base‖ / ‖w_base‖, without data.
            `random`: a control. All are computed before the pull.
        where: The matrices whose neurons may be reset. Default: those of the preset `gpt` except embeddings and heads.
        writers: Regular expression for the names of matrices that write into the residual stream.
        seed: Seed of the random score.
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains stay, with a
            warning.
        optimizer_state: Whose optimizer state to drop: `keep`, `touched` or `all`.
        averages: One or several averages of the weights, which restart from the new weights, see `Loop`.

    Returns:
        Report on the weights that `Weights()` selects, see `fire_`, and `neurons`, the number of neurons reset.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, `losses` is missing, `where` matches no matrix, or a parameter or a
            gradient has a NaN or Inf. The model is unchanged then.
        KeyError: If `base` lacks a parameter.

    Example:
        >>> from lightning_fire.methods import initial_values
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 2))
        >>> base = initial_values(model)
        >>> _ = nn.init.zeros_(model[0].weight)
        >>> rejuvenate_(model, base, strength=0.0, fraction=0.5, score="drift")["neurons"]
        5.0
        >>> int((model[0].weight == base["0.weight"]).all(1).sum())
        5
    """
    check_values(base)
    method = _Rejuvenation(strength, fraction, score, where, writers, seed, optimizer_state)
    return method(model, Loop(optimizers, losses=losses, initial=base, averages=averages))


@dataclass(frozen=True)
class _Rejuvenation(EventMethod):
    """`rejuvenate_` as a method. Not public: the initial values that a callback sees are not those of a base model."""

    name: ClassVar[str] = "rejuvenation"
    default_where: ClassVar[Weights] = Weights(preset="gpt", include=[r"^(?!.*(embed|head|\bwte\b))"])

    strength: float = 0.5
    fraction: float = 0.01
    score: Score = "attribution"
    where: Weights | None = None
    writers: str = WRITERS
    seed: int = 0
    optimizer_state: OptimizerPolicy = "touched"

    def __post_init__(self) -> None:
        super().__post_init__()
        shrink_and_perturb(torch.zeros(1, device="cpu"), torch.zeros(1, device="cpu"), self.strength)  # checks it
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"`fraction` must be in [0, 1], got {self.fraction}")
        one_of(Score, score=self.score)

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Compute the pulled parameters and the values of the reset neurons."""
        base = initial_of(model, training)
        trained = training.trained(model)
        tensors, left_out = trained_tensors(model, trained, Parameters())
        require_finite(tensors)
        targets = {tensor: base[name] for name, tensor in tensors.items()}
        weights: Sequence[WeightView] = self.selection.select(model, trained) if self.fraction else []
        scores = self._scores(weights, targets, training)
        values = new_values(
            (tensor, shrink_and_perturb(gathered(tensor), target, self.strength)) for tensor, target in targets.items()
        )
        count = 0
        for view, chosen in zip(weights, _highest(scores, self.fraction), strict=True):
            rows = self._by_neuron(view, view.of(values[view.parameter]).read().clone())
            of_base = self._by_neuron(view, view.of(targets[view.parameter]).read()).to(rows)
            rows[chosen] = of_base[chosen]
            view.of(values[view.parameter]).write(self._by_neuron(view, rows))
            count += int(chosen.sum())
        change = with_report(Change(values), model, training.measure, [*left_out, *left_out_of(weights)])
        report = change.report or Report()
        return replace(change, report=replace(report, values={**report.values, "neurons": float(count)}), weights=())

    def _by_neuron(self, view: WeightView, weight: Tensor) -> Tensor:
        """Return a view of a weight whose first dimension indexes neurons; its own inverse."""
        return weight.transpose(0, 1) if re.search(self.writers, view.name) else weight

    def _scores(self, weights: Sequence[WeightView], base: Mapping[Tensor, Tensor], training: Loop) -> list[Tensor]:
        """Return the scores of the neurons of each weight, shape `(neurons,)`, on the CPU."""

        def rows(view: WeightView, tensor: Tensor | None = None) -> Tensor:
            stored = view if tensor is None else view.of(tensor.to(view.parameter.device))
            return precise(self._by_neuron(view, stored.read()).flatten(1))

        if self.score == "drift":
            pairs = ((rows(view), rows(view, base[view.parameter])) for view in weights)
            return [((new - old).norm(dim=1) / old.norm(dim=1).clamp(min=1e-12)).cpu() for new, old in pairs]
        sizes = [view.shape[1 if re.search(self.writers, view.name) else 0] for view in weights]
        if self.score == "random":
            generator = torch.Generator().manual_seed(self.seed)
            return [torch.rand(size, device="cpu", generator=generator) for size in sizes]
        scores = [torch.zeros(size, device=view.parameter.device) for size, view in zip(sizes, weights, strict=True)]
        for gradients in training.gradients([view.parameter for view in weights], 1) if weights else ():
            for total, view, gradient in zip(scores, weights, gradients, strict=True):
                total += (rows(view) * rows(view, gradient)).sum(1).abs()
        scores = [mean_over_ranks(total, training.ranks).cpu() for total in scores]
        if not all(total.isfinite().all() for total in scores):
            raise ValueError("NaN or Inf in the gradients of `losses`; no weight has been changed.")
        return scores


def _highest(scores: Sequence[Tensor], fraction: float) -> list[Tensor]:
    """Return a mask of the neurons of each weight: those with the highest scores over all weights."""
    if not scores:
        return []
    every = torch.cat(list(scores))
    mask = torch.zeros(len(every), dtype=torch.bool)
    mask[every.topk(round(fraction * len(every))).indices] = True
    return list(mask.split([len(each) for each in scores]))
