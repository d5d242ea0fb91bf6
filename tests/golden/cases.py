"""The golden cases: which method runs in which training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch import callbacks

from . import trainings
from .constructors import CALLBACKS, PLAIN, SCHEDULES, callback_of
from .digests import Digests
from .other_loops import Net, huggingface_digests, plain_digests, stable_baselines3_digests
from .small_loops import SMALL_LOOPS
from .trainings import Joined, SeveralFits, Training


@dataclass(frozen=True)
class Case:
    """A golden run.

    Args:
        run: Function that trains and returns the digests.
        like: Name of the case of the same training without a method; empty where there is none.
        libraries: Installed libraries on whose versions the digests depend, beside torch and Lightning.
    """

    run: Callable[[], Digests]
    like: str = ""
    libraries: Sequence[str] = ()


TRAININGS: dict[str, Training | SeveralFits | Joined] = {
    "main": Training(),
    "muon": Training(trainings.MuonModule),
    "scheduled": Training(trainings.Scheduled, ends=()),
    "accumulated": Training(options={"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}, batches=(5,), ends=()),
    "clipped": Training(options={"gradient_clip_val": 0.05}, ends=()),
    "amp": Training(options={"precision": "bf16-mixed"}, ends=()),
    # Lightning loads checkpoints of 64-true before it converts the module.
    "double": Training(options={"precision": "64-true"}, batches=(), ends=()),
    "two_optimizers": Training(trainings.TwoOptimizers, ends=()),
    "stream": Training(trainings.classifier, trainings.stream, batches=(5,), ends=()),
    "announced": Training(data=trainings.AnnouncingData, batches=()),
    "several_fits": SeveralFits(),
    "fits_of_several_processes": SeveralFits(separate=True),
    "started": Training(batches=(), ends=(), starts=(7, 10)),  # both right after an event
    "frozen": Training(trainings.Frozen, batches=(), ends=()),
    "validated": Training(options={"val_check_interval": 2}, batches=(7,), ends=()),
    "joined": Joined(),
    "dqn": Training(trainings.dqn, trainings.cart_pole, 3, batches=(20,), ends=()),
    "gpt": Training(trainings.gpt, trainings.texts, batches=(10,), ends=()),
}
# Methods in each training but the main one, which has all that do not need another.
METHODS: dict[str, str] = {
    "muon": "use_muon fire optimizer_reset redo",
    "scheduled": "restart_schedulers",
    "accumulated": "fire dash redo redo_gradient continual_backprop snr feature_rank l2_init isometry_decay"
    " hare_and_tortoise weight_projection plasticity_monitor",
    "clipped": "parseval l2_init spectral isometry_decay plasticity_monitor",
    "amp": "fire dash redo_gradient redo_pre_activation continual_backprop feature_rank spectral plasticity_injection"
    " plasticity_monitor",
    "double": "fire shrink_and_perturb snr parseval",
    "two_optimizers": "fire shrink_and_perturb dash redo_gradient continual_backprop snr parseval isometry_decay"
    " feature_rank hare_and_tortoise weight_projection optimizer_reset plasticity_injection plasticity_monitor",
    "stream": "fire shrink_and_perturb shrink_and_perturb_fresh full_reset full_reset_fresh dash redo_start_chunk"
    " continual_backprop l2_init plasticity_injection plasticity_monitor",
    "announced": "fire shrink_and_perturb l2_init_where restart_schedulers",
    "several_fits": "fire shrink_and_perturb redo snr weight_projection hare_and_tortoise plasticity_injection spectral"
    " plasticity_monitor",
    "fits_of_several_processes": "fire shrink_and_perturb redo snr weight_projection",
    "started": "fire_cnn shrink_and_perturb_fresh redo",
    "frozen": "fire_cnn shrink_and_perturb full_reset dash l2_init parseval redo continual_backprop hare_and_tortoise",
    "validated": "fire fire_validation continual_backprop snr hare_and_tortoise",
    "joined": "fire shrink_and_perturb_fresh redo l2_init",
    "dqn": "fire shrink_and_perturb redo dash plasticity_injection_target continual_backprop plasticity_monitor",
    "gpt": "fire shrink_and_perturb dash redo_high continual_backprop parseval hare_and_tortoise plasticity_monitor",
}
WHEN = {
    "dqn": SCHEDULES["at_fraction"],
    "fits_of_several_processes": SCHEDULES["first_too"],
    "started": SCHEDULES["every_n_steps"],
    "joined": SCHEDULES["every_n_epochs"],
}
STEP_METHODS = ("continual_backprop", "l2_init", "measure_plasticity")  # in other libraries
ELSEWHERE = ("use_muon", "plasticity_injection_target", "fire_validation")
LIBRARIES = {"dqn": ("gymnasium", "numpy"), "gpt": ("numpy",)}


def neighbours() -> list[Any]:
    """Make other callbacks, which keep something of the network before an event."""
    keep_best = callbacks.ModelCheckpoint(monitor="val/loss")
    return [callbacks.EarlyStopping("val/loss", patience=9), keep_best, callbacks.EMAWeightAveraging(decay=0.5)]


def neighbours_of_accuracy() -> list[Any]:
    """The same for a metric that is to grow."""
    keep_best = callbacks.ModelCheckpoint(monitor="val/accuracy", mode="max", save_top_k=2)
    return [callbacks.EarlyStopping("val/accuracy", mode="max", patience=2), keep_best]


def trained(training: str, *names: str, when: Any = None, others: Callable[[], list[Any]] = list) -> Digests:
    """Train with some methods, and other callbacks after them."""
    when = when or WHEN.get(training)
    return TRAININGS[training].digests(lambda: [*(callback_of(name, when) for name in names), *others()])


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}

    def add(name: str, run: Callable[[], Digests], like: str = "", libraries: Sequence[str] = ()) -> None:
        cases[name] = Case(run, like, libraries)

    for training in TRAININGS:
        libraries = LIBRARIES.get(training, ())
        add(f"{training}/nothing", partial(trained, training), "", libraries)
        names = METHODS[training].split() if training in METHODS else [n for n in CALLBACKS if n not in ELSEWHERE]
        for name in names:
            add(f"{training}/{name}", partial(trained, training, name), f"{training}/nothing", libraries)
    for when, schedule in SCHEDULES.items():
        add(f"{when}/fire_cnn", partial(trained, "main", "fire_cnn", when=schedule), "main/nothing")
    for when in ("every_n_steps", "every_n_epochs"):  # draws at several events
        run = partial(trained, "main", "shrink_and_perturb_fresh", when=SCHEDULES[when])
        add(f"{when}/shrink_and_perturb_fresh", run, "main/nothing")
    together = ("fire", "optimizer_reset", "redo", "continual_backprop", "l2_init", "parseval", "plasticity_monitor")
    add("together/seven", partial(trained, "main", *together), "main/nothing")
    add("together/two_of_a_class", partial(trained, "main", "fire", "fire_short_log"), "main/nothing")
    watchers = ("continual_backprop", "snr", "feature_rank", "redo")  # the last runs the module within a batch
    add("together/watchers", partial(trained, "main", *watchers, when=SCHEDULES["every_n_steps"]), "main/nothing")
    names = ("fire", "redo_gradient", "snr", "l2_init")
    add("together/two_optimizers", partial(trained, "two_optimizers", *names), "two_optimizers/nothing")
    for name in ("fire", "redo", "full_reset_head"):
        add(f"neighbours/{name}", partial(trained, "main", name, others=neighbours), "neighbours/nothing")
    add("neighbours/nothing", partial(trained, "main", others=neighbours))
    for name in ("nothing", "fire", "fire_validation"):
        names, like = ((), "") if name == "nothing" else ((name,), "neighbours_of_accuracy/nothing")
        run = partial(trained, "main", *names, others=neighbours_of_accuracy)
        add(f"neighbours_of_accuracy/{name}", run, like)
    add("together/redo_beside", partial(trained, "main", "redo_high", "snr", "weight_projection"), "main/nothing")
    names = ("shrink_and_perturb", "soft_weight_rescaling", "parseval")
    add("together/shrink_and_perturb_beside", partial(trained, "main", *names), "main/nothing")
    add("plain/nothing", partial(plain_digests, None))
    for name in PLAIN:
        add(f"plain/{name}", partial(plain_digests, name), "plain/nothing")
    transformers = ("transformers", "accelerate")
    for small in SMALL_LOOPS:
        add(small.name, small.digests, "", transformers if small.network in ("gpt_neox", "bloom", "phi3") else ())
    for name, when in (("fire", "at_fraction"), ("shrink_and_perturb", "every_n_steps")):
        add(f"huggingface/{name}_{when}", partial(huggingface_digests, name, SCHEDULES[when]), "", transformers)
    add("huggingface/fire_three_trainings", partial(huggingface_digests, "fire", None, 3), "", transformers)
    add("huggingface/nothing", partial(huggingface_digests, "nothing", None), "", transformers)
    for name in ("dash", "dash_with_losses", "l2_init", "measure_plasticity"):
        when = None if name in STEP_METHODS else SCHEDULES["at_fraction"]
        add(f"huggingface/{name}", partial(huggingface_digests, name, when), "huggingface/nothing", transformers)
    for name in ("nothing", "redo_gradient", "continual_backprop"):
        run = partial(huggingface_digests, name, SCHEDULES["at_fraction"] if name == "redo_gradient" else None, net=Net)
        like = "" if name == "nothing" else "huggingface_units/nothing"
        add(f"huggingface_units/{name}", run, like, transformers)
    stable_baselines3 = ("stable-baselines3", "gymnasium", "numpy")
    for algorithm in ("DQN", "PPO", "SAC"):
        nothing = f"stable_baselines3/nothing_{algorithm}"
        add(nothing, partial(stable_baselines3_digests, "nothing", algorithm, None), "", stable_baselines3)
        for name in ("fire", "shrink_and_perturb", "dash", "redo_gradient", *STEP_METHODS):
            when = None if name in STEP_METHODS else SCHEDULES["at_fraction"]
            run = partial(stable_baselines3_digests, name, algorithm, when)
            add(f"stable_baselines3/{name}_{algorithm}", run, nothing, stable_baselines3)
    run = partial(stable_baselines3_digests, "fire", "PPO", SCHEDULES["every_n_steps"], continued=True)
    add("stable_baselines3/fire_PPO_continued", run, "", stable_baselines3)
    return cases


CASES = _cases()
