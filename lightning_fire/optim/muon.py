"""Optimizer: Muon (Jordan et al., 2024) for hidden matrices, AdamW for all other parameters."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from lightning_fire.functional import muon_direction
from lightning_fire.functional.checks import at_least, one_of
from lightning_fire.functional.muon import MuonScale
from lightning_fire.where import HiddenMatrices
from lightning_fire.where.found import parameters_of


def muon_groups(module: nn.Module, where: HiddenMatrices | None = None) -> list[dict[str, Any]]:
    """Split the parameters of a module into groups for `Muon`: hidden matrices, and all others.

    Args:
        module: Any module.
        where: Selection of the hidden matrices. Default: `HiddenMatrices()`; print its `select(module)` to see them.

    Returns:
        Two parameter groups, the first with `use_muon=True`; three if some hidden matrices are stored transposed.

    Raises:
        ValueError: If the module has no hidden matrices.
    """
    hidden = list((where or HiddenMatrices()).select(module).values())
    views = [view for found in parameters_of(module) for view in found.views]
    transposed = {id(view.parameter): view.groups for view in views if view.layout != "out_in"}
    hidden = [p for p in hidden if transposed.get(id(p), 1) == 1]  # a transposed kernel in groups is not one matrix
    taken = {id(parameter) for parameter in hidden}
    groups = [
        {"params": [p for p in hidden if id(p) not in transposed], "use_muon": True},
        {"params": [p for p in hidden if id(p) in transposed], "use_muon": True, "transposed": True},
        {"params": [p for p in module.parameters() if id(p) not in taken], "use_muon": False},
    ]
    return [group for group in groups if group["params"]]


class Muon(Optimizer):
    """Muon for hidden matrices, AdamW for all other parameters.

    For a hidden matrix W with gradient G and momentum M: M ← μM + (1 − μ)G, then W ← (1 − lr·λ)W − lr·s·Ortho(D). D is
    μM + (1 − μ)G with Nesterov's momentum and M without, Ortho are the Newton–Schulz steps, and s depends on the shape
    (`scale`). A convolution weight is a matrix `(out, in · taps)`.

    Args:
        params: Parameter groups, each with `use_muon`: True for hidden matrices, False for all others;
            `muon_groups(model)` returns them. With `transposed=True`, the weights of a group are stored
            `(in, out, *kernel)`. With `paused=True`, AdamW steps the group until `UseMuon` ends the pause.
        lr: Learning rate of Muon (the FIRE paper's code: 0.01; Jordan et al.: 0.02).
        adamw_lr_ratio: Learning rate of AdamW over that of Muon (the FIRE paper's code: 0.1).
        weight_decay: λ of both, decoupled.
        momentum: μ (paper: 0.95).
        nesterov: Whether to use Nesterov's momentum.
        steps: Number of Newton–Schulz steps, at least 1.
        scale: `"original"`, √max(1, rows / columns), or `"match_rms_adamw"`, 0.2 √max(rows, columns).
        betas: Decay rates of the two moments of AdamW, each in [0, 1).
        eps: Added to the denominator of AdamW.

    Raises:
        ValueError: If an argument is out of range, a group lacks `use_muon`, or a parameter with fewer than 2
            dimensions is in a group with `use_muon=True`.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = Muon(muon_groups(net), lr=0.01)
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [1, 5]
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 0.01,
        adamw_lr_ratio: float = 0.1,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        scale: MuonScale = "original",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        at_least_zero = {"lr": lr, "adamw_lr_ratio": adamw_lr_ratio, "weight_decay": weight_decay, "eps": eps}
        for name, value in at_least_zero.items():
            if value < 0:
                raise ValueError(f"`{name}` must be at least 0, got {value}")
        for name, value in {"momentum": momentum, "betas[0]": betas[0], "betas[1]": betas[1]}.items():
            if not 0 <= value < 1:
                raise ValueError(f"`{name}` must be in [0, 1), got {value}")
        at_least(1, steps=steps)
        one_of(MuonScale, scale=scale)
        settings = {"momentum": momentum, "nesterov": nesterov, "steps": steps, "scale": scale, "betas": betas}
        super().__init__(params, {**at_least_zero, **settings, "paused": False, "transposed": False})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group with `use_muon`."""
        if not isinstance(param_group.get("use_muon"), bool):
            raise ValueError(
                "every parameter group needs `use_muon`, True for hidden matrices and False for all others:"
                " use Muon(muon_groups(model)), and in a recipe parameter_groups: lightning_fire.optim.muon_groups"
            )
        super().add_param_group(param_group)
        shapes = [tuple(parameter.shape) for parameter in self.param_groups[-1]["params"]]
        if param_group["use_muon"] and any(len(shape) < 2 for shape in shapes):
            raise ValueError(
                f"Muon steps matrices only, got a parameter of shape {min(shapes, key=len)}; put it into a group with"
                " use_muon=False"
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, without pauses: these belong to the state of `UseMuon`."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["paused"] = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parameters that have a gradient; return the loss that `closure` computes with its gradients."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["use_muon"] and not group["paused"]:
                self._step_muon(group, parameters)
            elif parameters:
                self._step_adamw(group, parameters)
        return loss

    def _step_muon(self, group: dict[str, Any], parameters: Sequence[Parameter]) -> None:
        def out_in(weight: Tensor) -> Tensor:
            return weight.transpose(0, 1) if group["transposed"] else weight

        def kind(parameter: Parameter) -> tuple[Any, ...]:
            return (*out_in(parameter).flatten(1).shape, str(parameter.dtype), str(parameter.device))

        def direction(parameter: Parameter) -> Tensor:
            assert parameter.grad is not None  # `step` leaves the others out
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum: Tensor = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
            return parameter.grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum

        for _, alike in groupby(sorted(parameters, key=kind), kind):  # matrices of one shape are stepped as one batch
            batch = list(alike)
            directions = torch.stack([out_in(direction(parameter)).flatten(1) for parameter in batch])
            updates = muon_direction(directions, group["steps"], group["scale"])
            for parameter, update in zip(batch, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                weight = out_in(parameter)
                weight.add_(update.view(weight.shape), alpha=-group["lr"])

    def _step_adamw(self, group: dict[str, Any], parameters: Sequence[Parameter]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if "exp_avg" not in state:
                state["step"] = torch.tensor(0.0, dtype=torch.float32, device="cpu")
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        adamw(
            list(parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"] * group["adamw_lr_ratio"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
