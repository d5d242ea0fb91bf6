"""Optimizer: utility-based perturbed gradient descent (Elsayed & Mahmood, ICLR 2024)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.distributed import is_sharded, put


class UPGD(Optimizer):
    """Utility-based perturbed gradient descent, first-order and global: useful weights take small steps.

    For each weight w with gradient g, the utility u is the bias-corrected EMA of −g·w, and s = sigmoid(u / η), η being
    the largest EMA of all weights. Then w ← (1 − lr·λ)·w − lr·(g + ξ)·(1 − s), with noise ξ ~ N(0, σ²) for each weight.
    A weight without utility has s = 1/2: it takes half the step of SGD.

    Args:
        params: Parameters, or parameter groups.
        lr: Learning rate (the authors' code: 0.01 for permuted inputs and labels).
        weight_decay: λ, decoupled (the authors' code: 0 to 0.01).
        utility_decay: Decay rate of the EMA, in [0, 1) (the authors' code: 0.9 to 0.9999).
        noise: σ, the standard deviation of the noise, on the scale of gradients (the authors' code: 0.001 to 0.1).
        seed: Seed of the noise, the same on every rank. The noise depends only on it and the step number. For sharded
            parameters (DTensor) each rank draws the whole noise and keeps its part.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = UPGD([weight], lr=0.1, weight_decay=0.0, utility_decay=0.0, noise=0.0)
        >>> weight.grad = torch.tensor([-1.0, -1.0])  # a step raises both, which helps the first and harms the second
        >>> optimizer.step()
        >>> weight.data
        tensor([ 1.0269, -0.9269])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        weight_decay: float = 0.001,
        utility_decay: float = 0.999,
        noise: float = 0.001,
        seed: int = 0,
    ):
        for name, value in {"lr": lr, "weight_decay": weight_decay, "noise": noise}.items():
            if value < 0:
                raise ValueError(f"`{name}` must be at least 0, got {value}")
        if not 0 <= utility_decay < 1:
            raise ValueError(f"`utility_decay` must be in [0, 1), got {utility_decay}")
        settings = {"lr": lr, "weight_decay": weight_decay, "utility_decay": utility_decay, "noise": noise}
        super().__init__(params, {**settings, "seed": seed, "num_steps": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parameters that have a gradient; return the loss that `closure` computes with its gradients."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        stepped = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        utilities = [self._updated_utility(group, parameter) for group, parameter in stepped]
        dtype = reduce(torch.promote_types, (utility.dtype for utility in utilities), torch.float32)
        maxima = [utility.max().to(utilities[0].device, dtype) for utility in utilities]
        largest = torch.stack(maxima).max() if maxima else torch.zeros(())  # not read: that would wait for a GPU
        first = self.param_groups[0]
        seed = int(first["seed"]) + 1_000_003 * (first["num_steps"] + 1)  # seed far from that of another run
        for device in dict.fromkeys(parameter.device for _, parameter in stepped):
            here = [(group, parameter) for group, parameter in stepped if parameter.device == device]
            for (group, parameter), noise in zip(here, _noise([parameter for _, parameter in here], seed), strict=True):
                self._step_one(group, parameter, largest, noise)
        for group in self.param_groups:
            group["num_steps"] += 1
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`; torch would round EMAs to the dtype of their parameters."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            if (saved := state_dict["state"].get(number, {}).get("utility")) is not None:
                wide = torch.promote_types(parameter.dtype, torch.float32)
                self.state[parameter]["utility"] = saved.to(parameter.device, wide, copy=True)

    def _updated_utility(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        """Return the EMA of −g·w, of the shape of the parameter, before its correction."""
        state, beta = self.state[parameter], group["utility_decay"]
        if not state:
            wide = torch.promote_types(parameter.dtype, torch.float32)  # in bfloat16 no EMA would decay
            state["step"], state["utility"] = 0, torch.zeros_like(parameter, dtype=wide)
        state["step"] += 1
        assert parameter.grad is not None  # `step` leaves the others out
        product = parameter.grad.to(state["utility"].dtype) * parameter
        utility: Tensor = state["utility"].mul_(beta).sub_(product, alpha=1 - beta)
        return utility

    def _step_one(self, group: dict[str, Any], parameter: Tensor, largest: Tensor, noise: Tensor) -> None:
        state = self.state[parameter]
        utility = state["utility"] / (1 - group["utility_decay"] ** state["step"])
        largest = largest.to(utility.device)
        ratio = utility / largest  # of the dtype of the utility, as `largest` has no dimensions
        scaled = torch.where(largest == 0, torch.zeros_like(ratio), ratio).sigmoid_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_((parameter.grad + noise * group["noise"]) * (1 - scaled), alpha=-group["lr"])


def _noise(parameters: Sequence[Tensor], seed: int) -> Iterable[Tensor]:
    """Return standard normal noise for parameters of one device, sharded as they are, one tensor at a time."""
    if torch.compiler.is_compiling() and not any(map(is_sharded, parameters)):
        drawn: list[Tensor] = normal_like(list(parameters), seed)
        return drawn
    return _drawn(parameters, seed)


def _drawn(parameters: Sequence[Tensor], seed: int) -> Iterator[Tensor]:
    generator = torch.Generator(parameters[0].device).manual_seed(seed)
    for parameter in parameters:
        noise = torch.empty_like(parameter)
        if is_sharded(parameter):
            whole = torch.empty(parameter.shape, dtype=noise.dtype, device=noise.device)
            put(noise, whole.normal_(generator=generator))
        else:
            noise.normal_(generator=generator)
        yield noise


@torch.library.custom_op(  # torch 2.6 finds no schema for `list[Tensor]`
    "lightning_fire::normal_like", mutates_args=(), schema="(Tensor[] tensors, SymInt seed) -> Tensor[]"
)
def normal_like(tensors: list[Tensor], seed: int) -> list[Tensor]:
    """Draw standard normal values in the shapes of tensors of one device; `torch.compile` traces no generators."""
    return list(_drawn(tensors, seed))


@normal_like.register_fake
def _(tensors: list[Tensor], seed: int) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]
