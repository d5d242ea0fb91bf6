"""A golden table of messages: the error, the warnings and the log lines of wrong calls and of odd trainings.

    python -m tests.golden.messages             print what differs from `messages.json`, and store it
    python -m tests.golden.messages --check     only print it; the exit status is 1 where something differs
    python -m tests.golden.messages --check SB3 the same of the cases whose names contain one of these words

Measured values in the lines of events are shown as #, objects without their addresses.
"""

import argparse
import gc
import importlib.util
import json
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import callbacks
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import lightning_fire as lf
from lightning_fire import methods
from lightning_fire.optim import UPGD
from lightning_fire.when import AnyOf, AtEpochs, AtFraction, AtNewData, EveryNEpochs, EveryNSteps, WhenMetric
from lightning_fire.where import HiddenMatrices, HiddenUnits, Parameters, Weights
from tests.support.small_training import GrowingData, PlainData, PlainModule, fitted, trainer

STORED = Path(__file__).with_name("messages.json")
LIBRARIES = {"HF": "transformers", "SB3": "stable_baselines3"}
Call = Callable[[], object]
CASES: dict[str, Call] = {}


def said_by(call: Call) -> list[str]:
    """Return the error, the warnings and the log lines of a call, each kind in its order."""
    lines: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            values = re.compile(r"\((dfi|dormant)[^;)]*")
            text = values.sub(lambda each: re.sub(r"(?<= )[0-9.]+(e-?[0-9]+)?", "#", each[0]), record.getMessage())
            lines.append(f"{record.levelname}: {text}")

    logger, handler, error = logging.getLogger("lightning_fire"), Keeps(), []
    before, torch_state = logger.handlers[:], torch.get_rng_state()
    logger.handlers[:] = [handler]
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.resetwarnings()
            warnings.simplefilter("always")
            try:
                call()
            except Exception as raised:
                error = [f"{type(raised).__name__}: {raised}"]
    finally:
        logger.handlers[:] = before
        torch.set_rng_state(torch_state)
    ours = [each for each in caught if "site-packages" not in each.filename and "DataLoader" not in str(each.message)]
    found = [*error, *(f"{each.category.__name__}: {each.message}" for each in ours), *lines]
    return [re.sub(r"<[\w.]*\.(\w+) object at 0x\w+>", r"<\1 object>", line) for line in found]


# --- arguments -------------------------------------------------------------------------------------------------------


class Nameless:
    """A schedule that does not show its settings."""

    def due(self, clock: object) -> bool:
        return True


OUT_OF_RANGE: dict[Callable[..., Any], list[dict[str, Any]]] = {
    methods.FIRE: [
        {"steps": 0},
        {"steps": "ten"},
        {"coefficients": "septic"},
        {"scale": "kaiming"},
        {"optimizer_state": "some"},
    ],
    methods.DASH: [{"alpha": 0}, {"minimum": 2}, {"num_batches": 0}],
    methods.FullReset: [{"target": "fire"}],
    methods.ShrinkAndPerturb: [{"strength": 2}, {"perturb": -1}],
    methods.ReDo: [{"threshold": -1}, {"num_batches": 0}, {"score": "x"}],
    methods.ContinualBackprop: [{"replacement_rate": 2}, {"maturity": -1}, {"decay": 1.0}, {"score": "gradient"}],
    methods.SelfNormalizedReset: [{"rejection": 0}, {"refresh_every": 0}, {"max_silence": 1}, {"expansion": 0.5}],
    methods.SelectiveWeightReinit: [
        {"factor": -1},
        {"factor": 2, "pruning": "proportional"},
        {"every": 0},
        {"utility": "x"},
        {"optimizer_state": "all"},
    ],
    methods.L2Init: [{"strength": -1}],
    methods.Parseval: [{"strength": 0.1, "scale": 0}],
    methods.WeightClipping: [{"bound": 0}],
    methods.SoftWeightRescaling: [{"strength": 2}, {"classifier": -1}],
    partial(methods.Tortoise, nn.Linear(1, 1)): [{"momentum": 1.0}],
    lf.FeatureRank: [{"lr": -1}, {"lr": 0.1, "every_n_batches": 0}],
    lf.HareAndTortoise: [{"momentum": -0.1}],
    lf.PlasticityMonitor: [{"every_n_epochs": 0.5}, {"dormancy_threshold": None}],
    partial(lf.PlasticityCallback, methods.ReDo()): [{"start_chunk": -1}, {"start_chunk": "1"}, {"when": "sometimes"}],
    partial(lf.PlasticityCallback, methods.L2Init(0.1)): [{"when": EveryNSteps(2)}],
    lf.FIRECallback: [{"when": AtNewData}, {"when": []}, {"when": Nameless()}, {"log": True}],
    lf.Log: [{"name": True}, {"name": "a/b"}, {"validation_batches": 1.5}],
    EveryNSteps: [{"n": 0}, {"n": 2.5}],
    EveryNEpochs: [{"n": -1}],
    AtEpochs: [{"epochs": []}, {"epochs": [-1]}, {"epochs": 3}],
    AtFraction: [{"fraction": "half"}, {"fraction": 1}],
    WhenMetric: [{"metric": "loss"}, {"metric": "loss", "above": float("nan")}],
    partial(WhenMetric, "loss"): [{"above": 1.0, "rearm": 2.0}, {"above": 1.0, "below": 0.0}],
    AnyOf: [{"schedules": [5]}],
    Weights: [
        {"preset": "resnet"},
        {"include": "head"},
        {"exclude": ["("]},
        {"split": 3},
        {"split": {"qkv": {"q": 0}}},
        {"layers": {"W": "out"}},
    ],
    partial(UPGD, nn.Linear(1, 1).parameters()): [{"lr": -1}, {"utility_decay": 1.0}],
    partial(lf.Muon, nn.Linear(1, 1).parameters()): [{"momentum": 1.0}, {"scale": "x"}],
}


