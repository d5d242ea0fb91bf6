"""Soft weight rescaling (Oh et al., 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lightning_fire.distributed import to_device, to_list
from lightning_fire.functional.projection import frobenius_norm, soft_rescaling
from lightning_fire.methods.base.layer_weights import layer_weights
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import Attached, StepMethod
from lightning_fire.where import Weights
from lightning_fire.where.layers import biases_of
from lightning_fire.where.normalized import normalization_layers
from lightning_fire.where.trained import why_not_trained


@dataclass(frozen=True)
class SoftWeightRescaling(StepMethod):
    """Moves the norm of each weight towards its initial one after each optimizer step, and rescales biases to match.

    In module order each weight W is multiplied by c = (λ·‖W₀‖ + (1 − λ)·‖W‖) / ‖W‖, and the bias of its layer by the
    product of all c so far: the outputs of a feed-forward ReLU network are all multiplied by one factor. Scales and
    shifts of normalization layers count as W and bias; as such a layer cancels the scale of its input, the product
    restarts there, also without a scale. Logs nothing.

    Args:
        strength: λ, in [0, 1] (paper: tuned, 1e-4 to 1). 1 keeps the initial norms.
        classifier: λ of the layers after the last normalization layer. Default: `strength` (paper: tuned, for networks
            with BatchNorm).
        where: The weights to rescale. Default: those of all Linear and convolution layers, depthwise ones included, of
            attention and of recurrent layers. Normalization layers are always rescaled.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> rescaling, x = SoftWeightRescaling(strength=0.5).attach(model), torch.ones(1, 2)
        >>> with torch.no_grad():
        ...     _ = model[0].weight.mul_(3.0)  # an optimizer step
        >>> before = model(x)
        >>> rescaling.after_step()
        >>> bool(torch.allclose(model(x), before * 2 / 3))
        True
    """

    name: ClassVar[str] = "soft_weight_rescaling"
    kind: ClassVar[Weights] = Weights()

    strength: float = 1e-3
    classifier: float | None = None
    where: Weights | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("strength", "classifier"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"`{name}` must be in [0, 1], got {value}")

    def begin(self, model: nn.Module, training: Loop) -> "_Rescaling":
        """Select the layers and measure the norms of their weights."""
        return _Rescaling(self, model, training)


class _Layer(NamedTuple):
    """A weight, or the scale of a normalization layer, with its biases and λ."""

    name: str
    weight: Tensor
    biases: Sequence[tuple[Tensor, Any]]  # with the part of each
    strength: float
    restarts: bool  # whether the product restarts with its factor


class _Rescaling(Attached):
    """Soft weight rescaling attached to a model.

    Attributes:
        layers: The rescaled layers, in module order.
        norms: ‖W₀‖ by name.
    """

    def __init__(self, method: SoftWeightRescaling, model: nn.Module, training: Loop):
        selected = {weight.parameter for weight in layer_weights(model, training, method.where)}
        trained = training.trained(model)
        norms = normalization_layers(model)
        classifier = method.strength if method.classifier is None else method.classifier
        self.layers: list[_Layer] = []
        restarts = False
        for index, (path, module) in enumerate(model.named_modules()):
            strength = classifier if index > max(norms, default=-1) else method.strength
            # a container, such as a convolution with its normalization layer, is named after what it holds
            restarts |= index in norms and not any(True for child in module.children() for _ in child.parameters())
            for leaf, weight in module.named_parameters(recurse=False):
                is_scale = index in norms and leaf == "weight" and not why_not_trained(weight, trained)
                if weight in selected or is_scale:
                    name, biases = f"{path}.{leaf}".strip("."), biases_of(module, leaf, trained)
                    self.layers.append(_Layer(name, weight, biases, strength, restarts or is_scale))
                    restarts = False
        found = to_list([frobenius_norm(layer.weight.detach()) for layer in self.layers])
        self.norms = {layer.name: norm for layer, norm in zip(self.layers, found, strict=True)}

    @torch.no_grad()
    def after_step(self) -> None:
        """Rescale the weights and biases, in place."""
        product = torch.ones((), device="cpu")  # product of the factors since a normalization layer
        for name, weight, biases, strength, restarts in self.layers:
            factor = soft_rescaling(frobenius_norm(weight), self.norms[name], strength)
            product = factor if restarts else factor * to_device(product, factor.device)
            weight.mul_(factor.to(weight.dtype))
            for bias, part in biases:
                bias[part] *= product.to(bias.dtype)

    def held(self) -> list[Tensor]:
        """Return the weights."""
        return [layer.weight for layer in self.layers]

    def state_dict(self) -> dict[str, Any]:
        """Return the initial norms."""
        return {"norms": dict(self.norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the initial norms. Weights not in the state keep their current ones."""
        self.norms |= {name: norm for name, norm in state.get("norms", {}).items() if name in self.norms}
