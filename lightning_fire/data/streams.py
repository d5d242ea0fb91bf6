"""Streams: sequences of tasks on which networks lose plasticity, after the benchmarks of the field, scaled down.

A task is a chunk of data whose inputs or targets differ from those of the task before. The metric is the *online*
accuracy or error: on each batch before the update with it. All draws are pure functions of the seed and the task
number.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_fire.data.protocols import Access, Protocol

Samples = tuple[Tensor, Tensor]  # inputs (n, ...) and targets (n, ...)
TaskSamples = tuple[Samples, Samples]  # to train on, and to validate with

_SEED_STRIDE = 999_999_937  # distinguishes the draws of seeds 0, 1, 2 from each other and from batch orders
_SAMPLES, _CHANGE = range(2)  # what is drawn


@dataclass(frozen=True)
class Stream(Protocol):
    """A sequence of tasks, each on samples of one data set.

    Args:
        num_chunks: Number of tasks, each a chunk.
        samples_per_task: Training samples of each task, drawn at random without replacement within the task; the same
            sample may return in another task. None: all.
        epochs: Epochs of each task: one number for all, or one per task.
        drift: Fraction of each task except the first, from its start, during which its samples change gradually from
            those of the previous task, in [0, 1]. 0: all at once (the benchmarks); 1: until its end. See `between`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    num_chunks: int = 40
    samples_per_task: int | None = 1000
    epochs: int | tuple[int, ...] = 1
    drift: float = field(default=0.0, kw_only=True)
    access: ClassVar[Access] = "current"  # type: ignore[misc]
    online: ClassVar[bool] = True
    same_samples: ClassVar[bool] = False  # in all tasks

    def __post_init__(self) -> None:
        if self.samples_per_task is not None and self.samples_per_task < 1:
            raise ValueError(f"`samples_per_task` must be at least 1, or None for all, got {self.samples_per_task}")
        if not 0 <= self.drift <= 1:
            raise ValueError(f"`drift` must be from 0 to 1, got {self.drift}")
        super().__post_init__()

    @abstractmethod
    def task(self, number: int, train: Samples, test: Samples, num_classes: int | None, seed: int) -> TaskSamples:
        """Return training and validation samples of a task, each as inputs and targets.

        Args:
            number: Number of the task, from 0.
            train: Inputs `(n, ...)` and targets `(n, ...)` of the training samples that the task has drawn.
            test: The same of all test samples.
            num_classes: Number of classes of the whole data set; None if it has no labels.
            seed: Seed of the draws.

        Raises:
            ValueError: If the data does not fit the stream.
        """

    def between(self, old: Samples, new: Samples, weight: Tensor, generator: torch.Generator) -> Samples:
        """Return training samples at a time between one task and the next.

        Each sample is the new one with a probability equal to its weight, otherwise the old one. It changes once, when
        its weight exceeds a random threshold of the sample.

        Source: task sampling of Liu & Mou, Do neural networks lose plasticity in a gradually changing world?,
        arXiv:2602.09234, 2026. There the thresholds are evenly spaced, and the change lengthens the task.

        Args:
            old: Inputs `(n, ...)` and targets `(n, ...)` of the samples in the task before.
            new: The same samples in the task.
            weight: Weight of the task for each sample, `(n,)` in [0, 1].
            generator: The same at each call within a task.
        """
        chosen = torch.rand(len(weight), device="cpu", generator=generator) < weight
        inputs, targets = (
            torch.where(chosen.view(-1, *[1] * (b.ndim - 1)).to(b.device), b, a) for a, b in zip(old, new, strict=True)
        )
        return inputs, targets

    def drifted(self, number: int, progress: Tensor, old: Samples, new: Samples, seed: int) -> Samples:
        """Return the training samples of a task with a drift, each at its own time.

        Args:
            number: Number of the task, from 1.
            progress: Fraction of the task done when each sample is trained on, `(n,)` in [0, 1].
            old: Inputs `(n, ...)` and targets `(n, ...)` of the samples in the task before.
            new: The same samples in the task.
            seed: Seed of the draws.
        """
        weight = (progress / self.drift).clamp(max=1)
        return self.between(old, new, weight, _generator(seed, self.num_chunks + number, _CHANGE))

    def _new(self, labels: Tensor, num_classes: int | None, seed: int) -> list[Tensor]:
        n, k = len(labels), self.samples_per_task
        if k is not None and k > n:
            raise ValueError(f"`samples_per_task` must not exceed the number of training samples ({n}), got {k}")
        draws = [0 if self.same_samples else task for task in range(self.num_chunks)]
        return [torch.randperm(n, device="cpu", generator=_generator(seed, draw, _SAMPLES))[:k] for draw in draws]


class PermutedLabels(Stream):
    """Stream in which a random permutation renames the classes in each task. Features of the inputs stay useful.

    Source: label-permuted EMNIST of Elsayed & Mahmood, Addressing loss of plasticity and catastrophic forgetting in
    continual learning, ICLR 2024. The default length is ours.
    """

    def task(self, number: int, train: Samples, test: Samples, num_classes: int | None, seed: int) -> TaskSamples:
        """Return the samples of a task with renamed classes, int64 (n,)."""
        names = torch.randperm(_known(num_classes, self), device="cpu", generator=_generator(seed, number, _CHANGE))
        (inputs, labels), (test_inputs, test_labels) = train, test
        names = names.to(labels.device)
        return (inputs, names[labels]), (test_inputs, names[test_labels])


