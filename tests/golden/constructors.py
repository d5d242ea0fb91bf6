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
    "fire_5_steps": lambda when: lf.FIRECallback(when, steps=5, optimizer="keep"),
    "fire_cnn": lambda when: lf.FIRECallback(when, Weights(preset="cnn", exclude=["head"]), optimizer="all"),
    "fire_exact_none": lambda when: lf.FIRECallback(when, steps="exact", scale="none"),
    "fire_muon_procrustes": lambda when: lf.FIRECallback(when, steps=4, coefficients="muon", scale="procrustes"),
    "fire_quintic_auto": lambda when: lf.FIRECallback(when, coefficients="quintic", scale="auto"),
    "fire_short_log": lambda when: lf.FIRECallback(
        when, LINEAR, log=lf.Log(name="own", layers=False, curvature=False, validation_batches=0)
    ),
    "fire_no_log": lambda when: lf.FIRECallback(when, log=lf.Log(weights=False)),
    "shrink_and_perturb": lambda when: lf.ShrinkAndPerturb(when),
    "shrink_and_perturb_fresh": lambda when: lf.ShrinkAndPerturb(when, strength=0.6, perturb=0.1, fresh_seed=3),
    "shrink_and_perturb_where": lambda when: lf.ShrinkAndPerturb(
        when, 0.3, where=Parameters(exclude=["bias"]), optimizer="keep"
    ),
    "full_reset": lambda when: lf.FullReset(when),
    "full_reset_fresh": lambda when: lf.FullReset(when, fresh_seed=5, optimizer="all"),
    "full_reset_isometry": lambda when: lf.FullReset(when, target="isometry"),
    "full_reset_head": lambda when: lf.FullReset(when, where=HEAD),
    "dash": lambda when: lf.DASH(when),
    "dash_few_batches": lambda when: lf.DASH(
        when, alpha=0.1, minimum=0.05, num_batches=2, where=Weights("cnn", exclude=["conv"])
    ),
    "redo": lambda when: lf.ReDo(when, threshold=0.1, seed=5),
    "redo_pre_activation": lambda when: lf.ReDo(when, threshold=0.1, score="pre_activation", num_batches=2),
    "redo_gradient": lambda when: lf.ReDo(when, threshold=0.1, score="gradient", num_batches=2),
    "redo_high": lambda when: lf.ReDo(when, threshold=0.9, num_batches=3),
    "redo_start_chunk": lambda when: lf.ReDo(
        when or EveryNSteps(2), threshold=0.3, start_chunk=1, where=HiddenUnits(exclude=["conv1"])
    ),
    "continual_backprop": lambda when: lf.ContinualBackprop(replacement_rate=0.05, maturity=3, decay=0.9, seed=5),
    "continual_backprop_plain": lambda when: lf.ContinualBackprop(0.25, 1, compensate=False, start_chunk=1),
    "snr": lambda when: lf.SelfNormalizedReset(rejection=0.2, refresh_every=3, max_silence=40, seed=5),
    "snr_start_chunk": lambda when: lf.SelfNormalizedReset(
        0.1, 2, 30, expansion=1.5, start_chunk=1, where=HiddenUnits(exclude=["conv1"])
    ),
    "l2_init": lambda when: lf.L2Init(1e-2),
    "l2_init_where": lambda when: lf.L2Init(1e-1, start_chunk=1, where=HEAD),
    "parseval": lambda when: lf.Parseval(1e-3, norms=True),
    "parseval_scale": lambda when: lf.Parseval(1e-2, scale=2.0, start_chunk=1),
    "spectral": lambda when: lf.SpectralRegularization(1e-2),
    "isometry_decay": lambda when: lf.IsometryDecay(1.0),
    "feature_rank": lambda when: lf.FeatureRank(lr=1e-2, every_n_batches=2),
    "weight_projection": lambda when: lf.WeightProjection(),
    "weight_projection_where": lambda when: lf.WeightProjection(Weights(preset="cnn")),
    "hare_and_tortoise": lambda when: lf.HareAndTortoise(when or EveryNEpochs(1), momentum=0.8),
    "plasticity_injection": lambda when: lf.PlasticityInjection("net.head", when),
    "plasticity_injection_keep": lambda when: lf.PlasticityInjection("net.head", when, optimizer="keep", seed=7),
    "plasticity_injection_target": lambda when: lf.PlasticityInjection("net", when, target="target_net"),
    "optimizer_reset": lambda when: lf.OptimizerReset(when),
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


def _shrink(loop: Loop, *args: Any, fresh: int | None = None, **options: Any) -> Plain:
    def act() -> methods.Report:
        target = loop.initial if fresh is None else methods.fresh_values(loop.model, seed=fresh + loop.event)
        return methods.shrink_and_perturb_(loop.model, target, *args, optimizers=[loop.optimizer], **options)

    return _at_event(act)