def title_of(make: Any) -> str:
    return title_of(make.func) if isinstance(make, partial) else make.__name__


def short(value: object) -> str:
    return type(value).__name__ if isinstance(value, Nameless) else getattr(value, "__name__", str(value))


for make, wrong in OUT_OF_RANGE.items():
    for options in wrong:
        given = ", ".join(f"{name}={short(value)}" for name, value in options.items())
        CASES[f"{title_of(make)}({given})"] = partial(make, **options)

CASES |= {
    "a class as a method": lambda: lf.PlasticityCallback(methods.FIRE),
    "a callback as a method": lambda: lf.PlasticityCallback(lf.FIRECallback()),
    "a schedule in a method": lambda: methods.FIRE(AtNewData()),
    "a model in a method": lambda: methods.FIRE(nn.Linear(1, 1)),
    "a selection of another kind in a method": lambda: methods.FIRE(where=Parameters()),
    "a text as a selection": lambda: methods.FIRE(where="cnn"),
    "units of another kind in a monitor": lambda: lf.PlasticityMonitor(units=Weights()),
    "announce_new_data without a Trainer": lambda: lf.announce_new_data(nn.Linear(1, 1)),
}

# --- plain calls -----------------------------------------------------------------------------------------------------

X = torch.ones(3, 2)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))


def changed(model: nn.Module, change: Callable[[nn.Module], object]) -> nn.Module:
    with torch.no_grad():
        change(model)
    return model


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


class Pair(nn.Module):
    """A student, and a teacher that is run without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = network(), network()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.teacher(x)
        return (self.student(x) - target).square().mean()


def of_pair(act: Callable[[Pair, torch.optim.Optimizer], object]) -> Call:
    """Act on a pair with an optimizer of the student."""

    def call() -> None:
        pair = Pair()
        act(pair, adam(pair.student))

    return call


class Broken(methods.EventMethod):
    """Its plan is what a function returns."""

    name = "broken"

    def __init__(self, returned: Callable[[nn.Module], Any]):
        self.returned = returned

    def plan(self, model: nn.Module, training: methods.Loop) -> Any:
        return self.returned(model)


class Own(nn.Module):
    """A weight in a module of one's own, which has no `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(4, 2)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(x @ self.weight.T))


