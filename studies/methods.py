"""The methods of the studies, each as the function that acts on a member."""

from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.functional.orthogonal import Scale
from lightning_fire.methods import fire_, full_reset_, isometric_values, reset_optimizer_state, shrink_and_perturb_
from lightning_fire.where import Parameters, Weights
from studies.ensemble import Act, Member

WHERE = Weights(preset="cnn")  # every Linear weight


def vanilla(member: Member, optimizer: Optimizer) -> None:
    """Go on training."""


def fire(member: Member, optimizer: Optimizer, layers: tuple[str, ...] = (), **options: object) -> None:
    """FIRE, on the layers of the given names or on all."""
    where = Weights(preset="cnn", include=[f"^{layer}" for layer in layers]) if layers else WHERE
    fire_(member.network, where, optimizers=optimizer, measure=False, **options)


def reset(member: Member, optimizer: Optimizer, layers: tuple[str, ...] = ()) -> None:
    """Initial values, of the layers of the given names or of everything."""
    where = Parameters(include=[f"^{layer}" for layer in layers]) if layers else None
    full_reset_(member.network, member.initial, where, optimizers=optimizer, measure=False)


def reset_to(member: Member, optimizer: Optimizer, factor: float = 1.0, isometry: Scale | None = None) -> None:
    """Initial values; the weights times a factor, or replaced by their nearest isometries with a scale."""
    full_reset_(member.network, changed(member, factor, isometry), optimizers=optimizer, measure=False)


def shrink_and_perturb(member: Member, optimizer: Optimizer, strength: float) -> None:
    """Shrink and perturb towards the initial values."""
    shrink_and_perturb_(member.network, member.initial, strength, optimizers=optimizer, measure=False)


def reset_optimizer(member: Member, optimizer: Optimizer) -> None:
    """New moments of Adam, and nothing else."""
    reset_optimizer_state(optimizer, member.network.parameters())


def fire_with_initial_norms(member: Member, optimizer: Optimizer) -> None:
    """FIRE, each weight scaled to the Frobenius norm of its initial values."""
    fire(member, optimizer, scale="none")
    with torch.no_grad():
        for view in WHERE.select(member.network):
            weight = view.read()
            view.write(weight * (member.initial[view.name].norm() / weight.norm()))


def changed(member: Member, factor: float, isometry: Scale | None) -> dict[str, Tensor]:
    """Return the initial values with other weights."""
    if isometry is not None:
        return isometric_values(member.network, member.initial, WHERE, isometry)
    weights = {view.name for view in WHERE.select(member.network)}
    return {name: value * factor if name in weights else value for name, value in member.initial.items()}


METHODS: dict[str, Act] = {
    "vanilla": vanilla,
    "reset_optimizer": reset_optimizer,
    "reset_head": partial(reset, layers=("head",)),
    "full_reset": reset,
    "full_reset_small": partial(reset_to, factor=0.05),
    "isometry_of_initial": partial(reset_to, isometry="paper"),
    "isometry_of_initial_procrustes": partial(reset_to, isometry="procrustes"),
    "shrink_and_perturb": partial(shrink_and_perturb, strength=0.6),
    "fire": fire,
    "fire_none": partial(fire, scale="none"),
    "fire_procrustes": partial(fire, scale="procrustes"),
    "fire_initial_norms": fire_with_initial_norms,
}
