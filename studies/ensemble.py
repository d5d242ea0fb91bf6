"""Small networks of one shape, trained side by side as one batched network: several times as fast as one by one.

Each member keeps an ordinary module, whose parameters share memory with the batch, so that the methods of
`lightning_fire.methods` act on it as on any other. A member has its own initial weights, data, learning rate and
optimizer state; the numbers are those of `lightning-fire compare`, up to rounding (tested).
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.resumable_loader import EpochSampler
from lightning_fire.data.samples import normalize
from lightning_fire.data.streams import Stream
from lightning_fire.functional import dfi_normalized, entropy_rank
from lightning_fire.methods import initial_values
from lightning_fire.when import AtNewData, Clock, Reading, Schedule, watched_by

Act = Callable[["Member", Optimizer], object]


@dataclass
class Member:
    """One network of an ensemble.

    Attributes:
        network: The module; its parameters are views into the ensemble.
        seed: Of its initial weights and its data.
        act: The method, called with the member and the optimizer of all members.
        when: When it acts, before a batch. The metrics that it watches are those of the epoch before.
        rate: Its learning rate.
        initial: Its initial parameters and buffers, by name.
        online: Online accuracies by chunk, fractions.
        test: Test accuracies at the ends of the chunks, fractions.
        kept: Accuracies on the test samples of the chunk before, right after the event where a chunk begins.
        events: Epochs in which the method acted.
    """

    network: nn.Module
    seed: int
    act: Act
    when: Schedule = field(default_factory=AtNewData)
    rate: float = 3e-3
    online: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.initial = initial_values(self.network)


class Ensemble:
    """Trains members with cross-entropy and Adam.

    Args:
        members: Networks of one shape. Their parameters and buffers become views of stacked tensors `(members, ...)`.
    """

    def __init__(self, members: Sequence[Member]):
        self._network = copy.deepcopy(members[0].network)  # its own tensors are never used
        named = [dict(member.network.named_parameters()) for member in members]
        self.parameters = {name: _stacked([each[name] for each in named]).requires_grad_() for name in named[0]}
        buffers = [dict(member.network.named_buffers()) for member in members]
        self.buffers = {name: _stacked([each[name] for each in buffers]) for name in buffers[0]}
        for name, stack in self.parameters.items():
            stack.grad = torch.zeros_like(stack)
            for each, gradient in zip(named, stack.grad, strict=True):
                each[name].grad = gradient
        rates: dict[float, list[nn.Parameter]] = {}
        for member, each in zip(members, named, strict=True):
            rates.setdefault(member.rate, []).extend(each.values())
        groups = [{"params": parameters, "lr": rate} for rate, parameters in rates.items()]
        self.optimizer = torch.optim.Adam(groups, fused=True)

    def forward(self, inputs: Tensor, training: bool = True) -> Tensor:
        """Return the outputs `(members, batch, classes)` of inputs `(members, batch, ...)`."""
        self._network.train(training)

        def one(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self._network, (parameters, buffers), (x,))

        return torch.vmap(one, randomness="different")(self.parameters, self.buffers, inputs)

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Take one step of each member; return which samples were right before it, bool `(members, batch)`."""
        for stack in self.parameters.values():
            stack.grad.zero_()  # type: ignore[union-attr]
        logits = self.forward(inputs)
        # the sum over the members of their mean losses: each gets the gradient of its own
        cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").div(labels.shape[1]).backward()
        self.optimizer.step()
        return logits.detach().argmax(-1) == labels

    @torch.no_grad()
    def state(self) -> dict[str, Any]:
        """Return a copy of all values and of the state of the optimizer, for `load`."""
        values = {name: value.clone() for name, value in {**self.parameters, **self.buffers}.items()}
        return {"values": values, "optimizer": copy.deepcopy(self.optimizer.state_dict())}

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Put all members back to a state."""
        for name, value in {**self.parameters, **self.buffers}.items():
            value.copy_(state["values"][name])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    @torch.no_grad()
    def features(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the head, `(members, batch, units)`."""
        self._network.train(False)

        def one(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
            own = {
                name.removeprefix("layers."): value
                for name, value in {**parameters, **buffers}.items()
                if name.startswith("layers.")
            }
            return functional_call(self._network.layers, own, (x,))

        return torch.vmap(one)(self.parameters, self.buffers, inputs)

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the accuracy of each member, float32 `(members,)`, on samples `(members, n, ...)`."""
        right = [
            (self.forward(x, training=False).argmax(-1) == y).float().sum(1)
            for x, y in zip(inputs.split(500, dim=1), labels.split(500, dim=1), strict=True)
        ]
        return torch.stack(right).sum(0) / labels.shape[1]


class Chunk:
    """One chunk of the data of all members, on which they train epoch by epoch.

    Args:
        sources: The data of each seed; all have chunks of one size.
        row: Index of each member's data among them, int64 `(members,)`.
        number: Of the chunk.

    Attributes:
        epochs: Its epochs, counted from the first chunk.
    """

    def __init__(self, sources: Sequence[ChunkedDataModule], row: Tensor, number: int):
        self._sources, self._row, protocol = sources, row, sources[0].protocol
        self._tests = _samples([source.datasets(number)[1][:] for source in sources], sources[0])
        first = protocol.first_epoch(number)
        self.epochs = range(first, first + protocol.epochs_per_chunk[number])
        self._drifts = isinstance(protocol, Stream) and protocol.drift > 0
        self._load(first)

    def _load(self, epoch: int) -> None:
        self._loaded = epoch
        self._trains = [source.train_samples(epoch) for source in self._sources]
        self._inputs, self._labels = _samples([train[:] for train in self._trains], self._sources[0])

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs `(members, batch, ...)` and labels `(members, batch)` of an epoch."""
        if self._drifts and epoch != self._loaded:
            self._load(epoch)
        orders = []
        for train, source in zip(self._trains, self._sources, strict=True):
            sampler = EpochSampler(train, seed=source.seed, num_replicas=1, rank=0)
            sampler.set_epoch(epoch)
            orders.append(sampler.order())
        for batch in torch.stack(orders).split(self._sources[0].batch_size, dim=1):
            x = torch.stack([self._inputs[i, own] for i, own in enumerate(batch)])[self._row]
            yield x, self._labels.gather(1, batch)[self._row]

    def train(self, ensemble: "Ensemble", epoch: int) -> Tensor:
        """Train each member for an epoch; return its online accuracy, `(members,)`."""
        right = torch.stack([ensemble.step(x, y).sum(1) for x, y in self.batches(epoch)]).sum(0)
        return right / self._labels.shape[1]

    def samples(self, which: slice) -> tuple[Tensor, Tensor]:
        """Return some samples of the epoch that was begun last, or of the first, in the order of their arrival."""
        return self._inputs[:, which][self._row], self._labels[:, which][self._row]

    def test(self, ensemble: "Ensemble") -> Tensor:
        """Return the accuracy of each member on its test samples, `(members,)`."""
        return ensemble.accuracy(self._tests[0][self._row], self._tests[1][self._row])


def chunks_of(members: Sequence[Member], data: Callable[[int], ChunkedDataModule]) -> Iterator[Chunk]:
    """Yield the chunks of the data of members, one after another.

    Args:
        members: The members.
        data: From a seed to the data; all have chunks of one size.
    """
    seeds = list(dict.fromkeys(member.seed for member in members))
    sources = [data(seed) for seed in seeds]
    row = torch.tensor([seeds.index(member.seed) for member in members])
    for number in range(len(sources[0].protocol.epochs_per_chunk)):
        yield Chunk(sources, row, number)


def train(members: Sequence[Member], data: Callable[[int], ChunkedDataModule]) -> None:
    """Train members through all chunks of their data, see `chunks_of`, and fill in what they record."""
    ensemble, steps = Ensemble(members), 0
    before: Chunk | None = None
    seen = accuracy = torch.empty(0)
    for number, chunk in enumerate(chunks_of(members, data)):
        online = torch.zeros(len(members))
        for epoch in chunk.epochs:
            right, count = torch.zeros(len(members)), 0
            for place, (x, y) in enumerate(chunk.batches(epoch)):
                first = place == 0
                clock = Clock(epoch, steps, first, number, first and epoch == chunk.epochs[0] > 0)
                for index in _due(ensemble, members, clock, seen, accuracy):
                    members[index].act(members[index], ensemble.optimizer)
                    members[index].events.append(epoch)
                if clock.new_data and before:
                    for member, kept in zip(members, before.test(ensemble), strict=True):
                        member.kept.append(float(kept))
                right += ensemble.step(x, y).sum(1)
                count, steps = count + y.shape[1], steps + 1
            accuracy, seen = right / count, chunk.samples(slice(200))[0]
            online += accuracy / len(chunk.epochs)
        before = chunk
        for member, own, test in zip(members, online, chunk.test(ensemble), strict=True):
            member.online.append(float(own))
            member.test.append(float(test))


def _due(ensemble: Ensemble, members: Sequence[Member], clock: Clock, seen: Tensor, accuracy: Tensor) -> list[int]:
    """Return the members whose schedule is due, after an update of the metrics that it watches."""
    if not clock.epoch or not clock.epoch_start or not any(watched_by(member.when) for member in members):
        return [index for index, member in enumerate(members) if member.when.due(clock)]
    found, signs = [], signs_of(ensemble, seen, accuracy)
    for index, (member, values) in enumerate(zip(members, signs, strict=True)):
        for key in watched_by(member.when):
            old, value = member.readings.get(key), values[key]
            low, high = (value, value) if old is None else (min(old.lowest, value), max(old.highest, value))
            member.readings[key] = Reading(value, low, high, len(member.events))
        if member.when.due(replace(clock, metrics=member.readings)):
            found.append(index)
            member.readings = {
                key: Reading(each.value, each.value, each.value, len(member.events) + 1)
                for key, each in member.readings.items()
            }
    return found


@torch.no_grad()
def signs_of(ensemble: Ensemble, inputs: Tensor, accuracy: Tensor) -> list[dict[str, float]]:
    """Return the signs of lost plasticity of each member.

    Args:
        inputs: Training samples `(members, n, ...)`.
        accuracy: Online accuracy of the last epoch, `(members,)`.

    Returns:
        `accuracy`; `dfi`, normalized, mean over the weights; `norm` of all parameters together; on the given samples,
        of the last hidden layer, `dormant`, the fraction of units with a mean activity below 0.1 of the layer's, and
        `effective_rank`, by entropy.
    """
    weights = [value for value in ensemble.parameters.values() if value.ndim == 3]
    dfi = torch.stack([dfi_normalized(each) for each in weights]).mean(0)
    norm = torch.stack([value.flatten(1).square().sum(1) for value in ensemble.parameters.values()]).sum(0).sqrt()
    features = ensemble.features(inputs)
    activity = features.abs().mean(1)
    dormant = (activity <= 0.1 * activity.mean(1, keepdim=True)).float().mean(1)
    rank = entropy_rank(features)
    columns = {"accuracy": accuracy, "dfi": dfi, "norm": norm, "dormant": dormant, "effective_rank": rank}
    return [{name: float(values[index]) for name, values in columns.items()} for index in range(len(dfi))]


def _samples(pairs: Sequence[tuple[Tensor, Tensor]], data: ChunkedDataModule) -> tuple[Tensor, Tensor]:
    inputs, labels = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
    return normalize(inputs, data.mean, data.std), labels


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors, and let each share memory with its row."""
    stack = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, own in zip(tensors, stack, strict=True):
        tensor.data = own
    return stack