nan = partial(changed, change=lambda model: model[0].weight.fill_(float("nan")))
zero = partial(changed, change=lambda model: model[0].weight.zero_())
initial = methods.initial_values
SHAPES = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
WRONG_OPTIMIZERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "a scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    "a state": lambda optimizer: optimizer.state_dict(),
    "None": lambda optimizer: None,
    "a text": lambda optimizer: "adam",
    "parameters": lambda optimizer: optimizer.param_groups[0]["params"],
    "an object in a list": lambda optimizer: [optimizer, object()],
}
for what, of in WRONG_OPTIMIZERS.items():
    CASES[f"fire_ with {what} as optimizers"] = lambda of=of: methods.fire_(network(), optimizers=of(adam(network())))
for what, target in {
    "a model": network(),
    "numbers": {"0.weight": 1.0},
    "None": None,
    "nothing": {},
    "other shapes": initial(SHAPES),
    "a shape to broadcast": {name: value.flatten()[:1] for name, value in initial(network()).items()},
}.items():
    CASES[f"full_reset_ to {what}"] = lambda target=target: methods.full_reset_(network(), target)

CASES |= {
    "fire_ of a state": lambda: methods.fire_(network().state_dict()),
    "fire_ with an optimizer by position": lambda: methods.fire_(network(), adam(network())),
    "fire_ of NaN": lambda: methods.fire_(nan(network())),
    "fire_ of zeros": lambda: methods.fire_(zero(network())),
    "fire_ on the meta device": lambda: methods.fire_(network().to("meta")),
    "fire_ of a computed weight": lambda: methods.fire_(
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    ),
    "fire_ of a model without weights": lambda: methods.fire_(nn.LayerNorm(3)),
    "fire_ of frozen weights": lambda: methods.fire_(network().requires_grad_(False)),
    "fire_ of a lazy layer": lambda: methods.fire_(nn.Sequential(nn.LazyLinear(3))),
    "fire_ where nothing is": lambda: methods.fire_(network(), Weights(include=["nope"])),
    "fire_ without what is there": lambda: methods.fire_(network(), Weights(exclude=["."])),
    "fire_ with a split of other rows": lambda: methods.fire_(network(), Weights(split={"0.weight": {"q": 3}})),
    "fire_ with a layout of another shape": lambda: methods.fire_(network(), Weights(layers={"1.weight": "out_in"})),
    "fire_ with the optimizer of another model": lambda: methods.fire_(network(), optimizers=adam(network())),
    "fire_ with an average of another kind": lambda: methods.fire_(network(), averages=3),
    "fire_ with an average of other shapes": lambda: methods.fire_(network(), averages=AveragedModel(SHAPES)),
    "fire_ of a student": of_pair(lambda pair, optimizer: methods.fire_(pair, optimizers=optimizer)),
    "fire_ of a teacher": of_pair(
        lambda pair, optimizer: methods.fire_(pair, Weights("cnn", include=["teacher"]), optimizers=optimizer)
    ),
    "full_reset_ of a student": of_pair(
        lambda pair, optimizer: methods.full_reset_(pair, methods.fresh_values(pair, 1), optimizers=optimizer)
    ),
    "full_reset_ of a teacher": of_pair(
        lambda pair, optimizer: methods.full_reset_(
            pair, initial(pair), Parameters(include=["teacher"]), optimizers=optimizer
        )
    ),
    "PlasticityInjection of a teacher": of_pair(
        lambda pair, optimizer: methods.PlasticityInjection("teacher")(pair, methods.Loop(optimizer))
    ),
    "PlasticityInjection without the head": lambda: methods.PlasticityInjection("head")(network()),
    "wrap_heads of a text": lambda: methods.wrap_heads(network(), "3"),
    "dash_ of one loss": lambda: methods.dash_(network(), network()(X).sum()),
    "dash_ of numbers": lambda: methods.dash_(network(), [1.0]),
    "dash_ of NaN": lambda: methods.dash_(model := network(), [model(X).sum() * float("nan")]),
    "DASH without losses": lambda: methods.DASH()(network()),
    "ReDo without a forward pass": lambda: methods.ReDo()(network()),
    "ReDo without hidden units": lambda: methods.ReDo()(model := nn.Linear(2, 2), methods.Loop((), lambda: model(X))),
    "ReDo of a layer of one's own": lambda: methods.ReDo()(model := Own(), methods.Loop((), lambda: model(X))),
    "ShrinkAndPerturb without initial values": lambda: methods.ShrinkAndPerturb()(network()),
    "FullReset with a fresh seed of a layer of one's own": lambda: methods.FullReset(fresh_seed=0)(Own()),
    "fresh_values of a layer of one's own": lambda: methods.fresh_values(Own(), 0),
    "OptimizerReset without an optimizer": lambda: methods.OptimizerReset()(network()),
    "FIRE with an optimizer as training": lambda: methods.FIRE()(model := network(), adam(model)),
    "a plan without a change": lambda: Broken(lambda model: None)(network()),
    "a change by names": lambda: Broken(lambda model: methods.Change(dict(model.named_parameters())))(network()),
    "a change of another shape": lambda: Broken(lambda model: methods.Change({model[0].weight: X}))(network()),
    "L2Init without initial values": lambda: methods.L2Init(0.1).attach(network()),
    "L2Init of no model": lambda: methods.L2Init(0.1).attach(network().parameters()),
    "IsometryDecay without an optimizer": lambda: methods.IsometryDecay(0.1).attach(network()).before_step(),
    "WeightProjection without normalization": lambda: methods.WeightProjection().attach(
        nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    ),
    "WeightProjection of one layer": lambda: methods.WeightProjection().attach(nn.Linear(2, 4)),
    "SelectiveWeightReinit of a layer of one's own": lambda: methods.SelectiveWeightReinit().attach(Own()),
    "rejuvenate_ without losses": lambda: methods.rejuvenate_(model := network(), initial(model), where=Weights("cnn")),
    "HiddenMatrices of two layers": lambda: HiddenMatrices().select(network()),
    "HiddenUnits where nothing is": lambda: HiddenUnits(include=["nope"]).select(model := network(), lambda: model(X)),
    "Parameters where nothing is": lambda: Parameters(include=["nope"]).select(network()),
}

