"""Any method in Stable-Baselines3."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnNoModelImprovement
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.functional.checks import at_least
from lightning_fire.integrations.base import Adapter, require_known_times, say, undisturbed
from lightning_fire.integrations.measure_plasticity import MeasurePlasticity
from lightning_fire.messages import logger, tell_once
from lightning_fire.methods import EventMethod, Method
from lightning_fire.methods.base.method import schedule_of
from lightning_fire.methods.base.wrong_library import OfOneLibrary
from lightning_fire.when import (
    AtEpochs,
    AtFraction,
    AtNewData,
    Clock,
    EveryNEpochs,
    EveryNSteps,
    Schedule,
    schedules_in,
)

__all__ = ["MeasurePlasticity", "PlasticityCallback"]


class PlasticityCallback(OfOneLibrary, BaseCallback):
    """Applies a method to the policy of an algorithm of Stable-Baselines3: at events, or at every optimizer step.

    A step of the schedule is a timestep of the environments. An event happens between two updates, at the first rollout
    that starts at or after the step at which the schedule is due; for a method that needs data, not before the first
    update. Target networks (`q_net_target`, `critic_target`, `actor_target`) are then copied from the trained ones, and
    `StopTrainingOnNoModelImprovement` counts from 0. Gradients are those of the algorithm's own `train`, run without a
    step and without side effects. The state is stored as `model.plasticity` and saved by `model.save`: a loaded model
    that continues with `reset_num_timesteps=False` neither loses nor repeats an event. Logged keys are those of the
    Lightning callback.

    Args:
        method: The method, such as `FIRE(where=Weights(preset="dqn"))`.
        when: Schedule in steps, or several of which any may be due. Default: `AtFraction(0.5)` (paper: reinforcement
            learning).
        name: Prefix of the logged keys instead of the method's own.
        log_every: Timesteps between two logged values of a method that acts at every step.
        averages: One or several averages of the weights, which restart from new weights, such as `EMAModel` of
            diffusers; see `methods.Loop`. Those inside the policy are found automatically.

    Raises:
        TypeError: If `method` is not a method, `when` not a schedule, or `averages` are not averages.
        ValueError: If an argument is out of range, the schedule waits for epochs, new data or a metric, or is given for
            a method that acts at every step; when `learn` starts, if nothing is selected or the algorithm is of an
            unknown kind; before its first update, if the method needs something that is missing.

    Example:
        >>> from lightning_fire.methods import FIRE
        >>> callback = PlasticityCallback(FIRE())  # model.learn(total_timesteps=100_000, callback=callback)
    """

    def __init__(
        self,
        method: Method,
        when: Schedule | Sequence[Schedule] | None = None,
        name: str | None = None,
        log_every: int = 1000,
        averages: Any = (),
    ):
        super().__init__()
        at_least(1, log_every=log_every)
        self._when = schedule_of(method, when, AtFraction(0.5))
        self._training = _PolicyData(method, name, averages)
        require_known_times(self._when, (AtNewData, AtEpochs, EveryNEpochs))
        self._log_every, self._logged = log_every, 0
        self._asked = 0  # last timestep at which the schedule was checked
        self._begun, self._waited, self._events_before = False, False, 1

    def _init_callback(self) -> None:
        if not isinstance(self.model, OffPolicyAlgorithm | OnPolicyAlgorithm):
            raise ValueError(f"{type(self.model).__name__} has no policy that is trained by gradients")
        kept = vars(self.model).setdefault("plasticity", {})
        if (state := kept.get(self._training.name)) is not None and self._training.model is None:
            state = state() if isinstance(state, _State) else state
            self._training.load_state_dict(state["training"])
            self._asked = state["asked"]
        self._training.set_algorithm(self.model)
        kept[self._training.name] = self._state = _State(
            lambda: {"asked": self._asked, "training": self._training.state_dict()}
        )

    def _on_training_start(self) -> None:
        if vars(self.model)["plasticity"][self.name] is not self._state:
            raise ValueError(f"two callbacks log as {self.name!r}: give one another name, name=…")
        if self.parent is not None:
            kind = type(self.parent).__name__
            raise ValueError(f"{kind} calls {self.name} within a rollout, where it never acts: put it beside {kind}")
        self._asked, self._logged = min(self._asked, self.num_timesteps), self.num_timesteps  # may count from 0 again
        self._begun, self._events_before = False, self._training.event
        self._begin()
        self._waited = not self._begun
        schedules = [each for each in schedules_in(self._when) if isinstance(each, AtFraction)]
        if schedules == schedules_in(self._when):
            end = self.locals["total_timesteps"]
            coming = any(each.fraction * end > self._asked for each in schedules)
            (say if coming else logger.warning)(
                f"{self.name} will {'' if coming else 'not '}act in this learn(): {self._when} is a fraction of all"
                f" {end} timesteps. To act in each of several learn() give EveryNSteps(n), or call fire_ between them."
            )
        self._warn_of_rollouts()

    def _warn_of_rollouts(self) -> None:
        """Warn once if events come within a `learn`, whose timesteps are rounded up to whole rollouts."""
        if not isinstance(self.model, OnPolicyAlgorithm):
            return
        rollout = self.model.n_steps * self.model.n_envs
        for each in schedules_in(self._when):
            if isinstance(each, EveryNSteps) and each.n % rollout:
                message = (
                    f"{self.name}: {each} is not a multiple of a rollout, {rollout} timesteps (n_steps × environments),"
                    " to which learn() rounds up: with several learn(), some events will be in the middle of one."
                    f" Give both a multiple, such as {math.ceil(each.n / rollout) * rollout}."
                )
                tell_once(self, message, logger.warning)

    @property
    def name(self) -> str:
        """Prefix of the logged keys."""
        return self._training.name

    def _begin(self) -> None:
        """Start to act, unless the method needs data and there is none yet."""
        try:
            self._training.begin(self._training.of_policy())
            self._begun = True
        except _NoData:
            pass

    def _on_rollout_end(self) -> None:
        self._training.keep_rollout()
        if not self._begun:
            self._begin()

    def _on_rollout_start(self) -> None:
        now, end = self.model.num_timesteps, self.locals["total_timesteps"]
        if now - self._logged >= self._log_every:
            self._logged = now
            self._record(self._training.metrics())
        if not self._begun:
            return
        note = partial(setattr, self, "_asked", now)
        if not self._is_due(now, end):
            note()
            return
        copies = _targets_of(self.model.policy) if self._training.method.changes_weights else ()
        values = self._training.act(f"timestep {now}", note, copies)
        if self._training.method.remakes_network:
            for each in _all_in(self.locals["callback"]):
                if isinstance(each, StopTrainingOnNoModelImprovement):
                    each.no_improvement_evals = 0
        self._record(values)

    def _is_due(self, now: int, end: float) -> bool:
        """Return whether the schedule is due at a timestep since the last check; `end`: number of all timesteps."""
        clocks = (
            Clock(epoch=0, step=step, epoch_start=False, progress=step / end, progress_before=(step - 1) / end)
            for step in range(self._asked + 1, now + 1)
        )
        return any(map(self._when.due, clocks))

    def _record(self, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.logger.record(key, value)

    def _on_step(self) -> bool:
        return True  # continue training

    def _on_training_end(self) -> None:
        self._training.close()
        if isinstance(self._training.method, EventMethod) and self._training.event == self._events_before:
            if self._is_due(self.num_timesteps, math.inf):  # not by a fraction, which will be of more timesteps
                data = "with data " if self._waited else ""
                say(
                    f"{self.name} will act at the first rollout {data}of the next learn(…, reset_num_timesteps=False):"
                    f" {self._when} is due"
                )
            else:
                say(f"{self.name} had no event in this learn(): {self._when} was not due at any of its rollouts")


def _all_in(callback: Any) -> Iterator[Any]:
    """Yield a callback and all callbacks that it calls."""
    yield callback
    for each in (*getattr(callback, "callbacks", ()), *map(vars(callback).get, ("callback", "callback_on_new_best"))):
        yield from () if each is None else _all_in(each)


class _State:
    """A state that is computed when it is pickled or copied, as a dict."""

    def __init__(self, read: Callable[[], dict[str, Any]]):
        self._read = read

    def __call__(self) -> dict[str, Any]:
        return self._read()

    def __reduce__(self) -> Any:
        return dict, (self._read(),)


class _NoData(Exception):
    """Raised if there is no data, before the first update."""


class _Enough(Exception):
    """Raised when each optimizer has its gradient."""


class _PolicyData(Adapter):
    """The `methods.Training` of Stable-Baselines3: gradients are those of the algorithm's own `train`."""

    def set_algorithm(self, algorithm: BaseAlgorithm) -> None:
        """Set the algorithm whose policy a method acts on."""
        self._algorithm: Any = algorithm
        self._start_time = algorithm.start_time
        self._rollout: Any = None
        self.set_model(algorithm.policy)
        if any(source.state_dict().keys() != target.state_dict().keys() for source, target in _targets_of(self.model)):
            raise ValueError(f"{self.title} needs the same head of the target network too: target=…")

    def is_over(self) -> bool:
        """Return whether a later `learn` has begun."""
        over: bool = self._algorithm.start_time != self._start_time
        return over

    def keep_rollout(self) -> None:
        """Keep the last rollout: its buffer is emptied before the next one."""
        if isinstance(self._algorithm, OnPolicyAlgorithm):
            self._rollout = copy.copy(self._algorithm.rollout_buffer)

    def of_policy(self) -> list[Optimizer]:
        """Return the optimizers of the policy."""
        found = (getattr(part, "optimizer", None) for part in self._algorithm.policy.modules())
        return [optimizer for optimizer in found if isinstance(optimizer, Optimizer)]

    def forward(self, batches: int = 1) -> None:
        """Run the networks of the policy on some samples."""
        with undisturbed(self.model), _restored(self._algorithm, self.of_policy()):
            self.model.set_training_mode(True)
            for data in self._samples(batches):
                if hasattr(data, "lstm_states"):
                    raise ValueError(f"{self.title} needs to run the policy, which is recurrent: not possible here")
                if hasattr(self.model, "critic"):
                    self.model.actor(data.observations)
                    self.model.critic(data.observations, data.actions)
                else:
                    self.model(data.observations)

    def _samples(self, batches: int) -> Iterator[Any]:
        """Yield samples of the buffer."""
        self._require_data()
        algorithm = self._algorithm
        if isinstance(algorithm, OnPolicyAlgorithm):
            yield from islice(copy.copy(self._rollout).get(getattr(algorithm, "batch_size", None)), batches)
        else:
            env = algorithm.get_vec_normalize_env()
            yield from (algorithm.replay_buffer.sample(algorithm.batch_size, env=env) for _ in range(batches))

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradients that the optimizers would step with on each of some batches, before clipping."""
        if hasattr(self._algorithm, "line_search_max_iter"):  # TRPO: only its critic is stepped by an optimizer
            kind = type(self._algorithm).__name__
            raise ValueError(f"{self.title} needs gradients by which optimizers step, and {kind} uses a line search")
        self._require_data()
        algorithm, optimizers, found = self._algorithm, self.of_policy(), dict[Tensor, Tensor]()
        stepped: set[Optimizer] = set()

        def instead_of_step(optimizer: Optimizer) -> None:
            own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            found.update((p, p.grad.detach().clone()) for p in of if p in own and p.grad is not None)
            stepped.add(optimizer)
            if stepped.issuperset(optimizers):
                raise _Enough

        every = [*optimizers, *(each for each in vars(algorithm).values() if isinstance(each, Optimizer))]
        with undisturbed(self.model), _restored(algorithm, every):
            for optimizer in every:
                vars(optimizer)["step"] = partial(instead_of_step, optimizer)
            vars(algorithm).update(max_grad_norm=math.inf, target_kl=None)
            for _ in range(1 if self.is_dry_run else batches):
                found.clear()
                stepped.clear()
                try:
                    if isinstance(algorithm, OffPolicyAlgorithm):  # the actor may be trained in every second step
                        steps = getattr(algorithm, "policy_delay", 1)
                        algorithm.train(gradient_steps=steps, batch_size=algorithm.batch_size)
                    else:
                        vars(algorithm)["rollout_buffer"] = copy.copy(self._rollout)
                        algorithm.train()
                except _Enough:
                    pass
                yield [found.get(p, torch.zeros_like(p)) for p in of]

    def _require_data(self) -> None:
        algorithm: Any = self._algorithm
        if isinstance(algorithm, OnPolicyAlgorithm):
            there = self._rollout is not None
        else:
            there = algorithm.num_timesteps > algorithm.learning_starts and algorithm.replay_buffer.size() > 0
        if not there:
            raise _NoData


def _targets_of(policy: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Return pairs of a network of the policy and its target network."""
    parts = dict(policy.named_children())
    return [(parts[name.removesuffix("_target")], part) for name, part in parts.items() if name.endswith("_target")]


@contextmanager
def _restored(algorithm: BaseAlgorithm, optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Context manager: restore attributes, parameters, gradients, learning rates and the log, which `train` changes."""
    noise = [part.action_dist for part in algorithm.policy.modules() if hasattr(part, "action_dist")]
    attributes = [(thing, dict(vars(thing))) for thing in (algorithm, *optimizers, *noise)]
    log = algorithm.logger.name_to_value, algorithm.logger.name_to_count, algorithm.logger.name_to_excluded
    logged = [(entries, dict(entries)) for entries in log]
    rates = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    values = [(p, p.detach().clone(), p.grad) for p in algorithm.policy.parameters()]
    try:
        yield
    finally:
        for saved, before in [*((vars(thing), before) for thing, before in attributes), *logged]:
            saved.clear()
            saved.update(before)
        for group, rate in rates:
            group["lr"] = rate
        for parameter, value, gradient in values:
            parameter.detach().copy_(value)
            parameter.grad = gradient