@dataclass(frozen=True)
class RandomLabels(Stream):
    """Stream in which the same samples get new random labels in each task, to be memorized.

    Tasks share nothing that can be learned: results depend only on plasticity. A task is validated on its training
    samples.

    Source: random-label MNIST of Kumar et al., Maintaining plasticity in continual learning via regenerative
    regularization, CoLLAs 2024, after Lyle et al., Understanding plasticity in neural networks, ICML 2023. The default
    length is ours.

    Args:
        num_chunks: Number of tasks, each a chunk.
        samples_per_task: Training samples of each task, the same in each; None: all.
        epochs: Epochs of each task: one number for all, or one per task.
        drift: Fraction of each task during which one sample after the other gets its new label, see `Stream`.
        labels: `"drawn"`: each sample draws its label from all classes, as Kumar et al. write; `"shuffled"`: the true
            labels of the samples are permuted, as their code does (skumar9876/L2_Init), so that each class has as many
            samples as in the data.

    Raises:
        ValueError: If an argument is out of its range.
    """

    num_chunks: int = 15
    samples_per_task: int | None = 600
    epochs: int | tuple[int, ...] = 25
    labels: Literal["drawn", "shuffled"] = "drawn"
    same_samples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels not in ("drawn", "shuffled"):
            raise ValueError(f"`labels` must be 'drawn' or 'shuffled', got {self.labels!r}")

    def task(self, number: int, train: Samples, test: Samples, num_classes: int | None, seed: int) -> TaskSamples:
        """Return the training samples of a task with random labels, int64 (n,), twice."""
        generator = _generator(seed, number, _CHANGE)
        inputs, true = train
        if self.labels == "shuffled":
            labels = true[torch.randperm(len(true), device="cpu", generator=generator).to(true.device)]
        else:
            labels = torch.randint(_known(num_classes, self), (len(true),), device="cpu", generator=generator)
        samples = inputs, labels.to(inputs.device)
        return samples, samples


class PermutedInputs(Stream):
    """Stream in which the inputs are permuted in each task, so that first layers must be learned again.

    Of inputs `(n, features)` the features are permuted, of images `(n, channels, height, width)` the pixels, in the
    same way in each channel.

    Source: online permuted MNIST of Dohare et al., Loss of plasticity in deep continual learning, Nature 2024, and of
    Kumar et al., CoLLAs 2024. The default length is ours.
    """

    def task(self, number: int, train: Samples, test: Samples, num_classes: int | None, seed: int) -> TaskSamples:
        """Return the samples of a task with permuted inputs."""
        first = 1 if train[0].ndim == 2 else 2  # of the permuted dimensions
        generator, size = _generator(seed, number, _CHANGE), train[0].shape[first:].numel()
        order = torch.randperm(size, device="cpu", generator=generator)

        def permuted(inputs: Tensor) -> Tensor:
            return inputs.flatten(first).index_select(-1, order.to(inputs.device)).view_as(inputs)

        return (permuted(train[0]), train[1]), (permuted(test[0]), test[1])

    def between(self, old: Samples, new: Samples, weight: Tensor, generator: torch.Generator) -> Samples:
        """Return samples with inputs (1 − weight)·old + weight·new, integers rounded.

        Source: input interpolation of Liu & Mou, arXiv:2602.09234, 2026.
        """
        inputs, dtype = new[0], new[0].dtype if new[0].is_floating_point() else torch.float32
        weight = weight.view(-1, *[1] * (inputs.ndim - 1)).to(inputs.device, dtype)
        mixed = torch.lerp(old[0].to(dtype), inputs.to(dtype), weight)
        return mixed if inputs.is_floating_point() else mixed.round().to(inputs.dtype), new[1]