# --- Lightning -------------------------------------------------------------------------------------------------------


class Misspelt(PlainData):
    @property
    def chunk(self) -> int:
        return self.trainer.curent_epoch // 2


class Named(PlainData):
    chunk = "spring"


class Changes(PlainData):
    @property
    def chunk(self) -> int:
        return self.trainer.current_epoch // 2


class Distilled(PlainModule):
    """With a teacher that no optimizer trains."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.net.parameters(), lr=1e-2)


class Manual(PlainModule):
    """Manual optimization, without `loss_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class Diverges(PlainModule):
    def on_train_epoch_end(self) -> None:
        self.net[0].weight.data.fill_(float("nan"))


class NearlyEnded(PlainModule):
    """Its learning rate is near 0 at the event."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1e-5 if epoch else 1.0)
        return [optimizer], [schedule]


def set_up(callback: Any, strategy: Any) -> None:
    """Set a callback up under a strategy that cannot be run here."""
    fit = trainer()
    fit._accelerator_connector.strategy = strategy
    callback.setup(fit, PlainModule(), "fit")


def resumed(first: Iterable[Any], then: Any, **options: Any) -> None:
    """Train two epochs on plain data, and continue from the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        keep = callbacks.ModelCheckpoint(folder, "last", save_on_train_epoch_end=True)
        logging.disable(logging.INFO)
        fitted(*first, keep, data=PlainData(), max_epochs=2)
        logging.disable(logging.NOTSET)
        fitted(then, ckpt_path=f"{folder}/last.ckpt", **{"data": PlainData(1), "max_epochs": 4, **options})


FIRE = lf.FIRECallback
ON_PLAIN_DATA = {"data": PlainData, "max_epochs": 2}
FITS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {  # callback and options; classes are called
    "on growing data": (FIRE, {}),
    "on plain data": (FIRE, ON_PLAIN_DATA),
    "on the first data": (partial(FIRE, AtNewData(skip_first=False)), ON_PLAIN_DATA),
    "on a chunk with an error": (FIRE, {"data": Misspelt, "max_epochs": 1}),
    "on a chunk with a name": (FIRE, {"data": Named, "max_epochs": 1}),
    "on a single chunk": (FIRE, {"data": partial(GrowingData, (1,)), "max_epochs": 1}),
    "on data that is not loaded again": (FIRE, {"reload_dataloaders_every_n_epochs": 0}),
    "on a chunk that changes and is not loaded again": (
        FIRE,
        {"data": Changes, "max_epochs": 4, "reload_dataloaders_every_n_epochs": 0},
    ),
    "at an epoch after the last": (partial(FIRE, AtEpochs([6])), {}),
    "every 7 of 6 epochs": (partial(FIRE, EveryNEpochs(7)), {}),
    "every 1000 steps": (partial(FIRE, EveryNSteps(1000)), ON_PLAIN_DATA),
    "at a metric that is not logged": (partial(FIRE, WhenMetric("loss", above=1)), ON_PLAIN_DATA),
    "of schedulers on plain data": (lf.RestartSchedulers, ON_PLAIN_DATA),
    "of optimizers on plain data": (lambda: lf.PlasticityCallback(methods.OptimizerReset()), ON_PLAIN_DATA),
    "of no weight": (partial(FIRE, where=Weights(include=["nope"])), {}),
    "of a student": (partial(FIRE, AtEpochs([1])), {**ON_PLAIN_DATA, "module": Distilled}),
    "of a student, FullReset": (
        lambda: lf.PlasticityCallback(methods.FullReset(), AtEpochs([1])),
        {**ON_PLAIN_DATA, "module": Distilled},
    ),
    "in manual optimization": (partial(FIRE, AtEpochs([1])), {**ON_PLAIN_DATA, "module": Manual}),
    "in manual optimization, DASH": (
        lambda: lf.PlasticityCallback(methods.DASH(), AtEpochs([1])),
        {**ON_PLAIN_DATA, "module": Manual},
    ),
    "of NaN": (partial(FIRE, AtEpochs([1])), {**ON_PLAIN_DATA, "module": Diverges}),
    "with a learning rate near 0": (partial(FIRE, AtEpochs([1])), {**ON_PLAIN_DATA, "module": NearlyEnded}),
    "of what is new, FullReset": (
        lambda: lf.PlasticityCallback(methods.FullReset(), AtNewData(skip_first=False)),
        ON_PLAIN_DATA,
    ),
    "of a head that is absent": (lambda: lf.PlasticityCallback(methods.PlasticityInjection("head")), {}),
    "of units, ReDo": (lambda: lf.PlasticityCallback(methods.ReDo(), AtEpochs([1])), ON_PLAIN_DATA),
    "at each step, L2Init": (lambda: lf.PlasticityCallback(methods.L2Init(0.1)), ON_PLAIN_DATA),
    "at each step, ContinualBackprop": (lambda: lf.PlasticityCallback(methods.ContinualBackprop()), ON_PLAIN_DATA),
    "of a probe without a task": (lf.PlasticityProbe, ON_PLAIN_DATA),
    "of a monitor": (lf.PlasticityMonitor, ON_PLAIN_DATA),
}


def made(value: Any) -> Any:
    return value() if isinstance(value, type | partial) else value


for name, (callback, options) in FITS.items():
    CASES[f"fit {name}"] = lambda callback=callback, options=options: fitted(
        callback(), **{key: made(value) for key, value in options.items()}
    )


def again() -> None:
    """Use a callback in a fit of another module."""
    callback = FIRE(AtEpochs([1]))
    for _ in range(2):
        fitted(callback, data=PlainData(), max_epochs=2)


CASES |= {
    "fit with two of one name": lambda: fitted(FIRE(), FIRE(AtEpochs([1]))),
    "fit with two monitors": lambda: fitted(lf.PlasticityMonitor(), lf.PlasticityMonitor(where=Weights("cnn"))),
    "fit of pruned weights": lambda: fitted(
        FIRE(AtEpochs([2])), callbacks.ModelPruning("l1_unstructured"), data=PlainData()
    ),
    "fit of another module": again,
    "fit under FSDP": lambda: set_up(FIRE(), FSDPStrategy()),
    "fit of shards": lambda: set_up(lf.PlasticityCallback(methods.DASH()), ModelParallelStrategy()),
    "fit resumed without earlier state": lambda: resumed([], FIRE()),
    "fit resumed on data without a mark": lambda: resumed([FIRE()], FIRE()),
    "fit resumed at its end": lambda: resumed([FIRE()], FIRE(), max_epochs=2),
    "fit resumed on the first data": lambda: resumed(
        [FIRE(AtNewData(skip_first=False))], FIRE(AtNewData(skip_first=False))
    ),
}

# --- Hugging Face and Stable-Baselines3 ------------------------------------------------------------------------------


def of_hugging_face(method: methods.Method = methods.FIRE(), when: Any = None, **options: Any) -> Any:  # noqa: B008
    from lightning_fire.integrations.huggingface import PlasticityCallback

    return PlasticityCallback(method, when, **options)


class Net(nn.Module):
    """A network for the Trainer of Hugging Face."""

    def __init__(self, has_loss: bool = True):
        super().__init__()
        self.body, self.head, self.has_loss = nn.Linear(2, 8), nn.Linear(8, 3), has_loss

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(torch.relu(self.body(x)))
        found = {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), **found} if self.has_loss else found


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        yield from ({"x": torch.ones(2), "labels": number % 3} for number in range(24))


def hf_trainer(folder: str, *given: Any, model: nn.Module | None = None, data: Any = None, **options: Any) -> Any:
    """A Trainer of 6 steps, 3 in an epoch."""
    import transformers

    how = {"max_steps": 6, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    arguments = transformers.TrainingArguments(folder, **how | options)
    fit = transformers.Trainer(model or Net(), arguments, train_dataset=data or list(Stream()), callbacks=list(given))
    fit.remove_callback(transformers.PrinterCallback)
    gc.freeze()
    return fit


def train(*given: Any, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hf_trainer(folder, *given, **options).train()


def train_on(callback: Any, late: bool = False) -> None:
    """Resume a training that did not know a callback, which is perhaps added to the Trainer later."""
    with tempfile.TemporaryDirectory() as folder:
        hf_trainer(folder, save_strategy="steps", save_steps=3).train()
        fit = hf_trainer(folder, *([] if late else [callback]))
        if late:
            fit.add_callback(callback)
        fit.train(resume_from_checkpoint=f"{folder}/checkpoint-3")


CASES |= {
    "HF waits for a metric": lambda: of_hugging_face(when=[AtEpochs([1]), WhenMetric("eval_loss", above=1.0)]),
    "HF with a number as schedule": lambda: of_hugging_face(when=3),
    "HF with a function as method": lambda: of_hugging_face(methods.fire_),
    "HF L2Init with a schedule": lambda: of_hugging_face(methods.L2Init(0.1), EveryNSteps(2)),
    "HF from chunk -1": lambda: of_hugging_face(start_chunk=-1),
    "HF with a slash in its name": lambda: of_hugging_face(name="a/b"),
    "HF with a text as log": lambda: of_hugging_face(log="a"),
    "HF with an average of another kind": lambda: of_hugging_face(averages=3),
    "HF of no weight": lambda: train(of_hugging_face(methods.FIRE(where=Weights(include=["nope"])))),
    "HF after the last step": lambda: train(of_hugging_face(when=EveryNSteps(6))),
    "HF with two of one name": lambda: train(*(of_hugging_face(when=AtFraction(f)) for f in (0.3, 0.5))),
    "HF DASH without a loss": lambda: train(
        of_hugging_face(methods.DASH(), EveryNSteps(5)), model=Net(False), label_names=["labels"]
    ),
    "HF epochs of a stream": lambda: train(of_hugging_face(when=EveryNEpochs(1)), data=Stream()),
    "HF DASH on a stream": lambda: train(of_hugging_face(methods.DASH(), EveryNSteps(2)), data=Stream()),
    "HF on the first data": lambda: train(of_hugging_face()),
    "HF acts": lambda: train(of_hugging_face(when=AtNewData(skip_first=False))),
    "HF ContinualBackprop": lambda: train(of_hugging_face(methods.ContinualBackprop())),
    "HF changes nothing": lambda: train(of_hugging_face(methods.FullReset(), AtNewData(skip_first=False))),
    "HF with a learning rate near 0": lambda: train(of_hugging_face(when=EveryNSteps(101)), max_steps=102),
    "HF from a checkpoint without state": lambda: train_on(of_hugging_face(when=EveryNSteps(4))),
    "HF too late in a resumed training": lambda: train_on(of_hugging_face(methods.FullReset(), EveryNSteps(5)), True),
}


def of_sb3(method: methods.Method = methods.FIRE(), when: Any = None, **options: Any) -> Any:  # noqa: B008
    from lightning_fire.integrations.stable_baselines3 import PlasticityCallback

    return PlasticityCallback(method, when, **options)


def agent(kind: str = "PPO", **more: Any) -> Any:
    import stable_baselines3

    on = {"n_steps": 32, "batch_size": 16, "n_epochs": 1}
    off = {"learning_starts": 20, "batch_size": 16, "buffer_size": 500, "train_freq": 4}
    small = {"policy_kwargs": {"net_arch": [8, 8]}, "seed": 0, "device": "cpu"}
    made_agent = getattr(stable_baselines3, kind)("MlpPolicy", "CartPole-v1", **(on if kind == "PPO" else off), **small)
    vars(made_agent).update(more)
    return made_agent


def called_within(callback: Any) -> Any:
    from stable_baselines3.common.callbacks import EveryNTimesteps

    return EveryNTimesteps(20, callback)


def learned_twice() -> None:
    model, callback = agent(), of_sb3()
    for _ in range(2):
        model.learn(96, callback, reset_num_timesteps=False)


CASES |= {
    "SB3 at new data": lambda: of_sb3(when=AtNewData()),
    "SB3 at epochs among others": lambda: of_sb3(when=AnyOf([AtFraction(0.5), AnyOf([AtEpochs([1])])])),
    "SB3 at a metric": lambda: of_sb3(when=WhenMetric("rollout/ep_rew_mean", above=1.0)),
    "SB3 ContinualBackprop with a schedule": lambda: of_sb3(methods.ContinualBackprop(), AtFraction(0.5)),
    "SB3 logs every 0": lambda: of_sb3(log_every=0),
    "SB3 injection without the target": lambda: agent("DQN").learn(
        32, of_sb3(methods.PlasticityInjection("q_net.q_net.4"))
    ),
    "SB3 of no weight": lambda: agent().learn(32, of_sb3(methods.FIRE(where=Weights(include=["nope"])))),
    "SB3 with two of one name": lambda: agent().learn(32, [of_sb3(), of_sb3()]),
    "SB3 within a rollout": lambda: agent("DQN").learn(32, called_within(of_sb3())),
    "SB3 without optimizer steps, DASH": lambda: agent(line_search_max_iter=10).learn(
        64, of_sb3(methods.DASH(), EveryNSteps(32))
    ),
    "SB3 at a fraction of several": learned_twice,
    "SB3 every part of a rollout": lambda: agent().learn(96, of_sb3(when=EveryNSteps(50))),
    "SB3 at the end": lambda: agent().learn(64, of_sb3(when=EveryNSteps(64))),
    "SB3 ReDo at the end": lambda: agent().learn(64, of_sb3(methods.ReDo(), EveryNSteps(64))),
    "SB3 never due": lambda: agent().learn(64, of_sb3(when=EveryNSteps(960))),
    "SB3 L2Init": lambda: agent().learn(64, of_sb3(methods.L2Init(0.1))),
}


def installed(name: str) -> bool:
    """Return whether the library of a case is installed."""
    return importlib.util.find_spec(LIBRARIES.get(name.split()[0], "torch")) is not None


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.messages", description=__doc__)
    parser.add_argument("words", nargs="*", help="only the cases whose names contain one of these")
    parser.add_argument("--check", action="store_true", help="store nothing")
    arguments = parser.parse_args()
    for library in ("lightning.pytorch", "transformers"):
        logging.getLogger(library).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    gc.freeze()  # Trainers collect garbage, which takes half a second of all that is imported
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    now, equal = {}, True
    for name, call in CASES.items():
        if not installed(name) or (arguments.words and not any(word in name for word in arguments.words)):
            now |= {name: stored[name]} if name in stored else {}
            continue
        now[name] = said_by(call)
        if now[name] != stored.get(name):
            equal = False
            lost, new = (
                [line for line in one if line not in other]
                for one, other in ((stored.get(name, []), now[name]), (now[name], stored.get(name, [])))
            )
            print(name, *(f"  - {line}" for line in lost), *(f"  + {line}" for line in new), sep="\n")
    if not arguments.check:
        STORED.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    return int(arguments.check and not equal)


if __name__ == "__main__":
    sys.exit(main())
