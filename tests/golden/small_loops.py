"""Plain loops of six steps on small networks, with an event in the middle, a method at each step, or both."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_fire import methods
from lightning_fire.nets import GPT
from lightning_fire.optim import UPGD

from .constructors import BESIDE, EVENTS
from .digests import Digests, Records, digest, of_model, of_records

Model = nn.Module | list[nn.Module]


def mlp(inputs: int = 6) -> nn.Sequential:
    """Three layers; some units are dead."""
    net = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        net[0].bias[:3], net[2].bias[:2] = -50.0, -50.0
    return net


def actor_and_critic() -> list[nn.Module]:
    return [mlp(), nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))]


class Recurrent(nn.Module):
    """An LSTM, a GRU, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.GRU(8, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.lstm(x)[0])[0])


class Attention(nn.Module):
    """A layer of a transformer, whose query, key and value are one weight, and attention in which they are three."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
        self.cross = nn.MultiheadAttention(6, 3, kdim=4, vdim=5, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cross(self.encoder(x), x[..., :4], x[..., 1:])[0])


class WithUnusedHead(nn.Module):
    """One of its heads has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.unused = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(torch.relu(self.body(x)))


def grouped() -> nn.Sequential:
    """Convolutions in groups, a depthwise and a transposed one."""
    convolutions = [nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.ConvTranspose2d(8, 4, 2, groups=2), nn.Flatten(), nn.Linear(36, 3))


def flattened() -> nn.Sequential:
    """Units of a convolution, which are flattened before their nonlinearity."""
    net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.ReLU(), nn.Linear(96, 3))
    with torch.no_grad():
        net[0].bias[:2] = -50.0
    return net


def wide() -> nn.Sequential:
    """A layer that is large enough for the algorithms for large matrices on a CPU."""
    return nn.Sequential(nn.Linear(200, 400), nn.ReLU(), nn.Linear(400, 3))


def gpt() -> nn.Module:
    return GPT(vocab_size=16, block_size=8, depth=1, heads=2, dim=16, bias=True)


class Logits(nn.Module):
    """A language model of transformers that returns its logits."""

    def __init__(self, kind: str, **options: Any):
        import transformers

        super().__init__()
        config = getattr(transformers, f"{kind}Config")(**{"vocab_size": 16, "hidden_size": 16, **options})
        self.model = getattr(transformers, f"{kind}ForCausalLM")(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens).logits


SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
NETWORKS: dict[str, tuple[Callable[[], Model], tuple[int, ...]]] = {  # and the shape of a batch; tokens if empty
    "mlp": (mlp, (8, 6)),
    "actor_and_critic": (actor_and_critic, (8, 6)),
    "recurrent": (Recurrent, (4, 5, 6)),
    "attention": (Attention, (4, 5, 6)),
    "unused_head": (WithUnusedHead, (8, 6)),
    "grouped": (grouped, (4, 4, 6, 6)),
    "flattened": (flattened, (4, 4, 6, 6)),
    "wide": (wide, (8, 200)),
    "gpt": (gpt, ()),
    "gpt_neox": (partial(Logits, "GPTNeoX", **SMALL), ()),  # its query, key and value are fused by head
    "bloom": (partial(Logits, "Bloom", n_layer=1, n_head=2), ()),
    "phi3": (partial(Logits, "Phi3", pad_token_id=0, **SMALL), ()),  # gate and up are fused
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, lr=1e-2),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, amsgrad=True),
    "nadam": partial(torch.optim.NAdam, lr=1e-2),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2, initial_accumulator_value=0.1),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.1, max_iter=3, history_size=4),
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "sgd_fused": partial(torch.optim.SGD, lr=0.02, momentum=0.9, nesterov=True, fused=True),
    "upgd": partial(UPGD, lr=0.02, noise=0.01, utility_decay=0.9),
}


def moved(average: Mapping[str, Tensor], model: nn.Module) -> None:
    for name, value in model.state_dict().items():
        average[name].lerp_(value, 0.1)


AVERAGES: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, nn.Module], None]]] = {  # make and update
    "averaged_model": (
        lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
        lambda average, model: average.update_parameters(model),
    ),
    "copy": (copy.deepcopy, lambda average, model: moved(average.state_dict(), model)),
    "tensors": (lambda model: {name: value.clone() for name, value in model.state_dict().items()}, moved),
}


@dataclass(frozen=True)
class Small:
    """A small loop: the network, the event after three of six steps, the method at each step, and so on."""

    network: str = "mlp"
    event: str = ""
    beside: str = ""
    optimizer: str = "adam"
    average: str = ""

    @property
    def name(self) -> str:
        default = astuple(Small())
        return "small/" + "_".join(v for i, v in enumerate(astuple(self)) if v and (i < 2 or v != default[i]))

    def digests(self) -> Digests:
        return SmallLoop(self).run()


