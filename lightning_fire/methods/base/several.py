"""Several models that one event changes together, such as an actor and a critic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import Tensor, nn

from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.report import merged
from lightning_fire.methods.base.training import Loop, Training

_SEED_STEP = 1_000_000  # between the seeds of two models, which would otherwise get the same draws


class Models(nn.ModuleList):
    """Several separate models."""


def class_of(model: nn.Module) -> str:
    """Return the class of a model in words; the classes of several, each once."""
    models = model if isinstance(model, Models) else [model]
    return " and ".join(dict.fromkeys(type(each).__name__ for each in models))


def as_one(model: Any) -> Any:
    """Wrap a list of models as one module, without duplicates; return anything else unchanged."""
    if not (isinstance(model, list | tuple) and model and all(isinstance(each, nn.Module) for each in model)):
        return model
    different = list(dict.fromkeys(model))
    return Models(different) if len(different) > 1 or len(model) == 1 else different[0]


class MemberTraining:
    """The training of one of several models; names start with its index.

    Attributes:
        together: All models; copies of weights and averages are searched in all of them.
    """

    def __init__(self, training: Training, number: int, models: Models, averages: Sequence[Any]):
        self._training, self._number = training, number
        self.together, self.averages = models, averages
        self.event = training.event + _SEED_STEP * number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._training, name)

    def initial(self) -> Mapping[str, Tensor]:
        """Return the initial values of this model, without the index in their names."""
        start = f"{self._number}."
        values = self._training.initial().items()
        return {name.removeprefix(start): value for name, value in values if name.startswith(start)}

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradients; losses that can be used only once are an error."""
        if isinstance(self._training, Loop) and not self._training.repeats_losses:
            raise ValueError("with several models `losses` must be a function: lambda: (loss(x, y) for x, y in loader)")
        yield from self._training.gradients(of, batches)


def together(changes: Sequence[Change]) -> Change:
    """Combine the changes of several models; names start with the model's index."""

    def then() -> None:
        for change in changes:
            change.then()

    touched = [change.values if change.touched is None else change.touched for change in changes]
    return Change(
        {tensor: new for change in changes for tensor, new in change.values.items()},
        merged([change.report for change in changes if change.report]),
        [replace(view, name=f"{n}.{view.name}") for n, change in enumerate(changes) for view in change.weights],
        then,
        [f"{sentence} (of model {n})" for n, change in enumerate(changes) for sentence in change.left_out],
        list(chain(*touched)),
        list(chain(*(change.parts for change in changes))),
        list(chain(*(change.guards for change in changes))),
    )
