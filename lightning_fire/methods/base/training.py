"""What a method can use of a training: its optimizers, batches of the new data, and initial values of the model."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.distributed import world_size
from lightning_fire.methods.base.averages import as_averages
from lightning_fire.methods.base.optimizers import Optimizers, listed


class Training(Protocol):
    """The part of a training that a method can use. Each library has an adapter; use `Loop` in your own loop."""

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that train the model. If empty, every trainable parameter counts as trained."""

    @property
    def paused(self) -> Collection[Tensor]:
        """Their parameters that count as trained although currently frozen, as between the batches of a GAN."""

    @property
    def averages(self) -> Sequence[Any]:
        """Averages of the weights in addition to those that the model holds: they restart from new weights."""

    @property
    def event(self) -> int:
        """Number of the current event, from 1."""

    @property
    def measure(self) -> bool:
        """Whether to measure a change of weights, which costs a few matrix products."""

    @property
    def ranks(self) -> int:
        """Number of processes that train the model together, each on its own data: 1, or all of them."""

    @property
    def share_work(self) -> bool:
        """Whether these processes, all with the same weights, share the work."""

    def initial(self) -> Mapping[str, Tensor]:
        """Return the parameters and buffers of the model when it was new, by name."""

    def forward(self, batches: int = 1) -> None:
        """Run the model, and so its hooks, on some batches of the new data, with gradients and without side effects."""

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield for each of some batches of the new data the gradient of its loss with respect to each parameter."""


class Loop:
    """The `Training` of a loop of your own.

    Args:
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains, such as those
            of a teacher, stay as they are. Default: every trainable parameter counts as trained.
        forward: For methods on hidden units: runs the model on the next batch of the new data at each call: `lambda:
            model(x)`, or `lambda: model(next(batches))`.
        losses: Losses of batches of the new data, scalars with a graph, for methods that use gradients; best a function
            that returns a generator: `lambda: (criterion(model(x), y) for x, y in loader)`. All of them are used.
        initial: Values of the model when it was new, see `initial_values`, or other values to reset to.
        averages: One or several averages of the weights, which restart from new weights: objects of torch, timm,
            diffusers and others, copies of the model, or tensors by name. Those inside the model are found
            automatically.
        event: Number of the next event, from 1, on which seeds depend; each event increments it.
        measure: Whether to measure a change of weights, which costs some matrix products.
        share_work: With `torch.distributed`, each rank computes some of the weights and sends them to the others; all
            ranks must have the same weights. If False, each rank computes all of them.
        ranks: Number of processes that train the model together. Default: all of `torch.distributed`. Give 1 if each of
            them trains a separate model.

    Raises:
        TypeError: If one of `optimizers` is not an optimizer.

    Example:
        >>> from lightning_fire.methods import FIRE
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> report = FIRE(steps=5)(model, Loop(optimizers=optimizer))
    """

    def __init__(
        self,
        optimizers: Optimizers = (),
        forward: Callable[[], Any] | None = None,
        losses: Iterable[Tensor] | Callable[[], Iterable[Tensor]] | None = None,
        initial: Mapping[str, Tensor] | None = None,
        averages: Any = (),
        event: int = 1,
        measure: bool = True,
        share_work: bool = False,
        ranks: int | None = None,
    ):
        self.optimizers, self.averages, self.event = listed(optimizers), as_averages(averages), event
        self.ranks = world_size() if ranks is None else ranks
        self.measure, self.share_work, self.paused = measure, share_work and self.ranks > 1, frozenset[Tensor]()
        self._forward, self._losses, self._initial = forward, losses, initial

    @property
    def repeats_losses(self) -> bool:
        """Whether the losses can be computed more than once."""
        return self._losses is None or callable(self._losses)

    def initial(self) -> Mapping[str, Tensor]:
        """Return the values given as `initial`."""
        if self._initial is None:
            raise ValueError("this method needs Loop(initial=initial_values(model)), called when the model was new")
        return self._initial

    def forward(self, batches: int = 1) -> None:
        """Call the function given as `forward` once for each batch."""
        if self._forward is None:
            raise ValueError("this method needs Loop(forward=lambda: model(x)), which runs the model on a batch")
        for _ in range(batches):
            self._forward()

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradients of each of the `losses`; `.grad` of the parameters stays as it is."""
        if self._losses is None:
            raise ValueError("this method needs Loop(losses=lambda: (loss(x, y) for x, y in loader))")
        for loss in self._losses() if callable(self._losses) else self._losses:
            if not isinstance(loss, Tensor):
                raise TypeError(f"`losses` must be tensors with a graph, one of each batch, got {type(loss).__name__}")
            yield gradients_of(loss, of)

    def loss_function(self) -> Callable[[], Tensor]:
        """Return a function that computes the first of the `losses` again at each call."""
        losses = self._losses
        if losses is None or not callable(losses):
            raise ValueError("this needs Loop(losses=lambda: (loss(x, y) for x, y in loader)), a function")
        return lambda: next(iter(losses()))


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss with respect to each parameter, zeros if independent; `.grad` is unchanged."""
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(parameters, found, strict=True)]
