"""Options of what the callbacks log."""

from dataclasses import dataclass

from lightning_fire.functional.checks import at_least
from lightning_fire.methods.base.report import check_name


@dataclass(frozen=True)
class Log:
    """Options of what a callback logs.

    Args:
        name: Prefix of the logged keys instead of the method's own, to distinguish two callbacks of one class.
        weights: Log deviation from isometry and squared Frobenius error of the weights at an event. This costs a copy
            of the weights and a few matrix products: disable it if events occur every few steps.
        layers: Also log each layer separately, and in TensorBoard histograms of its singular values before and after an
            event: `{name}.singular_values_before/…` and `…_after/…`.
        curvature: Log `{name}/lambda_max`, the largest eigenvalue of the Hessian of the loss on the first 8 samples of
            the current batch, before and after an event: 4 or 5 products with the Hessian each time, each of 2 to 3
            gradients. The loss is that of the module's `loss_on(batch)`, otherwise of `training_step`. Default: True
            for `FIRECallback`, `ShrinkAndPerturb`, `FullReset` and `DASH` if `weights` is True.
        validation_batches: Run the Trainer's validation on this many batches before and after an event that replaces
            weights, with all hooks of the module and of callbacks, and log its metrics: `val/accuracy` as
            `{name}/val_accuracy_before` and `…_after`. Not run without `weights`. Default: 0, never.

    Raises:
        ValueError: If `name` has a slash or `validation_batches` is negative.
    """

    name: str | None = None
    weights: bool = True
    layers: bool = True
    curvature: bool | None = None
    validation_batches: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        at_least(0, validation_batches=self.validation_batches)


def log_of(log: Log | None) -> Log:
    """Return the given options, `Log()` for None; raise a TypeError for anything else."""
    if log is not None and not isinstance(log, Log):
        raise TypeError(f"`log` must be a Log, such as Log(name='fire_2'), got {log!r}")
    return log or Log()
