"""Cost of a regulariser or a unit resetter per training step: ratios to plain training, alternating in one run.

    python benchmarks/step_cost.py [--batch 256] [--steps 5] [--rounds 2] [--net resnet-18] [--json FILE]

ResNet-18 (the paper's, for CIFAR-10) on random images. Prints the median time of a step for each method, and its ratio
to plain training.
"""

import statistics
from functools import partial
from itertools import pairwise

import torch
from lightning.pytorch import Callback
from machine import parser_of, publish
from networks import NETS
from paired import in_turn, ratio
from quiet_trainer import quiet_trainer
from stopwatch import Stopwatch
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import ContinualBackprop, L2Init, Parseval, PlasticityCallback, ReDo, SelfNormalizedReset
from lightning_fire.callbacks.probing.batches import BatchInHand
from lightning_fire.callbacks.probing.one_step import measured_one_step
from lightning_fire.modules import Classifier
from lightning_fire.when import EveryNSteps


class OneStep(Callback):
    """Measures readiness and critical sharpness before each step, as `PlasticityMonitor` does now and then."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        measured_one_step(BatchInHand(trainer, pl_module, batch), "plasticity")


METHODS = {
    "plain": list,
    "l2_init": lambda: [PlasticityCallback(L2Init(5e-4))],
    "parseval": lambda: [PlasticityCallback(Parseval(1e-3))],
    "continual_backprop": lambda: [PlasticityCallback(ContinualBackprop(1e-4, maturity=1))],
    "snr": lambda: [PlasticityCallback(SelfNormalizedReset(refresh_every=2))],
    "readiness and critical sharpness": lambda: [OneStep()],
    "redo, idle": lambda: [PlasticityCallback(ReDo(), EveryNSteps(1000))],
}


def step_times(methods: list[Callback], net: str, batch: int, steps: int) -> list[float]:
    """Train for a few steps; return the seconds from the end of each to that of the next, callbacks included."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(batch * (steps + 1), 3, 32, 32), torch.randint(0, 10, (batch * (steps + 1),)))
    watch = Stopwatch("on_train_batch_end")
    trainer = quiet_trainer(*methods, watch, max_epochs=1, gradient_clip_val=0.5)
    module = Classifier(NETS[net](num_classes=10), num_classes=10, channels_last=True)
    trainer.fit(module, DataLoader(data, batch_size=batch))
    return [end - start for start, end in pairwise(watch.times["on_train_batch_end"])]


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--batch", type=int, default=256, help="images in a batch")
    parser.add_argument("--steps", type=int, default=5, help="steps timed in each round")
    parser.add_argument("--rounds", type=int, default=2, help="rounds, all methods in each")
    parser.add_argument("--net", choices=("resnet-18", "small"), default="resnet-18")
    options = parser.parse_args()

    def times(build) -> list[float]:
        return step_times(build(), options.net, options.batch, options.steps)

    found = in_turn({name: partial(times, build) for name, build in METHODS.items()}, options.rounds)
    pooled = {name: [step for steps in rounds for step in steps] for name, rounds in found.items()}
    ratios = {name: round(ratio(steps, pooled["plain"])[0], 3) for name, steps in pooled.items()}
    for name, steps in pooled.items():
        print(f"{name:32s} {statistics.median(steps):8.3f} s a step   × {ratios[name]:.2f}")
    publish({"ratios": ratios, "batch": options.batch}, options.json)


if __name__ == "__main__":
    main()
