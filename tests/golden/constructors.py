"""The one place that makes methods: as callbacks, in plain loops and for other libraries."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from lightning.pytorch import Callback
from torch import Tensor, nn

import lightning_fire as lf
from lightning_fire import methods
from lightning_fire.when import (
    AtEpochs,
    AtFraction,
    AtNewData,
    EveryNEpochs,
    EveryNSteps,
    Schedule,
    WhenMetric,
)
from lightning_fire.where import HiddenUnits, Parameters, Weights

When = Schedule | list[Schedule] | None

HEAD = Parameters(include=["head"])
LINEAR = Weights("cnn", exclude=["conv"])
LATER_UNITS = HiddenUnits(exclude=["conv1"])
CALLBACKS: dict[str, Callable[[When], Callback]] = {
    "fire": lambda when: lf.FIRECallback(when),
    "fire_5_steps": lambda when: lf.FIRECallback(when, steps=5, optimizer_state="keep"),
    "fire_cnn": lambda when: lf.FIRECallback(
        when, where=Weights(preset="cnn", exclude=["head"]), optimizer_state="all"
    ),
    "fire_exact_none": lambda when: lf.FIRECallback(when, steps="exact", scale="none"),
    "fire_muon_procrustes": lambda when: lf.FIRECallback(when, steps=4, coefficients="muon", scale="procrustes"),
    "fire_quintic_auto": lambda when: lf.FIRECallback(when, coefficients="quintic", scale="auto"),
    "fire_short_log": lambda when: lf.FIRECallback(
        when, where=LINEAR, log=lf.Log(name="own", layers=False, curvature=False, validation_batches=0)
    ),
    "fire_no_log": lambda when: lf.FIRECallback(when, log=lf.Log(weights=False)),
    "fire_validation": lambda when: lf.FIRECallback(when, log=lf.Log(curvature=False, validation_batches=2)),
    "shrink_and_perturb": lambda when: lf.PlasticityCallback(lf.ShrinkAndPerturb(), when),
    "shrink_and_perturb_fresh": lambda when: lf.PlasticityCallback(
        lf.ShrinkAndPerturb(strength=0.6, perturb=0.1, fresh_seed=3), when
    ),
    "shrink_and_perturb_where": lambda when: lf.PlasticityCallback(
        lf.ShrinkAndPerturb(0.3, where=Parameters(exclude=["bias"]), optimizer_state="keep"), when
    ),
    "full_reset": lambda when: lf.PlasticityCallback(lf.FullReset(), when),
    "full_reset_fresh": lambda when: lf.PlasticityCallback(lf.FullReset(fresh_seed=5, optimizer_state="all"), when),
    "full_reset_isometry": lambda when: lf.PlasticityCallback(lf.FullReset(target="isometry"), when),
    "full_reset_head": lambda when: lf.PlasticityCallback(lf.FullReset(where=HEAD), when),
    "dash": lambda when: lf.PlasticityCallback(lf.DASH(), when),
    "dash_few_batches": lambda when: lf.PlasticityCallback(
        lf.DASH(alpha=0.1, minimum=0.05, num_batches=2, where=Weights("cnn", exclude=["conv"])), when
    ),
    "redo": lambda when: lf.PlasticityCallback(lf.ReDo(threshold=0.1, seed=5), when),
    "redo_pre_activation": lambda when: lf.PlasticityCallback(
        lf.ReDo(threshold=0.1, score="pre_activation", num_batches=2), when
    ),
    "redo_gradient": lambda when: lf.PlasticityCallback(lf.ReDo(threshold=0.1, score="gradient", num_batches=2), when),
    "redo_high": lambda when: lf.PlasticityCallback(lf.ReDo(threshold=0.9, num_batches=3), when),
    "redo_start_chunk": lambda when: lf.PlasticityCallback(
        lf.ReDo(threshold=0.3, where=HiddenUnits(exclude=["conv1"])), when or EveryNSteps(2), start_chunk=1
    ),
    "continual_backprop": lambda when: lf.PlasticityCallback(
        lf.ContinualBackprop(replacement_rate=0.05, maturity=3, decay=0.9, seed=5)
    ),
    "continual_backprop_plain": lambda when: lf.PlasticityCallback(
        lf.ContinualBackprop(0.25, 1, compensate=False), start_chunk=1
    ),
    "snr": lambda when: lf.PlasticityCallback(
        lf.SelfNormalizedReset(rejection=0.2, refresh_every=3, max_silence=40, seed=5)
    ),
    "snr_start_chunk": lambda when: lf.PlasticityCallback(
        lf.SelfNormalizedReset(0.1, 2, 30, expansion=1.5, where=HiddenUnits(exclude=["conv1"])), start_chunk=1
    ),
    "selective_weight_reinit": lambda when: lf.PlasticityCallback(lf.SelectiveWeightReinit(0.1, every=3, seed=5)),
    "selective_weight_reinit_magnitude": lambda when: lf.PlasticityCallback(
        lf.SelectiveWeightReinit(0.1, 4, "magnitude", "proportional", "mean", optimizer_state="touched"), start_chunk=1
    ),
    "l2_init": lambda when: lf.PlasticityCallback(lf.L2Init(1e-2)),
    "l2_init_where": lambda when: lf.PlasticityCallback(lf.L2Init(1e-1, where=HEAD), start_chunk=1),
    "parseval": lambda when: lf.PlasticityCallback(lf.Parseval(1e-3, norms=True)),
    "parseval_scale": lambda when: lf.PlasticityCallback(lf.Parseval(1e-2, scale=2.0), start_chunk=1),
    "spectral": lambda when: lf.PlasticityCallback(lf.SpectralRegularization(1e-2)),
    "isometry_decay": lambda when: lf.PlasticityCallback(lf.IsometryDecay(1.0)),
    "feature_rank": lambda when: lf.FeatureRank(lr=1e-2, every_n_batches=2),
    "weight_projection": lambda when: lf.PlasticityCallback(lf.WeightProjection()),
    "weight_projection_where": lambda when: lf.PlasticityCallback(lf.WeightProjection(Weights(preset="cnn"))),
    "weight_clipping": lambda when: lf.PlasticityCallback(lf.WeightClipping()),
    "soft_weight_rescaling": lambda when: lf.PlasticityCallback(lf.SoftWeightRescaling(0.1, classifier=0.01)),
    "hare_and_tortoise": lambda when: lf.HareAndTortoise(when or EveryNEpochs(1), momentum=0.8),
    "plasticity_injection": lambda when: lf.PlasticityCallback(lf.PlasticityInjection("net.head"), when),
    "plasticity_injection_keep": lambda when: lf.PlasticityCallback(
        lf.PlasticityInjection("net.head", optimizer_state="keep", seed=7), when
    ),
    "plasticity_injection_target": lambda when: lf.PlasticityCallback(
        lf.PlasticityInjection("net", target="target_net"), when
    ),
    "optimizer_reset": lambda when: lf.PlasticityCallback(lf.OptimizerReset(), when),
    "restart_schedulers": lambda when: lf.RestartSchedulers(when),
    "use_muon": lambda when: lf.UseMuon(when),
    "plasticity_monitor": lambda when: lf.PlasticityMonitor(data_every_n_steps=6, log=lf.Log(curvature=True)),
    "plasticity_monitor_rare": lambda when: lf.PlasticityMonitor(
        Weights(preset="cnn"), 2, None, log=lf.Log(name="own", layers=False)
    ),
}

SCHEDULES: dict[str, When] = {
    "every_n_steps": EveryNSteps(3),
    "every_n_epochs": EveryNEpochs(1),
    "at_epochs": AtEpochs([1, 3]),
    "at_fraction": AtFraction(0.5),
    "several": [AtEpochs([1]), EveryNSteps(7)],
    "when_metric": WhenMetric("val/loss", below=1.375, rearm=1.38),
    "first_too": AtNewData(skip_first=False),
}


def callback_of(name: str, when: When = None) -> Callback:
    """Make a callback; `when` is ignored by methods without a schedule."""
    return CALLBACKS[name](when)


class Loop(Protocol):
    """What a plain loop offers."""

    model: nn.Module
    optimizer: Any
    initial: dict[str, Tensor]
    event: int

    def look(self, number: int = 1) -> Tensor:
        """Run the model on the next batches; return the loss on the last one."""

    def losses(self, number: int) -> Iterator[Tensor]:
        """Yield the losses on the next batches."""


@dataclass(frozen=True)
class Plain:
    """A method in a plain loop: what it does when, and what it logs; `state` has a state_dict."""

    at_event: Callable[[], dict[str, float]] | None = None
    before_step: Callable[[], object] | None = None
    after_step: Callable[[], object] | None = None
    values: Callable[[], dict[str, float]] = dict  # at the end of an epoch
    state: Any = None


def _at_event(act: Callable[[], Any], state: Any = None, after_step: Callable[[], object] | None = None) -> Plain:
    def acted() -> dict[str, float]:
        report = act()
        return {} if report is None else report.keyed("event")

    return Plain(acted, after_step=after_step, state=state)


def _fire(loop: Loop, *args: Any, **options: Any) -> Plain:
    return _at_event(lambda: methods.fire_(loop.model, *args, optimizers=loop.optimizer, **options))


def _shrink(loop: Loop, fresh: int | None = None, measure: bool = True, **options: Any) -> Plain:
    def act() -> methods.Report:
        target = loop.initial if fresh is None else methods.fresh_values(loop.model, seed=fresh + loop.event)
        training = methods.Loop([loop.optimizer], initial=target, measure=measure)
        return methods.ShrinkAndPerturb(**options)(loop.model, training)

    return _at_event(act)


def _reset(loop: Loop, isometric: bool = False, **options: Any) -> Plain:
    target = methods.isometric_values(loop.model, loop.initial) if isometric else loop.initial
    return _at_event(lambda: methods.full_reset_(loop.model, target, optimizers=loop.optimizer, **options))


def _dash(loop: Loop, number: int, **options: Any) -> Plain:
    return _at_event(lambda: methods.dash_(loop.model, loop.losses(number), optimizers=loop.optimizer, **options))


def _inject(loop: Loop, **options: Any) -> Plain:
    methods.wrap_heads(loop.model, ["head"])
    return _at_event(
        lambda: methods.PlasticityInjection("head", seed=7 + loop.event - 1_000_003, **options)(
            loop.model, methods.Loop(loop.optimizer)
        )
    )


def _redo(loop: Loop, **options: Any) -> Plain:
    method = methods.ReDo(threshold=0.1, seed=5, **options)
    training = methods.Loop(loop.optimizer, loop.look, lambda: loop.losses(1))
    return _at_event(lambda: method(loop.model, training), _Event(training))


class _Event:
    """The state of a method with events: the number of the next one."""

    def __init__(self, training: methods.Loop):
        self._training = training

    def state_dict(self) -> dict[str, int]:
        return {"event": self._training.event}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._training.event = state["event"]


def _step(loop: Loop, method: methods.StepMethod) -> Plain:
    """A method that acts at every step."""
    training = _Live(loop)
    attached = method.attach(loop.model, training)
    return Plain(
        before_step=lambda: attached.before_step(loop.optimizer),
        after_step=attached.after_step,
        values=lambda: dict(attached.metrics()),
        state=attached,
    )


class _Live(methods.Loop):
    """A loop whose optimizer is replaced."""

    def __init__(self, loop: Loop):
        self._loop = loop
        super().__init__(loop.optimizer, loop.look, initial=loop.initial)

    @property
    def optimizers(self) -> list[Any]:
        return [self._loop.optimizer]

    @optimizers.setter
    def optimizers(self, given: list[Any]) -> None: ...


def _feature_rank(loop: Loop) -> Plain:
    method, ranks = methods.RankAscent(loop.model, loop.look, lr=1e-2), []
    return Plain(after_step=lambda: ranks.append(method.step(loop.look)), values=lambda: {"rank": ranks[-1]})


def _hare_and_tortoise(loop: Loop) -> Plain:
    method = methods.Tortoise(loop.model, momentum=0.8)
    return _at_event(method.reset_, method, method.after_step)


PLAIN: dict[str, Callable[[Loop], Plain]] = {
    "fire": _fire,
    "fire_exact": partial(_fire, where=Weights(preset="cnn"), steps="exact", scale="auto", optimizer_state="all"),
    "fire_muon": partial(_fire, coefficients="muon", scale="procrustes", optimizer_state="keep"),
    "shrink_and_perturb": _shrink,
    "shrink_and_perturb_fresh": partial(_shrink, strength=0.6, perturb=0.1, fresh=3),
    "shrink_and_perturb_where": partial(_shrink, where=HEAD, measure=False),
    "full_reset": _reset,
    "full_reset_isometry": partial(_reset, isometric=True),
    "full_reset_head": partial(_reset, where=HEAD, optimizer_state="keep"),
    "dash": partial(_dash, number=4),
    "dash_where": partial(_dash, number=2, alpha=0.1, minimum=0.05, where=LINEAR),
    "plasticity_injection": _inject,
    "plasticity_injection_all": partial(_inject, optimizer_state="all"),
    "optimizer_reset": lambda loop: _at_event(lambda: methods.drop_state(loop.optimizer)),
    "redo": _redo,
    "redo_pre_activation": partial(_redo, score="pre_activation", where=LATER_UNITS),
    "redo_gradient": partial(_redo, score="gradient"),
    "continual_backprop": lambda loop: _step(loop, methods.ContinualBackprop(0.05, 3, decay=0.9, seed=5)),
    "continual_backprop_plain": lambda loop: _step(loop, methods.ContinualBackprop(0.1, 1, compensate=False)),
    "snr": lambda loop: _step(loop, methods.SelfNormalizedReset(0.2, 3, max_silence=40, seed=5)),
    "l2_init": lambda loop: _step(loop, methods.L2Init(1e-2)),
    "parseval": lambda loop: _step(loop, methods.Parseval(1e-3, norms=True)),
    "spectral": lambda loop: _step(loop, methods.SpectralRegularization(1e-2)),
    "isometry_decay": lambda loop: _step(loop, methods.IsometryDecay(1.0)),
    "feature_rank": _feature_rank,
    "hare_and_tortoise": _hare_and_tortoise,
    "weight_projection": lambda loop: _step(loop, methods.WeightProjection()),
    "selective_weight_reinit": lambda loop: _step(loop, methods.SelectiveWeightReinit(0.1, every=3, seed=5)),
    "weight_clipping": lambda loop: _step(loop, methods.WeightClipping()),
    "soft_weight_rescaling": lambda loop: _step(loop, methods.SoftWeightRescaling(0.1, classifier=0.01)),
}


def plain_of(name: str, loop: Loop) -> Plain:
    """Put a method into a plain loop."""
    return PLAIN[name](loop)


class SmallLoop(Protocol):
    """What a loop of `small_loops` offers."""

    model: Any
    training: methods.Loop
    initial: dict[str, Tensor]

    def losses(self, number: int) -> Iterator[Tensor]:
        """Yield the losses on the next batches."""


def _called(method: methods.EventMethod) -> Callable[[SmallLoop], methods.Report]:
    return lambda loop: method(loop.model, loop.training)


def _rejuvenated(score: Any) -> Callable[[SmallLoop], methods.Report]:
    def act(loop: SmallLoop) -> methods.Report:
        losses = partial(loop.losses, 3)
        how = {"strength": 0.3, "fraction": 0.2, "score": score, "optimizers": loop.training.optimizers}
        return methods.rejuvenate_(loop.model, loop.initial, losses, **how)

    return act


EVENTS: dict[str, Callable[[SmallLoop], methods.Report]] = {
    "fire": _called(methods.FIRE()),
    "fire_7_steps": _called(methods.FIRE(steps=7)),
    "fire_exact": _called(methods.FIRE(steps="exact")),
    "shrink_and_perturb": _called(methods.ShrinkAndPerturb(0.5)),
    "full_reset_all": _called(methods.FullReset(optimizer_state="all")),
    "dash": _called(methods.DASH(num_batches=2)),
    "redo": _called(methods.ReDo(threshold=0.5, seed=5)),
    "redo_gradient": _called(methods.ReDo(threshold=0.9, seed=5, score="gradient")),
    "rejuvenate_attribution": _rejuvenated("attribution"),
    "rejuvenate_drift": _rejuvenated("drift"),
}
BESIDE: dict[str, methods.StepMethod] = {
    "continual_backprop": methods.ContinualBackprop(0.2, 1, seed=5),
    "isometry_decay": methods.IsometryDecay(1.0),
    "l2_init": methods.L2Init(0.1),
    "parseval": methods.Parseval(1e-2),
    "snr": methods.SelfNormalizedReset(0.2, 2, max_silence=40, seed=5),
    "soft_weight_rescaling": methods.SoftWeightRescaling(0.2),
    "spectral": methods.SpectralRegularization(1e-2),
    "weight_projection": methods.WeightProjection(),
}


IN_LIBRARIES: dict[str, methods.Method] = {
    "fire": methods.FIRE(steps=5),
    "dash": methods.DASH(num_batches=2),
    "redo_gradient": methods.ReDo(threshold=0.9, seed=5, score="gradient", num_batches=2),
    "continual_backprop": methods.ContinualBackprop(0.2, 1, seed=5),
    "l2_init": methods.L2Init(1e-2),
}


def _library_method(name: str, model: nn.Module) -> methods.Method:
    """Return a method for another library; `model` is a model of the kind that is trained."""
    if name in IN_LIBRARIES:
        return IN_LIBRARIES[name]
    values = methods.fresh_values(model, seed=1)

    class Towards(methods.ShrinkAndPerturb):
        """Moves towards the same values in every library."""

        needs_initial_values = False

        def plan(self, model: nn.Module, training: methods.Loop) -> methods.Change:
            given = methods.Loop(training.optimizers, initial=values)
            return super().plan(model, given)

    return Towards()


def huggingface_callback(name: str, model: nn.Module, when: When, losses: Any = None) -> Any:
    """Make a callback of a Hugging Face Trainer."""
    from lightning_fire.integrations.huggingface import MeasurePlasticity, PlasticityCallback

    method = MeasurePlasticity() if name == "measure_plasticity" else _library_method(name, model)
    return PlasticityCallback(method, when, losses=losses)


def stable_baselines3_callback(name: str, policy: nn.Module, when: When) -> Any:
    """Make a callback of Stable-Baselines3."""
    from lightning_fire.integrations.stable_baselines3 import MeasurePlasticity, PlasticityCallback

    method = MeasurePlasticity() if name == "measure_plasticity" else _library_method(name, policy)
    return PlasticityCallback(method, when, log_every=16)
