"""Any method in Stable-Baselines3."""

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnNoModelImprovement
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.functional.checks import at_least
from lightning_fire.integrations.base import LibraryCallback, require_known_times, say, undisturbed
from lightning_fire.integrations.measure_plasticity import MeasurePlasticity
from lightning_fire.methods import Attached, EventMethod, Loop, Method
from lightning_fire.when import AtEpochs, AtFraction, AtNewData, Clock, EveryNEpochs, Schedule, schedules_in

__all__ = ["MeasurePlasticity", "PlasticityCallback"]


class PlasticityCallback(LibraryCallback, BaseCallback):
    """Applies a method to the policy of an algorithm of Stable-Baselines3: at events, or at every optimizer step.

    A step of the schedule is a timestep of the environments. An event happens between two updates, at the first rollout
    that starts at or after the step at which the schedule is due; for a method that needs data, not before the first
    update. One that is due when a `learn` ends happens in the next, at timestep 0 if that counts from 0. Target
    networks (`q_net_target`, `critic_target`, `actor_target`) are then copied from the trained ones, and
    `StopTrainingOnNoModelImprovement` counts from 0.

    Gradients are those of the algorithm's own `train`, run without a step. Algorithms have no hook before the clipping
    of gradients: penalties are added after it. The state is stored as `model.plasticity` and saved by `model.save`: a
    loaded model that continues with `reset_num_timesteps=False` neither loses nor repeats an event. Logged keys are
    those of the Lightning callback.

    Args:
        method: The method, such as `FIRE(where=Weights(preset="dqn"))`.
        when: Schedule in steps, or several of which any may be due. Default: `AtFraction(0.5)` (paper: reinforcement
            learning).
        name: Prefix of the logged keys instead of the method's own.
        log_every: Timesteps between two logged values of a method that acts at every step.
        averages: One or several averages of the weights, which restart from new weights, see `methods.Loop`. Those
            inside the policy are found automatically.

    Raises:
        TypeError: If `method` is not a method, `when` not a schedule, or `averages` are not averages.
        ValueError: If an argument is out of range, the schedule waits for epochs, new data or a metric, or is given for
            a method that acts at every step; when `learn` starts, if nothing is selected or the algorithm is of an
            unknown kind; at its first event, if the method needs something that is missing.

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
        super().__init__(method, when, AtFraction(0.5), name, averages)
        at_least(1, log_every=log_every)
        require_known_times(self._when, (AtNewData, AtEpochs, EveryNEpochs))
        self._log_every, self._logged = log_every, 0
        self._asked = 0  # last timestep at which the schedule was checked
        self._is_late = False  # whether an event was due when a `learn` ended whose count was reset
        self._last = 0  # timesteps at the end of the `learn` before
        self._needs_data = self._method.needs_batches or self._only_measures
        self._begun = False  # to act in this `learn`, if needed when there is data

    def _init_callback(self) -> None:
        algorithm: Any = self.model
        if not isinstance(algorithm, OffPolicyAlgorithm | OnPolicyAlgorithm):
            raise ValueError(f"{type(algorithm).__name__} has no policy that is trained by gradients")
        kept = vars(algorithm).setdefault("plasticity", {})
        self._last = self.num_timesteps  # still those of the last step
        if (state := kept.get(self.name)) is not None and self._network is None:
            state = state.read() if isinstance(state, _State) else state
            self._load_state(state["training"])
            self._asked, self._last, self._is_late = state["asked"], state.get("timesteps", 0), state.get("late", False)
        self._set_model(algorithm.policy)
        if any(source.state_dict().keys() != target.state_dict().keys() for source, target in self._targets()):
            raise ValueError(f"{self.name} needs the same head of the target network too: target=…")
        kept[self.name] = self._kept = _State(self._whole_state)

    def _whole_state(self) -> dict[str, Any]:
        count = {"asked": self._asked, "timesteps": self.num_timesteps, "late": self._is_late}
        return {**count, "training": self._state()}

    def _on_training_start(self) -> None:
        algorithm: Any = self.model
        if algorithm.plasticity[self.name] is not self._kept:
            raise ValueError(f"two callbacks log as {self.name!r}: give one another name, name=…")
        if self.parent is not None:
            kind = type(self.parent).__name__
            raise ValueError(f"{kind} calls {self.name} within a rollout, where it never acts: put it beside {kind}")
        if self.num_timesteps < self._last:
            self._is_late |= self._is_due(self._last, math.inf)
        self._asked, self._logged = min(self._asked, self.num_timesteps), self.num_timesteps
        self._begun, self._first_event = False, self._event
        self._loop = _PolicyLoop(_optimizers_of(algorithm.policy), **self._offered(1), algorithm=algorithm)
        self._begin_with_data()

    def _begin_with_data(self) -> None:
        if self._begun or (self._needs_data and not self._loop.has_data):
            return
        self._begun = True
        note = ""
        if any(isinstance(each, AtFraction) for each in schedules_in(self._when)):
            end = self.locals["total_timesteps"]
            note = f"a fraction is of all {end} timesteps: to act in each of several learn() give EveryNSteps(n)"
        elif isinstance(self._method, EventMethod) and isinstance(self.model, OnPolicyAlgorithm):
            note = f"an event waits for the next rollout, of {self.model.n_steps * self.model.n_envs} timesteps"
        self._begin(self._loop, note)
        self._handles = [hook for group, part in self._parts for each in group for hook in self._around(each, part)]

    def _around(self, optimizer: Optimizer, part: Attached) -> list[Any]:
        """Call a method around each step of an optimizer in this `learn`; an exception may end it unnoticed."""
        algorithm, start = self.model, self.model.start_time

        def before(stepping: Optimizer, *_: Any) -> None:
            part.watching = algorithm.start_time == start
            if part.watching:
                part.before_step(stepping)

        def after(*_: Any) -> None:
            if part.watching:
                part.after_step()

        return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def _on_rollout_end(self) -> None:
        if isinstance(self.model, OnPolicyAlgorithm):
            self._loop.rollouts.append(_copy_of(self.model.rollout_buffer))
        self._begin_with_data()

    def _on_rollout_start(self) -> None:
        now, end = self.model.num_timesteps, self.locals["total_timesteps"]
        if now - self._logged >= self._log_every:
            self._logged = now
            self._record(self._metrics())
        if not self._begun:
            return
        if not (self._is_late or self._is_due(now, end)):
            self._asked = now
            return

        def follow() -> None:
            for source, target in self._targets() if self._method.changes_weights else ():
                target.load_state_dict(source.state_dict())
            self._asked, self._is_late = now, False

        values = self._act(f"timestep {now}", follow)
        if self._method.remakes_network:
            for each in _all_in(self.locals["callback"]):
                if isinstance(each, StopTrainingOnNoModelImprovement):
                    each.no_improvement_evals = 0
        self._record(values)

    def _is_due(self, now: int, end: float) -> bool:
        """Return whether the schedule is due at a timestep since the last check; `end`: number of all timesteps."""
        clocks = (
            Clock(0, step, epoch_start=False, progress=step / end, progress_before=(step - 1) / end)
            for step in range(self._asked + 1, now + 1)
        )
        return any(map(self._when.due, clocks))

    def _targets(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return pairs of a network of the policy and its target network."""
        parts = dict(self._network.named_children())
        return [(parts[name.removesuffix("_target")], part) for name, part in parts.items() if name.endswith("_target")]

    def _record(self, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.logger.record(key, value)

    def _on_step(self) -> bool:
        return True  # continue training

    def _on_training_end(self) -> None:
        self._close()
        if not self._had_no_event:
            return
        if self._is_late or self._is_due(self.num_timesteps, math.inf):  # not by a fraction, of more timesteps then
            data = "with data " if self._needs_data else ""
            say(f"{self.name} will act at the first rollout {data}of the next learn(): {self._when} is due.")
        else:
            say(f"{self.name} had no event in this learn(): {self._when} was not due at any of its rollouts.")


class _State:
    """A state that is read when it is pickled or copied, as a dict."""

    def __init__(self, read: Callable[[], dict[str, Any]]):
        self.read = read

    def __reduce__(self) -> Any:
        return dict, (self.read(),)


class _Enough(Exception):
    """Raised when each optimizer has its gradient."""


@dataclass(eq=False)
class _PolicyLoop(Loop):
    """The `Loop` of an algorithm: gradients are those of its own `train`."""

    algorithm: Any = None
    rollouts: deque[Any] = field(default_factory=lambda: deque(maxlen=1))  # the last one, from its end on
    title: str = ""  # name of the method

    @property
    def has_data(self) -> bool:
        """Whether there is data, as from the first update of a `learn` on."""
        if isinstance(self.algorithm, OnPolicyAlgorithm):
            return bool(self.rollouts)
        begun: bool = self.algorithm.num_timesteps > self.algorithm.learning_starts
        return begun and self.algorithm.replay_buffer.size() > 0

    def run(self, batches: int = 1) -> None:
        """Run the networks of the policy on some samples."""
        policy = self.algorithm.policy
        with undisturbed(policy):
            policy.set_training_mode(True)
            for data in self._samples(batches):
                if hasattr(data, "lstm_states"):
                    raise ValueError(f"{self.title} needs to run the policy, which is recurrent: not possible here")
                if hasattr(policy, "critic"):
                    policy.actor(data.observations)
                    policy.critic(data.observations, data.actions)
                else:
                    policy(data.observations)

    def _samples(self, batches: int) -> Iterator[Any]:
        algorithm = self.algorithm
        if isinstance(algorithm, OnPolicyAlgorithm):
            yield from islice(self.rollouts[-1].get(getattr(algorithm, "batch_size", None)), batches)
        else:
            env = algorithm.get_vec_normalize_env()
            yield from (algorithm.replay_buffer.sample(algorithm.batch_size, env=env) for _ in range(batches))

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradients that the optimizers would step with on each of some batches, before clipping."""
        if hasattr(self.algorithm, "line_search_max_iter"):  # TRPO: only its critic is stepped by an optimizer
            kind = type(self.algorithm).__name__
            raise ValueError(f"{self.title} needs gradients by which optimizers step, and {kind} uses a line search")
        optimizers, found, stepped = _optimizers_of(self.algorithm.policy), dict[Tensor, Tensor](), set[Optimizer]()

        def instead_of_step(optimizer: Optimizer) -> None:
            own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            found.update((p, p.grad.detach().clone()) for p in of if p in own and p.grad is not None)
            stepped.add(optimizer)
            if stepped.issuperset(optimizers):
                raise _Enough

        with undisturbed(self.algorithm.policy), self._without_steps(instead_of_step) as twin:
            for _ in range(batches):
                found.clear()
                stepped.clear()
                with suppress(_Enough):
                    if isinstance(twin, OnPolicyAlgorithm):
                        twin.train()
                    else:  # the actor may be trained in every second step
                        twin.train(gradient_steps=getattr(twin, "policy_delay", 1), batch_size=twin.batch_size)
                yield [found.get(p, torch.zeros_like(p)) for p in of]

    @contextmanager
    def _without_steps(self, instead_of_step: Callable[[Optimizer], None]) -> Iterator[Any]:
        """Context manager: a copy of the algorithm that trains the same policy without steps; this is restored."""
        policy, twin = self.algorithm.policy, copy.copy(self.algorithm)
        twin.set_logger(Logger(None, []))
        twin.max_grad_norm, twin.target_kl = math.inf, None
        if self.rollouts:
            twin.rollout_buffer = self.rollouts[-1]
        values = [(p, p.detach().clone(), p.grad) for p in policy.parameters()]
        names = "optimizer", "action_dist"  # the latter has the noise of exploration
        held = [(part, name, getattr(part, name)) for part in policy.modules() for name in names if hasattr(part, name)]
        for thing, name, value in [*held, *((twin, *item) for item in vars(twin).items())]:
            if isinstance(value, Optimizer):
                groups, step = [dict(group) for group in value.param_groups], partial(instead_of_step, value)
                setattr(thing, name, SimpleNamespace(param_groups=groups, zero_grad=value.zero_grad, step=step))
            elif thing is not twin:
                setattr(thing, name, copy.copy(value))
        try:
            yield twin
        finally:
            for part, name, value in held:
                setattr(part, name, value)
            for parameter, before, gradient in values:
                parameter.detach().copy_(before)
                parameter.grad = gradient

    def loss_function(self) -> Callable[[], Tensor]:
        """Raise a ValueError: an algorithm computes its loss within `train`."""
        raise ValueError("the loss cannot be computed at other weights here")


def _optimizers_of(policy: nn.Module) -> list[Optimizer]:
    found = (getattr(part, "optimizer", None) for part in policy.modules())
    return list(dict.fromkeys(each for each in found if isinstance(each, Optimizer)))


def _copy_of(buffer: Any) -> Any:
    """Copy a rollout buffer as far as `get` changes it, which flattens its arrays, also those in a dict."""
    copied = copy.copy(buffer)
    if isinstance(copied.observations, dict):
        copied.observations = dict(copied.observations)
    return copied


def _all_in(callback: Any) -> Iterator[Any]:
    """Yield a callback and all callbacks that it calls."""
    yield callback
    called = [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
    for each in (*getattr(callback, "callbacks", ()), *called):
        yield from () if each is None else _all_in(each)
