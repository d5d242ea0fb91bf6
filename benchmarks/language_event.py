"""Cost of FIRE's event in continual pretraining: seconds, and as a fraction of the paper's second phase.

    python benchmarks/language_event.py [--net gpt-2] [--batch 1] [--block 128] [--events 3] [--json FILE]

A GPT-2 of 124M parameters goes through phases of one optimizer step, with FIRE between them as in the recipe: preset
`gpt`, 5 steps. Prints the median seconds of an event, the tokens a second of a median step in the same run, and from
both the fraction of an event in a phase of 20,000 steps of 480 × 1024 tokens on this device.
"""

import statistics
import time

import torch
from machine import parser_of, publish, wait_for_device
from quiet_trainer import quiet_trainer
from random_text import LANGUAGE_MODELS, RandomText

from lightning_fire import FIRECallback, Log, Weights
from lightning_fire.modules import LanguageModel

STEPS, TOKENS = 20_000, 480 * 1024  # of phase 2, and of a step of it


class Timed(FIRECallback):
    """Keeps the seconds of its events."""

    def act(self, trainer, pl_module, clock):
        values = super().act(trainer, pl_module, clock)
        self.seconds = [*getattr(self, "seconds", []), values["fire/seconds"]]
        return values


class TimedModel(LanguageModel):
    """Keeps the seconds of its steps."""

    def on_train_batch_start(self, *args):
        super().on_train_batch_start(*args)
        wait_for_device()
        self._step_began = time.perf_counter()

    def on_train_batch_end(self, *args):
        super().on_train_batch_end(*args)
        wait_for_device()
        self.seconds = [*getattr(self, "seconds", []), time.perf_counter() - self._step_began]


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--net", choices=LANGUAGE_MODELS, default="gpt-2")
    parser.add_argument("--batch", type=int, default=1, help="blocks in a batch")
    parser.add_argument("--block", type=int, default=128, help="tokens in a block")
    parser.add_argument("--events", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = TimedModel(LANGUAGE_MODELS[options.net](), warmup=0)
    fire = Timed(where=Weights(preset="gpt"), steps=5, log=Log(curvature=False))
    data = RandomText([1] * (1 + options.events), 1, options.batch, options.block)
    trainer = quiet_trainer(
        fire, max_epochs=data.total_epochs, reload_dataloaders_every_n_epochs=1, limit_val_batches=0
    )
    trainer.fit(model, datamodule=data)
    event, step = statistics.median(fire.seconds), statistics.median(model.seconds[1:])
    speed = options.batch * options.block / step
    share = event * speed / (STEPS * TOKENS)
    parameters = sum(parameter.numel() for parameter in model.net.parameters())
    print(f"parameters  {parameters / 1e6:10.1f} million")
    print(f"event       {event:10.4f} s")
    print(f"training    {speed:10.1f} tokens a second; an event takes as long as {event * speed:.0f} tokens")
    print(f"share       {share:10.2e} of {STEPS} steps of {TOKENS} tokens")
    publish({"event": event, "tokens_a_second": speed, "share": share, "parameters": parameters}, options.json)


if __name__ == "__main__":
    main()
