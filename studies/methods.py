"""The methods of the studies, each as the function that acts on a member."""

from functools import partial

from torch.optim import Optimizer

from lightning_fire import functional
from lightning_fire.functional.orthogonal import Scale
from lightning_fire.methods import FIRE, FullReset, Loop, ShrinkAndPerturb, drop_state, isometric_values
from lightning_fire.where import Parameters, Weights
from studies.ensemble import Act, Member

WHERE = Weights(preset="cnn")  # every Linear weight


def vanilla(member: Member, optimizer: Optimizer) -> None:
    """Continue without an event."""


def fire(member: Member, optimizer: Optimizer, layers: tuple[str, ...] = (), **options: object) -> None:
    """FIRE, on the layers of the given names or on all."""
    where = Weights(preset="cnn", include=[f"^{layer}" for layer in layers]) if layers else WHERE
    FIRE(where, **options)(member.network, Loop(optimizer, measure=False))


def reset(member: Member, optimizer: Optimizer, layers: tuple[str, ...] = ()) -> None:
    """Initial values, of the layers of the given names or of everything."""
    where = Parameters(include=[f"^{layer}" for layer in layers]) if layers else None
    FullReset(where=where)(member.network, Loop(optimizer, initial=member.initial, measure=False))


def reset_small(member: Member, optimizer: Optimizer) -> None:
    """Initial values, the weights times 0.05."""
    weights = {view.name for view in WHERE.select(member.network)}
    small = {name: value * 0.05 if name in weights else value for name, value in member.initial.items()}
    FullReset()(member.network, Loop(optimizer, initial=small, measure=False))


def reset_to_isometry(member: Member, optimizer: Optimizer, scale: Scale) -> None:
    """Initial values, the weights replaced by their nearest isometries, of the norms that FIRE would give them now."""
    norms = {view.name: functional.fire(view.read(), scale=scale).norm() for view in WHERE.select(member.network)}
    isometries = isometric_values(member.network, member.initial, WHERE)
    FullReset()(member.network, Loop(optimizer, initial=isometries, measure=False))
    for view in WHERE.select(member.network):
        view.write(view.read() * (norms[view.name] / view.read().norm()))


def shrink_and_perturb(member: Member, optimizer: Optimizer, strength: float) -> None:
    """Shrink and perturb towards the initial values."""
    ShrinkAndPerturb(strength)(member.network, Loop(optimizer, initial=member.initial, measure=False))


def reset_optimizer(member: Member, optimizer: Optimizer) -> None:
    """Reset the moments of Adam only."""
    drop_state(optimizer, member.network.parameters())


METHODS: dict[str, Act] = {
    "vanilla": vanilla,
    "reset_optimizer": reset_optimizer,
    "reset_head": partial(reset, layers=("head",)),
    "full_reset": reset,
    "full_reset_small": reset_small,
    "isometry_of_initial": partial(reset_to_isometry, scale="paper"),
    "isometry_of_initial_procrustes": partial(reset_to_isometry, scale="procrustes"),
    "shrink_and_perturb": partial(shrink_and_perturb, strength=0.6),
    "fire": fire,
    "fire_procrustes": partial(fire, scale="procrustes"),
}
