"""Optional members of your own module and data: the package uses those that exist.

Your classes need not inherit from these protocols. The table in `docs/reference/callbacks.md` is generated from them.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader


class HasChunk(Protocol):
    """A DataModule, or other training data."""

    @property
    def chunk(self) -> int:
        """Number of the current chunk of data. A change means new data; ignored unless an integer."""


class HasNumChunks(Protocol):
    """A DataModule, or other training data."""

    @property
    def num_chunks(self) -> int:
        """Total number of chunks, for messages and progress bars. With 1, the data never changes."""


class HasChunkAt(Protocol):
    """A DataModule, or other training data."""

    def chunk_at(self, epoch: int) -> int:
        """Return the chunk of an epoch from 0, also of one before a resume."""


class HasReport(Protocol):
    """The class of a DataModule."""

    @property
    def report(self) -> str:
        """Metric that `compare` reports: `"accuracy"` (also without it), `"return"` of episodes, or `"loss"`."""


class HasStepsPerChunk(Protocol):
    """A DataModule."""

    def steps_per_chunk(self) -> list[int]:
        """Return the number of optimizer steps of each chunk, for learning rates that restart in each."""


class HasOnline(Protocol):
    """A DataModule."""

    @property
    def online(self) -> bool:
        """True to let `Classifier` or `Regressor` log the metric of each batch before its update, as on streams."""


class HasSeenClasses(Protocol):
    """A DataModule."""

    @property
    def seen_classes(self) -> Tensor | None:
        """Classes seen so far, int64 (classes,), for `val/accuracy_seen` of `Classifier`; None: all of them."""


class HasTexts(Protocol):
    """A DataModule."""

    @property
    def texts(self) -> Sequence[str]:
        """Names of the texts, one validation loss each; a validation batch ends with the index of its text."""

    @property
    def text_weights(self) -> Mapping[str, float]:
        """Weight of each text in `val/loss`, a mean; they need not sum to 1."""


class HasProbeDataloader(Protocol):
    """A DataModule."""

    def probe_dataloader(self) -> DataLoader[Any]:
        """Return batches of a held-out task in a fixed order, for `PlasticityProbe`."""


class HasActionSpace(Protocol):
    """A DataModule of an environment."""

    @property
    def action_space(self) -> Any:
        """Action space of one environment, with which `DQN` and `SAC` check their networks; None before setup."""

    @property
    def example_observations(self) -> Tensor:
        """Example observations for the networks, `(num_envs, *shape)`."""


class HasEnvironmentSteps(Protocol):
    """A DataModule of an environment."""

    @property
    def environment_steps(self) -> int:
        """Environment steps done, the axis of events and histograms logged by callbacks."""


class HasN(Protocol):
    """An action space."""

    @property
    def n(self) -> int:
        """Number of actions. An action space with it is discrete."""


class HasLossOn(Protocol):
    """A LightningModule."""

    def loss_on(self, batch: Any) -> Tensor:
        """Return the loss of a batch, a scalar, without an optimizer step. Without it, `training_step` is run."""


class HasSyncTargets(Protocol):
    """A LightningModule with target networks."""

    def sync_targets(self) -> None:
        """Copy the trained networks into the target networks; called after a method has replaced weights."""


class HasAct(Protocol):
    """A LightningModule that acts in environments."""

    def act(self, observations: Tensor, step: int | None, generator: torch.Generator) -> Tensor:
        """Return actions for observations `(num_envs, *shape)`; `step` counts from the first update, None: evaluate."""


class HasNStep(Protocol):
    """A LightningModule that acts in environments."""

    @property
    def n_step(self) -> int:
        """Number of steps of the discounted returns of `ReplayDataModule` before bootstrapping. Default: 1."""

    @property
    def discount(self) -> float:
        """Discount γ of these returns."""


class HasObserve(Protocol):
    """A LightningModule that acts in environments."""

    def observe(self, observations: Tensor) -> None:
        """Update statistics, e.g. of a normalization, with training observations `(num_envs, *shape)`."""


class HasFlopsPerToken(Protocol):
    """The network of a `LanguageModel`."""

    def flops_per_token(self, length: int) -> int:
        """Return the FLOPs of training on one token of a block, for `train/mfu`. Without it: 6 per parameter."""


class HasResetParameters(Protocol):
    """A layer."""

    def reset_parameters(self) -> None:
        """Resample the layer's own parameters in place, as torch's layers do."""


C = TypeVar("C")


def implements(thing: object, contract: type[C]) -> TypeGuard[C]:
    """Return whether an object has all members of a protocol of this file.

    From Python 3.12 on, `isinstance` does not see what `__getattr__` returns, such as the submodules of a module.

    Example:
        >>> implements(torch.nn.Linear(2, 1), HasResetParameters), implements(torch.nn.ReLU(), HasResetParameters)
        (True, False)
    """
    return all(
        hasattr(thing, name) if isinstance(member, property) else callable(getattr(thing, name, None))
        for name, member in vars(contract).items()
        if not name.startswith("_")
    )


def chunk_of(data: object) -> int | None:
    """Return the `chunk` of a DataModule or other data; None without one, or if it is not an integer."""
    try:
        return operator.index(data.chunk) if implements(data, HasChunk) else None
    except TypeError:
        return None


def num_chunks_of(data: object) -> int | None:
    """Return the `num_chunks` of a DataModule or other training data; None without it."""
    return data.num_chunks if implements(data, HasNumChunks) else None
