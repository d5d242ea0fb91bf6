"""What a training lends a method: its optimizers, batches of the new data, and the initial values of its model."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.distributed import world_size
from lightning_fire.methods.base.averages import as_averages
from lightning_fire.methods.base.optimizers import Optimizers, listed


class Training(Protocol):
    """What a method may use of the training in which it acts. Each library has one adapter; a plain loop has `Loop`."""

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that train the model. Empty: not known, and every trainable parameter counts."""

    @property
    def paused(self) -> Collection[Tensor]:
        """Parameters of them that count as trained though they are frozen now, as between the batches of a GAN."""

    @property
    def averages(self) -> Sequence[Any]:
        """Averages of the weights, beside those that the model holds: they begin again from new weights."""

    @property
    def event(self) -> int:
        """Number of the present event, from 1."""

    @property
    def measure(self) -> bool:
        """Whether to measure a change of weights, which costs some matrix products."""

    @property
    def ranks(self) -> int:
        """Number of processes that train the model together, each on data of its own: 1, or all of them."""

    @property
    def share_work(self) -> bool:
        """Whether these processes, which all have the same weights, share the work."""

    def initial(self) -> Mapping[str, Tensor]:
        """Return the parameters and buffers of the model when it was new, by name."""

    def forward(self, batches: int = 1) -> None:
        """Run the model on some batches of the new data, with gradients and without side effects, for its hooks."""

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield, for each of some batches of the new data, the gradient of its loss by each parameter."""


class Loop:
    """The `Training` of a loop of your own.

    Args:
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains, such as those
            of a teacher, stay as they are. Default: every trainable parameter counts as trained.
        forward: Runs the model on one batch of the new data, the next at each call, for methods on hidden units:
            `lambda: model(x)`, or `lambda: model(next(batches))`.
        losses: Losses of batches of the new data, scalars with a graph, for methods that use gradients; best a function
            that returns a generator: `lambda: (criterion(model(x), y) for x, y in loader)`. All of them are used.
        initial: Values of the model when it was new, see `initial_values`, or others to reset to.
        averages: One or several averages of the weights, which begin again from new weights: of torch, timm, diffusers
            and others, copies of the model, or tensors by name. Those that the model holds are found by themselves.
        event: Number of the next event, from 1, as seeds of draws depend on it; each event counts it up.
        measure: Whether to measure a change of weights, which costs some matrix products.
        share_work: With `torch.distributed`, let each rank compute some of the weights and send them to the others.
            All ranks must have the same weights then. Without it they compute the same values on their own.
        ranks: Number of processes that train the model together. Default: all of `torch.distributed`; 1 where each of
            them trains a model of its own.

    Raises:
        TypeError: If something else than an optimizer is among `optimizers`.

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
    """Return the gradient of a loss by each parameter, zeros where it does not depend on one; `.grad` stays."""
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(parameters, found, strict=True)]
