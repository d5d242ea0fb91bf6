"""Values of networks before an event: what a monitor could know, what new samples show, and what a trial shows."""

import copy
from collections.abc import Sequence
from math import log10

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_fire.functional import loss_curvature
from lightning_fire.methods.base.loop import gradients_of
from lightning_fire.methods.base.one_step import readiness, sharpness_along
from lightning_fire.methods.base.passes import keeping_modes
from lightning_fire.methods.base.plasticity import (
    gram_of_last_features,
    report_of_features,
    report_of_units,
    report_of_weights,
)
from lightning_fire.methods.base.unit_scores import mean_activities
from lightning_fire.where import HiddenUnits
from studies.ensemble import Act, Ensemble, Member

_LEAST = 1e-12  # lower bound of what has a logarithm
_BATCH = 10
_MONITORED, _PARTS, _DORMANCY = 16, 4, 0.025  # samples, micro-batches and threshold of `PlasticityMonitor`
Values = dict[str, float]
Samples = tuple[Tensor, Tensor]  # inputs and labels


def act_and_compare(
    ensemble: Ensemble, members: Sequence[Member], act: Act, old: Samples, new: Samples
) -> list[Values]:
    """Let a method act on all members, and return the values of each before it, and what it changes at once.

    Args:
        ensemble: Of the members; only the method changes it.
        members: The members.
        act: The method.
        old: Inputs `(members, n, ...)` and labels `(members, n)` of the last data.
        new: Inputs and labels of the data to come.

    Returns:
        Those of `before` and `won`, `gradient_norm` of the last step, and `trial_won`, how much lower the event makes
        the loss after a pass over the new samples in batches of 10.
    """
    gradients = torch.cat([parameter.grad.flatten(1) for parameter in ensemble.parameters.values()], dim=1)
    found = [
        {"gradient_norm": float(norm), **before(member.network, as_new(member), _of(old, index), _of(new, index))}
        for index, (member, norm) in enumerate(zip(members, gradients.norm(dim=1), strict=True))
    ]
    lower = loss_after_pass(ensemble, *new)
    for member in members:
        act(member, ensemble.optimizer)
    lower -= loss_after_pass(ensemble, *new)
    for index, (member, values) in enumerate(zip(members, found, strict=True)):
        values |= {**won(values, member.network, _of(new, index)), "trial_won": float(lower[index])}
    return found


def before(network: nn.Module, initial: nn.Module, old: Samples, new: Samples) -> Values:
    """Return values of a network before an event.

    Args:
        network: Left as it is.
        initial: The same with its initial values.
        old: Inputs and labels of its last data, `(n, ...)` and `(n,)`.
        new: Inputs and labels of the data to come.

    Returns:
        Those of `monitored` on the last data. On the new: `loss_new` and `accuracy_new`, `readiness`,
        `critical_sharpness`, `lambda_max`. Against the initial values, in powers of ten: `dfi_gained` and, on the new
        samples, `readiness_lost`, `sharpness_gained`, `lambda_max_gained`.
    """
    now, first, seen = one_step(network, *new), one_step(initial, *new), monitored(network, *old)
    return {
        **seen,
        "loss_new": now["loss"],
        "accuracy_new": now["accuracy"],
        "readiness": now["readiness"],
        "critical_sharpness": now["sharpness"],
        "lambda_max": now["lambda_max"],
        "readiness_lost": _powers(first["readiness"], now["readiness"]),
        "sharpness_gained": _powers(now["sharpness"], first["sharpness"]),
        "lambda_max_gained": _powers(now["lambda_max"], first["lambda_max"]),
        "dfi_gained": _powers(seen["dfi_normalized"], report_of_weights(initial)["dfi_normalized"]),
    }


