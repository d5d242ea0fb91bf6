"""Every method in a plain PyTorch loop; run as a program, without lightning and torchvision: `plain_loops.py FILE`."""

# ruff: noqa: E402
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle

BLOCKED = ("lightning", "pytorch_lightning", "lightning_utilities", "torchvision", "torchmetrics")
if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(BLOCKED))

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_fire import methods
from lightning_fire.when import AtNewData, Clock
from lightning_fire.where import Parameters, Weights

EPOCHS, CHUNK = 6, 2  # new data every second epoch
Step = Callable[[], object]


def network() -> nn.Sequential:
    """A network without BatchNorm: a plain look at new data would change its statistics."""
    torch.manual_seed(0)
    layers = (nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return nn.Sequential(*layers)


def batches(epoch: int) -> list[tuple[Tensor, Tensor]]:
    """Six batches of 6 samples of the chunk to which an epoch belongs."""
    generator = torch.Generator().manual_seed(epoch // CHUNK)
    x, y = torch.randn(36, 6, generator=generator), torch.randint(0, 3, (36,), generator=generator)
    return list(zip(x.split(6), y.split(6), strict=True))


class Loop:
    """A plain training loop: `at_new_data`, `before_step` and `after_step` are what a method adds to it."""

    def __init__(self) -> None:
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.initial = methods.initial_values(self.model)
        self.event = self.epoch = 0
        nothing: Step = lambda: None  # noqa: E731
        self.at_new_data = self.before_step = self.after_step = self.at_each_epoch = nothing

    def run(self, until: int = EPOCHS) -> dict[str, Tensor]:
        """Train up to an epoch; return the weights."""
        while self.epoch < until:
            first = self.epoch % CHUNK == 0
            if AtNewData().due(Clock(self.epoch, 0, chunk=self.epoch // CHUNK, new_data=first)):
                self.event += 1
                self.at_new_data()
            if self.epoch:
                self.at_each_epoch()
            for x, y in batches(self.epoch):
                cross_entropy(self.model(x), y).backward()
                self.before_step()
                self.optimizer.step()
                self.after_step()
                self.optimizer.zero_grad()
            self.epoch += 1
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def look(self, number: int = 1) -> None:
        """Run the model on the first batches of this epoch."""
        for x, _ in batches(self.epoch)[:number]:
            self.model(x)

    def losses(self, number: int) -> Iterator[Tensor]:
        """Yield the losses of the first batches of this epoch."""
        return (cross_entropy(self.model(x), y) for x, y in batches(self.epoch)[:number])


def fire(loop: Loop) -> None:
    loop.at_new_data = lambda: methods.fire_(loop.model, Weights(preset="cnn"), optimizers=loop.optimizer)


def shrink_and_perturb(loop: Loop) -> None:
    loop.at_new_data = lambda: methods.shrink_and_perturb_(loop.model, loop.initial, optimizers=loop.optimizer)


def shrink_and_perturb_fresh(loop: Loop) -> None:
    def act() -> None:
        fresh = methods.fresh_values(loop.model, seed=3 + loop.event)
        methods.shrink_and_perturb_(loop.model, fresh, 0.6, 0.1, optimizers=loop.optimizer)

    loop.at_new_data = act


def full_reset(loop: Loop) -> None:
    loop.at_new_data = lambda: methods.full_reset_(loop.model, loop.initial, optimizers=loop.optimizer)


def reset_of_the_head(loop: Loop) -> None:
    head = Parameters(include=["^5"])
    loop.at_new_data = lambda: methods.full_reset_(loop.model, loop.initial, head, optimizers=[loop.optimizer])


def optimizer_reset(loop: Loop) -> None:
    loop.at_new_data = lambda: methods.reset_optimizer_state(loop.optimizer)


def dash(loop: Loop) -> None:
    loop.at_new_data = lambda: methods.dash_(loop.model, loop.losses(4), optimizers=loop.optimizer)


def plasticity_injection(loop: Loop) -> None:
    method = methods.PlasticityInjection("5", seed=7)
    method.prepare(loop.model)
    training = methods.Loop(loop.optimizer)
    loop.at_new_data = lambda: method(loop.model, training)


def redo(loop: Loop, **options: object) -> None:
    def look() -> None:
        loop.model(batches(loop.epoch)[next(numbers)][0])

    # the batch that shows the units, and the two by which they are scored
    numbers = cycle((0,) if options.get("score") == "gradient" else (0, 0, 1))
    training = methods.Loop(loop.optimizer, look, lambda: loop.losses(1))
    method = methods.ReDo(threshold=0.5, num_batches=2, seed=5, **options)
    loop.at_each_epoch = lambda: method(loop.model, training)


def each_step(loop: Loop, method: methods.StepMethod) -> None:
    training = methods.Loop(loop.optimizer, loop.look, initial=loop.initial)
    attached = method.attach(loop.model, training)
    loop.before_step, loop.after_step = lambda: attached.before_step(loop.optimizer), attached.after_step


def hare_and_tortoise(loop: Loop) -> None:
    method = methods.Tortoise(loop.model, momentum=0.9)
    loop.after_step, loop.at_new_data = method.step, method.reset_


def feature_rank(loop: Loop) -> None:
    method, steps = methods.RankAscent(loop.model, loop.look, lr=1e-2), count(1)

    def act() -> None:
        last = (next(steps) - 1) % 6 + 1  # of the 6 batches of an epoch
        if last % 3 == 0:
            method.step(lambda: [loop.model(x) for x, _ in batches(loop.epoch)[last - 3 : last]])

    loop.after_step = act


REPLACES = {"replacement_rate": 0.05, "maturity": 3, "seed": 5}
RESETS = {"rejection": 0.2, "refresh_every": 3, "max_silence": 40, "seed": 5}
METHODS: dict[str, Callable[[Loop], None]] = {
    **{
        method.__name__: method
        for method in (
            fire,
            shrink_and_perturb,
            shrink_and_perturb_fresh,
            full_reset,
            reset_of_the_head,
            optimizer_reset,
            dash,
            plasticity_injection,
            redo,
            hare_and_tortoise,
            feature_rank,
        )
    },
    "redo_pre_activation": partial(redo, score="pre_activation"),
    "redo_gradient": partial(redo, score="gradient"),
    **{
        name: partial(each_step, method=method)
        for name, method in {
            "continual_backprop": methods.ContinualBackprop(**REPLACES),
            "continual_backprop_pre_activation": methods.ContinualBackprop(**REPLACES, score="pre_activation"),
            "snr": methods.SelfNormalizedReset(**RESETS),
            "snr_pre_activation": methods.SelfNormalizedReset(**RESETS, score="pre_activation"),
            "weight_projection": methods.WeightProjection(),
            "parseval": methods.Parseval(1e-2, norms=True),
            "spectral": methods.SpectralRegularization(1e-2),
            "isometry_decay": methods.IsometryDecay(1.0),
            "l2_init": methods.L2Init(1e-1),
        }.items()
    },
}


def trained(name: str) -> dict[str, Tensor]:
    """Return the weights of a network trained with a method."""
    loop = Loop()
    METHODS[name](loop)
    return loop.run()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.save({name: trained(name) for name in METHODS}, sys.argv[1])
    assert not any(sys.modules[name] for name in BLOCKED)
