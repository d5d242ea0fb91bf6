"""FIRE and other methods in Stable-Baselines3."""

from collections.abc import Callable, Iterator, Sequence

from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from torch.optim import Optimizer

from lightning_fire.integrations.event import name_of, require_known_times
from lightning_fire.methods import Report, fire_
from lightning_fire.when import AtEpochs, AtFraction, AtNewData, Clock, EveryNEpochs, Schedule, one_schedule

__all__ = ["ReinitCallback"]


class ReinitCallback(BaseCallback):
    """Applies a method to the policy of an algorithm of Stable-Baselines3, when a schedule is due.

    A step of the schedule is a timestep of the environments. An event is between two updates, at the first rollout
    that begins at or after the step at which the schedule is due. Target networks (`q_net_target`, `critic_target`,
    `actor_target`) are then copied from the trained ones. The timesteps for which the schedule was checked are kept as
    `model.reinit_timesteps`, which `model.save` saves: a loaded model that continues with
    `reset_num_timesteps=False` neither loses nor repeats an event.

    Args:
        method: Function `method(model, optimizers=…)` that returns a `Report`: `fire_`, also with arguments, as
            `partial(fire_, where=Weights(preset="dqn"))`, or any other of `lightning_fire.methods`.
        when: Schedule in steps, or several of which any may be due. Default: `AtFraction(0.5)` (paper: reinforcement
            learning).
        verbose: 1: print the report of each event.

    Raises:
        ValueError: If the schedule waits for epochs, new data or a metric.

    Example:
        >>> callback = ReinitCallback()  # model.learn(total_timesteps=100_000, callback=callback)
    """

    def __init__(
        self,
        method: Callable[..., Report] = fire_,
        when: Schedule | Sequence[Schedule] | None = None,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        self._method, self._when = method, AtFraction(0.5) if when is None else one_schedule(when)
        require_known_times(self._when, unknown=(AtNewData, AtEpochs, EveryNEpochs))

    def _on_rollout_start(self) -> None:
        now, end = self.model.num_timesteps, self.locals["total_timesteps"]
        asked = min(now, getattr(self.model, "reinit_timesteps", 0))  # it counts from 0 again in another training
        self.model.reinit_timesteps = now
        clocks = (
            Clock(epoch=0, step=step, epoch_start=False, progress=step / end, progress_before=(step - 1) / end)
            for step in range(asked + 1, now + 1)
        )
        if not any(map(self._when.due, clocks)):
            return
        policy = self.model.policy
        report, name = self._method(policy, optimizers=list(_optimizers_of(policy))), name_of(self._method)
        for child, target in policy.named_children():
            if child.endswith("_target"):
                target.load_state_dict(getattr(policy, child.removesuffix("_target")).state_dict())
        for key, value in report.keyed(name, layers=False).items():
            self.logger.record(key, value)
        if self.verbose:
            print(f"{name} acted at timestep {now} ({report})")

    def _on_step(self) -> bool:
        return True  # continue training


def _optimizers_of(policy: nn.Module) -> Iterator[Optimizer]:
    for part in policy.modules():
        if isinstance(optimizer := getattr(part, "optimizer", None), Optimizer):
            yield optimizer