def won(values: Values, network: nn.Module, new: Samples) -> Values:
    """Return `readiness_won`, and `lambda_max_won`, its fall, in powers of ten, from `before` and after an event."""
    after = one_step(network, *new)
    return {
        "readiness_won": _powers(after["readiness"], values["readiness"]),
        "lambda_max_won": _powers(values["lambda_max"], after["lambda_max"]),
    }


@torch.no_grad()
def monitored(network: nn.Module, inputs: Tensor, labels: Tensor) -> Values:
    """Values that `PlasticityMonitor` logs of a network on its training data.

    Args:
        network: Left as it is.
        inputs: Samples `(n, ...)`.
        labels: Their labels, `(n,)`.

    Returns:
        Under its names, and as `monitored_readiness`, `monitored_sharpness` and `monitored_lambda_max` those of the
        loss, on the first 16 samples.
    """

    def forward() -> None:
        network(inputs)

    with keeping_modes(network):
        network.eval()
        layers = HiddenUnits().select(network, forward)
        units = report_of_units(layers, mean_activities(layers, forward), _DORMANCY)
        features = report_of_features(gram_of_last_features(network, [forward]))
    with torch.enable_grad():
        few = one_step(network, inputs[:_MONITORED], labels[:_MONITORED], _MONITORED // _PARTS)
    of_loss = {f"monitored_{name}": few[name] for name in ("readiness", "sharpness", "lambda_max")}
    return {**report_of_weights(network).values, **units.values, **features.values, **of_loss}


def one_step(network: nn.Module, inputs: Tensor, labels: Tensor, batch_size: int = _BATCH) -> Values:
    """Return `readiness`, from batches, and `loss`, `accuracy`, `sharpness` and `lambda_max`, on all samples.

    Args:
        network: Left as it is.
        inputs: Samples `(n, ...)`.
        labels: Their labels, `(n,)`.
        batch_size: Samples of a batch.

    Returns:
        All; a critical sharpness of 0 also where the gradient is 0. λ_max after at most 5 products with the Hessian.
    """
    parameters = list(network.parameters())
    with keeping_modes(network):
        network.eval()
        batches = zip(inputs.split(batch_size), labels.split(batch_size), strict=True)
        ready = readiness(gradients_of(cross_entropy(network(x), y), parameters) for x, y in batches)
        logits = network(inputs)
        loss = cross_entropy(logits, labels)
        curvature = loss_curvature(loss, parameters, tolerance=0.1, max_products=5)
        gradient = gradients_of(loss, parameters)
        try:
            sharp = sharpness_along(gradient, parameters, lambda: cross_entropy(network(inputs), labels)).value
        except ValueError:
            sharp = 0.0
    accuracy = float((logits.argmax(-1) == labels).float().mean())
    of_loss = {"loss": float(loss.detach()), "sharpness": sharp, "lambda_max": curvature.value}
    return {"readiness": ready, "accuracy": accuracy, **of_loss}


def as_new(member: Member) -> nn.Module:
    """Return a copy of the network of a member with its initial values."""
    network = copy.deepcopy(member.network)
    network.load_state_dict(member.initial)
    return network


def loss_after_pass(ensemble: Ensemble, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each member after a pass over samples, from which it returns; float32 `(members,)`.

    Args:
        ensemble: Of the members, which are the same afterwards.
        inputs: Samples `(members, n, ...)`, trained on in batches of 10.
        labels: Their labels, `(members, n)`.
    """
    state = ensemble.state()
    for x, y in zip(inputs.split(_BATCH, dim=1), labels.split(_BATCH, dim=1), strict=True):
        ensemble.step(x, y)
    with torch.no_grad():
        logits = ensemble.forward(inputs, training=False)
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).mean(1)
    ensemble.load(state)
    return losses


def _of(samples: Samples, index: int) -> Samples:
    return samples[0][index], samples[1][index]


def _powers(value: float, reference: float) -> float:
    """Return how many powers of ten a value is above a reference."""
    return log10(max(value, _LEAST)) - log10(max(reference, _LEAST))