def _reset(loop: Loop, isometric: bool = False, **options: Any) -> Plain:
    target = methods.isometric_values(loop.model, loop.initial) if isometric else loop.initial
    return _at_event(lambda: methods.full_reset_(loop.model, target, optimizers=loop.optimizer, **options))


def _dash(loop: Loop, number: int, **options: Any) -> Plain:
    return _at_event(lambda: methods.dash_(loop.model, loop.losses(number), optimizers=loop.optimizer, **options))


def _inject(loop: Loop, **options: Any) -> Plain:
    methods.wrap_heads(loop.model, ["head"])
    return _at_event(
        lambda: methods.inject_plasticity_(loop.model, ["head"], 7 + loop.event, optimizers=loop.optimizer, **options)
    )


def _redo(loop: Loop, **options: Any) -> Plain:
    method = methods.ReDo(loop.model, loop.look, threshold=0.1, seed=5, **options)
    return _at_event(lambda: method.step(loop.look, loop.optimizer), method)


def _units(loop: Loop, method: Any) -> Plain:
    return Plain(
        after_step=lambda: method.step(loop.optimizer), values=lambda: {"units": method.num_reset}, state=method
    )


def _penalty(method: Any) -> Plain:
    return Plain(before_step=method.add_gradients, values=lambda: {"penalty": method.penalty()})


def _isometry_decay(loop: Loop) -> Plain:
    method = methods.IsometryDecay(loop.model, 1.0)
    return Plain(before_step=lambda: method.decay(loop.optimizer), values=lambda: {"penalty": method.penalty()})


def _feature_rank(loop: Loop) -> Plain:
    method, ranks = methods.FeatureRank(loop.model, loop.look, lr=1e-2), []
    return Plain(after_step=lambda: ranks.append(method.step(loop.look)), values=lambda: {"rank": ranks[-1]})


def _hare_and_tortoise(loop: Loop) -> Plain:
    method = methods.HareAndTortoise(loop.model, momentum=0.8)
    return _at_event(method.reset_, method, method.step)


def _weight_projection(loop: Loop) -> Plain:
    method = methods.WeightProjection(loop.model)
    return Plain(after_step=method.step, state=method)


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
    "optimizer_reset": lambda loop: _at_event(lambda: methods.reset_optimizer_state(loop.optimizer)),
    "redo": _redo,
    "redo_pre_activation": partial(_redo, score="pre_activation", where=LATER_UNITS),
    "redo_gradient": partial(_redo, score="gradient"),
    "continual_backprop": lambda loop: _units(
        loop, methods.ContinualBackprop(loop.model, loop.look, 0.05, 3, decay=0.9, seed=5)
    ),
    "continual_backprop_plain": lambda loop: _units(
        loop, methods.ContinualBackprop(loop.model, loop.look, 0.1, 1, compensate=False)
    ),
    "snr": lambda loop: _units(
        loop, methods.SelfNormalizedReset(loop.model, loop.look, 0.2, 3, max_silence=40, seed=5)
    ),
    "l2_init": lambda loop: _penalty(methods.L2Init(loop.model, 1e-2)),
    "parseval": lambda loop: _penalty(methods.Parseval(loop.model, 1e-3, norms=True)),
    "spectral": lambda loop: _penalty(methods.SpectralRegularization(loop.model, 1e-2)),
    "isometry_decay": _isometry_decay,
    "feature_rank": _feature_rank,
    "hare_and_tortoise": _hare_and_tortoise,
    "weight_projection": _weight_projection,
}


def plain_of(name: str, loop: Loop) -> Plain:
    """Put a method into a plain loop."""
    return PLAIN[name](loop)


def _library_method(name: str, model: nn.Module) -> Callable[..., Any]:
    """Return a method for another library; `model` is a model of the kind that is trained."""
    return {
        "fire": partial(methods.fire_, steps=5),
        "shrink_and_perturb": partial(methods.shrink_and_perturb_, target=methods.fresh_values(model, seed=1)),
    }[name]


def huggingface_callback(name: str, model: nn.Module, when: When) -> Any:
    """Make a callback of a Hugging Face Trainer."""
    from lightning_fire.integrations.huggingface import ReinitCallback

    return ReinitCallback(_library_method(name, model), when)


def stable_baselines3_callback(name: str, policy: nn.Module, when: When) -> Any:
    """Make a callback of Stable-Baselines3."""
    from lightning_fire.integrations.stable_baselines3 import ReinitCallback

    return ReinitCallback(_library_method(name, policy), when)