class SmallLoop:
    """The training of a `Small`.

    Attributes:
        model: The model, or a list of models.
        training: The `Loop` that its methods get.
        initial: Initial values.
    """

    def __init__(self, small: Small):
        torch.manual_seed(1)
        make, self._shape = NETWORKS[small.network]
        self.model: Any = make()
        self.parts = nn.ModuleList(self.model) if isinstance(self.model, list) else self.model
        self.optimizer = OPTIMIZERS[small.optimizer](self.parts.parameters())
        make_average, self._update = AVERAGES.get(small.average, (lambda _: (), lambda *_: None))
        self.average, self.initial, self.batch = make_average(self.parts), methods.initial_values(self.model), 0
        self.training = methods.Loop(
            self.optimizer, self.loss, lambda: self.losses(2), self.initial, [self.average] if small.average else ()
        )
        self._act = EVENTS[small.event] if small.event else None
        self.attached = BESIDE[small.beside].attach(self.model, self.training) if small.beside else None
        self.records: Records = []

    def loss(self, batch: int | None = None) -> Tensor:
        """Return the mean of the squared distances of all outputs from fixed values on a batch."""
        generator = torch.Generator().manual_seed(self.batch if batch is None else batch)
        if self._shape:
            x = torch.randn(self._shape, generator=generator)
        else:
            x = torch.randint(1, 16, (2, 8), generator=generator)
        outputs = [model(x) for model in (self.model if isinstance(self.model, list) else [self.model])]
        return sum((y - torch.linspace(-1, 1, y.numel()).view_as(y)).square().mean() for y in outputs)

    def losses(self, number: int) -> Iterator[Tensor]:
        return (self.loss(self.batch + index) for index in range(number))

    def _step(self) -> None:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(closure)
        else:
            closure()
            if self.attached is not None:
                self.attached.before_step(self.optimizer)
            self.optimizer.step()
        if self.attached is not None:
            self.attached.after_step()
        self._update(self.average, self.parts)
        self.batch += 1

    def _event(self) -> None:
        before = copy.deepcopy(self.parts.state_dict())
        report = self._act(self)
        assert any(not torch.equal(before[key], value) for key, value in self.parts.state_dict().items())
        self._log(report.keyed("event"))

    def _log(self, values: Mapping[str, float]) -> None:
        self.records += [(key, self.batch, value) for key, value in values.items()]

    def run(self) -> Digests:
        for step in range(6):
            if step == 3 and self._act is not None:
                self._event()
            self._step()
        if self.attached is not None:
            self._log(self.attached.metrics())
        found = {**of_model(self.parts, [self.optimizer]), "random state": digest(torch.get_rng_state())}
        if isinstance(self.average, nn.Module):
            found["average"] = digest(self.average.state_dict())
        elif self.average:
            found["average"] = digest(self.average)
        return {**found, **of_records(self.records)}


SMALL_LOOPS = [
    *(Small("actor_and_critic", event) for event in ("fire", "redo", "shrink_and_perturb", "dash")),
    *(
        Small(event="fire", optimizer=optimizer)
        for optimizer in ("adamw", "nadam", "rmsprop", "adagrad", "lbfgs", "sgd_fused", "upgd")
    ),
    *(Small(event="redo", optimizer=optimizer) for optimizer in ("adamw", "rmsprop", "sgd_fused")),
    Small(event="full_reset_all", optimizer="adagrad"),
    *(Small(event="fire", average=average) for average in AVERAGES),
    Small(event="redo", average="averaged_model"),
    Small(event="shrink_and_perturb", average="copy"),
    Small(beside="continual_backprop", average="tensors"),
    Small("recurrent", "fire"),
    Small("recurrent", "shrink_and_perturb", "l2_init"),
    Small("attention", "fire"),
    Small("attention", "dash", "parseval"),
    Small("grouped", "fire_exact"),
    Small("grouped", "shrink_and_perturb"),
    Small("grouped", "", "spectral"),
    Small("flattened", "redo"),
    Small("flattened", "redo_gradient"),
    Small("flattened", "", "continual_backprop"),
    Small("wide", "fire"),
    Small("wide", "fire_7_steps"),
    Small("wide", "fire_exact"),
    Small("unused_head", "", "l2_init", "sgd"),
    Small("unused_head", "fire", "isometry_decay"),
    Small(event="redo", beside="weight_projection"),
    Small(event="redo", beside="snr"),
    Small(event="shrink_and_perturb", beside="snr"),
    Small(event="shrink_and_perturb", beside="soft_weight_rescaling"),
    Small("gpt", "rejuvenate_attribution"),
    Small("gpt", "rejuvenate_drift"),
    Small("gpt_neox", "fire"),
    Small("bloom", "fire"),
    Small("phi3", "fire"),
]
