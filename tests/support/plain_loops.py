"""Every method in a plain PyTorch loop; run as a program, without lightning and torchvision: `plain_loops.py FILE`."""

# ruff: noqa: E402
import sys
from typing import Any

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
REPLACES = {"replacement_rate": 0.05, "maturity": 3, "seed": 5}
RESETS = {"rejection": 0.2, "refresh_every": 3, "max_silence": 40, "seed": 5}
METHODS: dict[str, methods.Method] = {
    "fire": methods.FIRE(Weights(preset="cnn")),
    "shrink_and_perturb": methods.ShrinkAndPerturb(),
    "shrink_and_perturb_fresh": methods.ShrinkAndPerturb(0.6, 0.1, fresh_seed=3),
    "full_reset": methods.FullReset(),
    "reset_of_the_head": methods.FullReset(where=Parameters(include=[r"\b5\."])),
    "optimizer_reset": methods.OptimizerReset(),
    "dash": methods.DASH(num_batches=4),
    "plasticity_injection": methods.PlasticityInjection("5", seed=7),
    "redo": methods.ReDo(threshold=0.5, num_batches=2, seed=5),
    "redo_pre_activation": methods.ReDo(threshold=0.5, num_batches=2, seed=5, score="pre_activation"),
    "redo_gradient": methods.ReDo(threshold=0.5, seed=5, score="gradient"),
    "continual_backprop": methods.ContinualBackprop(**REPLACES),
    "continual_backprop_pre_activation": methods.ContinualBackprop(**REPLACES, score="pre_activation"),
    "snr": methods.SelfNormalizedReset(**RESETS),
    "snr_pre_activation": methods.SelfNormalizedReset(**RESETS, score="pre_activation"),
    "selective_weight_reinit": methods.SelectiveWeightReinit(0.3, every=5, seed=5),
    "selective_weight_reinit_magnitude": methods.SelectiveWeightReinit(0.1, 4, "magnitude", "proportional", "mean"),
    "weight_projection": methods.WeightProjection(),
    "weight_clipping": methods.WeightClipping(),
    "soft_weight_rescaling": methods.SoftWeightRescaling(0.1),
    "parseval": methods.Parseval(1e-2, norms=True),
    "spectral": methods.SpectralRegularization(1e-2),
    "isometry_decay": methods.IsometryDecay(1.0),
    "l2_init": methods.L2Init(1e-1),
}
NAMES = [*METHODS, "hare_and_tortoise", "feature_rank"]


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
    """A plain training loop with a method; `parts` are what of the method has a state."""

    def __init__(self, name: str | None = None) -> None:
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.epoch = self.done = 0
        self.upcoming, self.num_batches = iter([0]), getattr(METHODS.get(name), "num_batches", 1)
        initial = methods.initial_values(self.model)
        self.training = methods.Loop(self.optimizer, self.look, self.losses, initial)
        self.when, self.parts = AtNewData(), list[Any]()
        self.at_event = self.before_step = self.after_step = lambda: None
        if name == "hare_and_tortoise":
            tortoise = methods.Tortoise(self.model, momentum=0.9)
            self.at_event, self.after_step, self.parts = tortoise.reset_, tortoise.after_step, [tortoise]
        elif name == "feature_rank":
            ascent = methods.RankAscent(self.model, self.look, lr=1e-2)
            self.after_step = lambda: self.done % 3 or ascent.step(self.last_three)
        elif isinstance(method := METHODS.get(name), methods.EventMethod):
            method.prepare(self.model)
            self.when, self.at_event = method.when, lambda: method(self.model, self.training)
        elif method is not None:
            attached = method.attach(self.model, self.training)
            self.before_step, self.after_step = lambda: attached.before_step(self.optimizer), attached.after_step
            self.parts = [attached]

    def run(self, until: int = EPOCHS) -> dict[str, Tensor]:
        """Train up to an epoch; return the weights."""
        while self.epoch < until:
            self.upcoming = iter([0, 0, 1, 2])  # the batch that shows the units, and those by which they are scored
            if self.when.due(Clock(self.epoch, 0, chunk=self.epoch // CHUNK, new_data=self.epoch % CHUNK == 0)):
                self.at_event()
            for done, (x, y) in enumerate(batches(self.epoch), 1):
                self.done = done
                cross_entropy(self.model(x), y).backward()
                self.before_step()
                self.optimizer.step()
                self.after_step()
                self.optimizer.zero_grad()
            self.epoch += 1
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def look(self) -> None:
        """Run the model on the next of the first batches of this epoch."""
        self.model(batches(self.epoch)[next(self.upcoming)][0])

    def last_three(self) -> None:
        """Run the model on the last three batches."""
        for x, _ in batches(self.epoch)[self.done - 3 : self.done]:
            self.model(x)

    def losses(self) -> Any:
        """Yield the losses of the batches that the method uses."""
        return (cross_entropy(self.model(x), y) for x, y in batches(self.epoch)[: self.num_batches])

    def states(self) -> list[Any]:
        """Everything that a checkpoint needs."""
        return [*(part.state_dict() for part in (self.model, self.optimizer, *self.parts)), self.training.event]

    def load(self, states: list[Any]) -> None:
        """Continue from such a checkpoint."""
        *states, self.training.event = states
        for part, state in zip((self.model, self.optimizer, *self.parts), states, strict=True):
            part.load_state_dict(state)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.save({name: Loop(name).run() for name in NAMES}, sys.argv[1])
    assert not any(sys.modules[name] for name in BLOCKED)
