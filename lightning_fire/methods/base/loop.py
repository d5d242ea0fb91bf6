"""What a training offers a method: its optimizers, batches of the new data, and initial values of the model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lightning_fire.distributed import world_size
from lightning_fire.functional.curvature import NO_GRADIENT
from lightning_fire.methods.base.averages import as_averages, averaged_parameters
from lightning_fire.methods.base.optimizers import as_list, parameters_of


@dataclass(eq=False)
class Loop:
    """What a training offers a method. Make it yourself in your own loop; callbacks make it for their library.

    Args:
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains, such as those
            of a teacher, stay as they are. Default: every trainable parameter counts as trained.
        forward: For methods on hidden units: runs the model on the next batch of the new data at each call: `lambda:
            model(x)`, or `lambda: model(next(batches))`.
        losses: Losses of batches of the new data, scalars with a graph, for methods that use gradients; best a function
            that returns a generator: `lambda: (criterion(model(x), y) for x, y in loader)`. All of them are used.
        initial: Values of the model when it was new, see `initial_values`, or other values to reset to.
        averages: One or several averages of the weights, which restart from new weights: `AveragedModel` of torch, the
            averages of timm, diffusers, torch_ema, ema_pytorch and ultralytics, copies of the model, or tensors by
            name. Those of these libraries that the model holds are found automatically. Of several models: one of each,
            in their order, or one of `nn.ModuleList(models)`.
        event: Number of the next event, from 1, on which seeds depend; each event increments it.
        measure: Whether to measure a change of weights, which costs some matrix products.
        share_work: With `torch.distributed`, each rank computes some of the weights and sends them to the others; all
            ranks must have the same weights. If False, each rank computes all of them.
        ranks: Number of processes that train the model together. Default: all of `torch.distributed`. Give 1 if each of
            them trains a separate model.

    Raises:
        TypeError: If one of `optimizers` is not an optimizer, or one of `averages` is not an average.

    Example:
        >>> from lightning_fire.methods import FIRE
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> report = FIRE(steps=5)(model, Loop(optimizers=optimizer))
    """

    optimizers: Any = ()  # an optimizer or several; then a list
    forward: Callable[[], Any] | None = None
    losses: Iterable[Tensor] | Callable[[], Iterable[Tensor]] | None = None
    initial: Mapping[str, Tensor] | None = None
    averages: Any = ()
    event: int = 1
    measure: bool = True
    share_work: bool = False
    ranks: int = field(default_factory=world_size)

    def __post_init__(self) -> None:
        self.optimizers, self.averages = as_list(self.optimizers), as_averages(self.averages)
        self.share_work = self.share_work and self.ranks > 1

    def trained(self, model: nn.Module) -> set[Tensor] | None:
        """Return the parameters that the optimizers train; None if all with `requires_grad` count as trained.

        Raises:
            ValueError: If the optimizers train no parameter of the model.
        """
        averaged, optimizers = averaged_parameters(model), as_list(self.optimizers)
        if not optimizers:
            return set[Tensor](model.parameters()) - averaged if averaged else None
        trained = parameters_of(optimizers) - averaged
        if trained.isdisjoint(model.parameters()) and next(model.parameters(), None) is not None:
            names = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
            raise ValueError(
                f"the given optimizers ({names}) train no parameter of {type(model).__name__}: they belong to another"
                " model, or step copies of its weights, which would undo a change. Give the optimizer that was made of"
                " this model's parameters, or none"
            )
        return trained

    def initial_values(self) -> Mapping[str, Tensor]:
        """Return `initial`; raise a ValueError without it."""
        if self.initial is None:
            raise ValueError("this method needs Loop(initial=initial_values(model)), called when the model was new")
        return self.initial

    def run(self, batches: int = 1) -> None:
        """Run the model, and so its hooks, on some batches of the new data, with gradients."""
        if self.forward is None:
            raise ValueError("this method needs Loop(forward=lambda: model(x)), which runs the model on a batch")
        for _ in range(batches):
            self.forward()

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradients of each of the `losses`; `.grad` of the parameters stays as it is.

        Args:
            of: The parameters.
            batches: Number of batches, for libraries that provide them.
        """
        if self.losses is None:
            raise ValueError("this method needs Loop(losses=lambda: (loss(x, y) for x, y in loader))")
        for loss in self.losses() if callable(self.losses) else self.losses:
            if not isinstance(loss, Tensor):
                raise TypeError(f"`losses` must be tensors with a graph, one of each batch, got {type(loss).__name__}")
            yield gradients_of(loss, of)

    def loss_function(self) -> Callable[[], Tensor]:
        """Return a function that computes the first of the `losses` again at each call."""
        if not callable(losses := self.losses):
            raise ValueError("this needs Loop(losses=lambda: (loss(x, y) for x, y in loader)), a function")
        return lambda: next(iter(losses()))


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss with respect to each parameter, zeros if independent; `.grad` is unchanged.

    Raises:
        ValueError: If the loss depends on none of them, as within reentrant checkpoints, which hide their parameters.
    """
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    if parameters and all(gradient is None for gradient in found):
        raise ValueError(NO_GRADIENT)
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(parameters, found, strict=True)]
