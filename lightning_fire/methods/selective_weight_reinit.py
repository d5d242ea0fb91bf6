"""Selective weight reinitialization (Hernandez-Garcia et al., CoLLAs 2025)."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.functional import below_mean, gradient_utility, lowest
from lightning_fire.functional.checks import at_least, one_of
from lightning_fire.methods.base.averages import pairs_of
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import Attached, StepMethod
from lightning_fire.methods.base.optimizers import reset_of_entries
from lightning_fire.methods.initial_values import drawn_by, not_resettable, seed_of_draw
from lightning_fire.where import Parameters

Utility = Literal["gradient", "magnitude"]
Pruning = Literal["threshold", "proportional"]
Redraw = Literal["resample", "mean"]
State = Literal["keep", "touched"]

_DRAWS = 4  # of which a single number in bfloat16 is random and always the same once in 16 million times


@dataclass(frozen=True)
class SelectiveWeightReinit(StepMethod):
    """Re-initializes the least useful individual weights every few optimizer steps.

    The utility of a weight w is |w · ∂L/∂w|, with the gradient of the last step. In each parameter, weights with a
    utility of at most `factor` times the mean get new values, drawn by the layer's `reset_parameters`. Since it needs
    no units, it also acts behind normalization layers, and on biases and scales of such layers. Logs `weights`, the
    number of weights re-initialized so far.

    Args:
        factor: Fraction of the mean utility, at least 0; with `pruning="proportional"` fraction of the weights, in [0,
            1] (paper: tuned, 1e-6 to 1e-1; 5e-4 for its ViT).
        every: Optimizer steps from one reinitialization to the next (paper: tuned, 64 to 8192; 128 for its ViT).
        utility: `"gradient"`: |w · ∂L/∂w|. `"magnitude"`: |w|.
        pruning: `"threshold"`: the weights with at most `factor` times the mean utility of their parameter.
            `"proportional"`: the fraction `factor` of the weights of each parameter, those with the lowest utility.
        redraw: `"resample"`: new values by `reset_parameters`. `"mean"`: the mean of its distribution: 0, or, for a
            parameter to which it always gives the same values, these, such as 1 for scales of normalization layers.
        where: The parameters to act on. Default: `Parameters()`, all.
        optimizer_state: `"keep"`, as the authors' code does; with `"touched"` the optimizer state of re-initialized
            weights is reset.
        seed: Seed of the new values, the same on every rank.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range, or a selected parameter is of a layer without `reset_parameters`.

    Example:
        >>> model = nn.Linear(100, 1, bias=False)
        >>> method = SelectiveWeightReinit(0.1, every=2, utility="magnitude", pruning="proportional").attach(model)
        >>> method.after_step()
        >>> method.metrics()
        {'weights': 0.0}
        >>> method.after_step()
        >>> method.metrics()
        {'weights': 10.0}
    """

    name: ClassVar[str] = "selective_weight_reinit"
    default_where: ClassVar[Parameters] = Parameters()

    factor: float = 5e-4
    every: int = 128
    utility: Utility = "gradient"
    pruning: Pruning = "threshold"
    redraw: Redraw = "resample"
    where: Parameters | None = None
    optimizer_state: State = "keep"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        most = 1 if self.pruning == "proportional" else float("inf")
        if not 0 <= self.factor <= most:
            allowed = "in [0, 1]" if self.pruning == "proportional" else "at least 0"
            raise ValueError(f"`factor` must be {allowed}, got {self.factor}")
        at_least(1, every=self.every)
        one_of(Utility, utility=self.utility)
        one_of(Pruning, pruning=self.pruning)
        one_of(Redraw, redraw=self.redraw)
        one_of(State, optimizer_state=self.optimizer_state)

    def check(self, model: nn.Module, training: Loop) -> Sequence[str]:
        """Check that something is selected and that its layers can draw it."""
        if stuck := not_resettable(model, set(self.selection.select(model, training.trained(model)).values())):
            raise ValueError(
                f"{', '.join(stuck)} has parameters and no reset_parameters(), which draws the new values: give it one,"
                " or leave it out, where=Parameters(exclude=[…])"
            )
        return super().check(model, training)

    def begin(self, model: nn.Module, training: Loop) -> "_Reinitialization":
        """Select the parameters."""
        self.check(model, training)
        return _Reinitialization(self, model, training)


class _Reinitialization(Attached):
    """Selective weight reinitialization attached to a model."""

    def __init__(self, method: SelectiveWeightReinit, model: nn.Module, training: Loop):
        self.method, self.model, self.training = method, model, training
        left = set(method.selection.select(model, training.trained(model)).values())
        self.layers: list[tuple[nn.Module, dict[str, nn.Parameter]]] = []  # with their selected parameters
        for layer in model.modules():
            own = {name: p for name, p in layer.named_parameters(recurse=False) if p in left}
            self.layers += [(layer, own)] if own else []
            left -= set(own.values())  # a tied parameter counts for its first layer
        self.parameters = [p for _, own in self.layers for p in own.values()]
        self.draws = 1 if method.redraw == "resample" else _DRAWS
        self.steps, self._gradients = 0, dict[Tensor, Tensor]()  # gradients of the current step
        self.number = torch.zeros((), dtype=torch.int64, device=self.parameters[0].device)  # of weights re-initialized

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer | None = None, gradient_scale: float = 1.0) -> None:
        """Copy the gradients if a reinitialization is due after this step; their scale does not matter."""
        if self.method.utility != "gradient" or (self.steps + 1) % self.method.every:
            return
        of = None if optimizer is None else {p for group in optimizer.param_groups for p in group["params"]}
        stepped = [p for p in self.parameters if p.grad is not None and (of is None or p in of)]
        self._gradients |= {p: p.grad.to_dense().clone() for p in stepped}  # type: ignore[union-attr]

    @torch.no_grad()
    def after_step(self) -> None:
        """Count the step, and re-initialize weights if due."""
        steps, number, values = self.steps + 1, self.number, dict[Tensor, Tensor]()
        if steps % self.method.every == 0:
            seed = seed_of_draw(self.method.seed, steps // self.method.every)
            chances, copies = random.Random(seed), self._copies()
            for index, (layer, own) in enumerate(self.layers):
                chosen = {name: mask for name, p in own.items() if (mask := self._chosen(p, chances)) is not None}
                draws = [drawn_by(layer, seed + index + draw) for draw in range(self.draws if chosen else 0)]
                for name, mask in chosen.items():
                    number = number + mask.sum().to(number.device)
                    new = _new([drawn[name] for drawn in draws])
                    for tensor in (own[name], *copies.get(own[name], ())):
                        values |= self._values(tensor, mask, new)
        done = partial(vars(self).update, steps=steps, number=number, _gradients={})
        Change(values, then=[done]).make()

    def _chosen(self, parameter: Tensor, chances: random.Random) -> Tensor | None:
        """Return which weights of a parameter to re-initialize, bool of its shape; None without a gradient."""
        if self.method.utility == "magnitude":
            utility = parameter.abs()
        elif parameter in self._gradients:
            utility = gradient_utility(parameter, self._gradients[parameter])
        else:
            return None
        if self.method.pruning == "threshold":
            return below_mean(utility, self.method.factor)
        whole, rest = divmod(self.method.factor * utility.numel(), 1)
        return lowest(utility, int(whole) + (chances.random() < rest))

    def _values(self, tensor: Tensor, chosen: Tensor, new: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield new values of a parameter or of its average, and of its optimizer state."""
        chosen, new = chosen.to(tensor.device), new.to(tensor)
        yield tensor, torch.where(chosen, new, tensor)
        if self.method.optimizer_state == "touched":
            for state, start in reset_of_entries(self.training.optimizers, tensor):
                yield state, torch.where(chosen.to(state.device), new if start is tensor else start, state)

    def _copies(self) -> dict[Tensor, list[Tensor]]:
        """Return the copies of each weight in averages."""
        copies: dict[Tensor, list[Tensor]] = {}
        for _, pairs in pairs_of(self.model, self.training.averages, self.training.optimizers):
            for copy, tensor in pairs:
                copies.setdefault(tensor, []).append(copy)
        return copies

    def held(self) -> list[Tensor]:
        """Return the parameters."""
        return list(self.parameters)

    def selected(self) -> str:
        """Return the number of parameters."""
        return f"{sum(p.numel() for p in self.parameters)} weights in {len(self.parameters)} parameters"

    def metrics(self) -> dict[str, float]:
        """Return `weights`, the number of weights re-initialized so far."""
        return {"weights": float(self.number)}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and of re-initialized weights."""
        return {"steps": self.steps, "weights": int(self.number)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self.steps, self.number = state.get("steps", 0), torch.full_like(self.number, state.get("weights", 0))


def _new(draws: Sequence[Tensor]) -> Tensor:
    """Return a draw, or of several the mean of their distribution: what all of them are if they are equal, else 0."""
    first, *others = draws
    for other in others:
        first = torch.where((first == other).all(), first, 0.0)
    return first