class ThresholdNetwork(NamedTuple):
    """Fixed network with one hidden layer of linear threshold units; all its weights and biases are ±1.

    A unit outputs 1 if its pre-activation exceeds its threshold β (bits + 1) − S, else 0. S is the number of its
    weights of −1, plus half its bias.

    Source: the target network of Dohare et al., Loss of plasticity in deep continual learning, Nature 2024, as in
    their code (shibhansh/loss-of-plasticity, `lop/nets/fix_ltu_net.py`). The comment there counts the weights alone.

    Attributes:
        weights: Weights of the units, (hidden_units, bits).
        biases: Biases of the units, (hidden_units,).
        output_weights: Weights of the output, (hidden_units,).
        output_bias: Bias of the output, a scalar.
        threshold: β, in (0, 1): fraction of the inputs, bias included, that must agree with the weights of a unit.

    Example:
        >>> weights, one = torch.tensor([[1.0, -1.0, 1.0]]), torch.ones(1)
        >>> network = ThresholdNetwork(weights, one, one, torch.tensor(-1.0), threshold=0.7)
        >>> network.thresholds
        tensor([1.3000])
        >>> network(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))
        tensor([[ 0.],
                [-1.]])
    """

    weights: Tensor
    biases: Tensor
    output_weights: Tensor
    output_bias: Tensor
    threshold: float

    @classmethod
    def draw(cls, bits: int, hidden_units: int, threshold: float, generator: torch.Generator) -> "ThresholdNetwork":
        """Draw all weights and biases from {−1, 1}; `threshold` is β."""
        shapes = (hidden_units, bits), (hidden_units,), (hidden_units,), ()
        weights, biases, output_weights, output_bias = (
            torch.randint(2, shape, device="cpu", generator=generator).float() * 2 - 1 for shape in shapes
        )
        return cls(weights, biases, output_weights, output_bias, threshold)

    @property
    def thresholds(self) -> Tensor:
        """Threshold of each unit, (hidden_units,)."""
        bits = self.weights.shape[1]
        return self.threshold * (bits + 1) - (bits - self.weights.sum(1) + self.biases) / 2

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the targets (n, 1) of inputs (n, bits) of 0 and 1."""
        fires = inputs @ self.weights.T + self.biases > self.thresholds
        return (fires.float() @ self.output_weights + self.output_bias).unsqueeze(1)


@dataclass(frozen=True)
class SlowlyChangingRegression(Stream):
    """Regression on slowly changing bits; a small network must track the targets.

    `slow_bits` of the input bits are the same for all samples of a task, and change before each further task; the
    others are drawn for each sample. The targets are the outputs of a fixed random `ThresholdNetwork`. Inputs and
    targets of the given data set are not used.

    Source: Dohare et al., Loss of plasticity in deep continual learning, Nature 2024, "Slowly-Changing Regression":
    20 bits of which 15 are slow, 100 hidden units, threshold 0.7, 10,000 samples a task.

    Args:
        num_chunks: Number of tasks, each a chunk.
        samples_per_task: Training samples of each task.
        epochs: Epochs of each task: one number for all, or one per task.
        drift: Fraction of each task during which its samples replace those of the task before, see `Stream`.
        bits: Input bits.
        slow_bits: Number of bits that are the same for all samples of a task, from 1 to `bits`.
        hidden_units: Hidden units of the network that makes the targets.
        threshold: Fraction of the inputs, bias included, that must agree with the weights of a unit, in (0, 1).
        change: `"one_bit"`: one slow bit, drawn at random, flips before each further task, as in the article;
            `"all_bits"`: all slow bits are resampled, as in the authors' configurations without `flip_one`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    num_chunks: int = 100
    samples_per_task: int = 10_000
    bits: int = 20
    slow_bits: int = 15
    hidden_units: int = 100
    threshold: float = 0.7
    change: Literal["one_bit", "all_bits"] = "one_bit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.slow_bits <= self.bits:
            raise ValueError(f"`slow_bits` must be from 1 to `bits` ({self.bits}), got {self.slow_bits}")
        if self.hidden_units < 1:
            raise ValueError(f"`hidden_units` must be at least 1, got {self.hidden_units}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"`threshold` must be strictly between 0 and 1, got {self.threshold}")
        if self.change not in ("one_bit", "all_bits"):
            raise ValueError(f"`change` must be 'one_bit' or 'all_bits', got {self.change!r}")

    def target_network(self, seed: int) -> ThresholdNetwork:
        """Return the network that makes the targets of all tasks, a pure function of the seed."""
        return self._draw_network(_generator(seed, 0, _SAMPLES))

    def task(self, number: int, train: Samples, test: Samples, num_classes: int | None, seed: int) -> TaskSamples:
        """Return the samples of a task: inputs float32 (n, bits) of 0 and 1, targets float32 (n, 1)."""
        fixed, generator = _generator(seed, 0, _SAMPLES), _generator(seed, number, _CHANGE)
        network = self._draw_network(fixed)
        if self.change == "all_bits":
            slow = torch.randint(2, (self.slow_bits,), device="cpu", generator=generator)
        else:
            first = torch.randint(2, (self.slow_bits,), device="cpu", generator=fixed)
            flips = torch.randint(self.slow_bits, (number,), device="cpu", generator=fixed)
            slow = (first + torch.bincount(flips, minlength=self.slow_bits)) % 2

        def draw(n: int) -> Samples:
            fast = torch.randint(2, (n, self.bits - self.slow_bits), device="cpu", generator=generator)
            inputs = torch.cat([slow.expand(n, -1), fast], dim=1).float()
            return inputs, network(inputs)

        return draw(len(train[0])), draw(len(test[0]))

    def _draw_network(self, generator: torch.Generator) -> ThresholdNetwork:
        return ThresholdNetwork.draw(self.bits, self.hidden_units, self.threshold, generator)


def _generator(seed: int, task: int, purpose: int) -> torch.Generator:
    return torch.Generator().manual_seed(_SEED_STRIDE * (int(seed) + 1) + 2 * task + purpose)


def _known(num_classes: int | None, stream: Stream) -> int:
    if num_classes is None:
        raise ValueError(f"`num_classes` must be known for {type(stream).__name__}, which needs labels, got None")
    return num_classes
