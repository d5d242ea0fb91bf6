"""Base class of methods that reset a model to its initial values or to new random values."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import EventMethod
from lightning_fire.methods.initial_values import check_resettable, drawn_values, initial_of, tensors_of
from lightning_fire.where import Parameters
from lightning_fire.where.argument import checked
from lightning_fire.where.trained import UNTRAINED, leaves_out, why_not_trained


class ResetMethod(EventMethod):
    """Base class of methods with a target: the initial values, or with `fresh_seed` new random values."""

    measures_curvature: ClassVar[bool] = True
    fresh_seed: int | None

    @property
    def acts_on_shards(self) -> bool:
        """Whether it can act on sharded weights: not if layers draw new values, which are whole tensors."""
        return self.fresh_seed is None

    needs_initial_values = acts_on_shards

    def check(self, model: nn.Module, training: Loop) -> Sequence[str]:
        """Check that something is selected and, with `fresh_seed`, that its layers can draw it."""
        tensors, left_out = trained_tensors(model, training.trained(model), self.selection)
        if self.fresh_seed is not None:
            check_resettable(model, tensors.values())
        return left_out

    def target_values(self, model: nn.Module, training: Loop, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the values to reset some tensors to at this event, by name.

        Raises:
            ValueError: If a tensor had another shape when the model was new.
        """
        if self.fresh_seed is not None:
            check_resettable(model, tensors.values())
            return drawn_values(model, self.fresh_seed + training.event)
        values = initial_of(model, training)
        for name, tensor in tensors.items():
            if name in values and values[name].shape != tensor.shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, and had {tuple(values[name].shape)} when the model was"
                    " new, as a head that has grown: leave it out by `where`, or use fresh_seed=0"
                )
        return values


def trained_tensors(
    model: nn.Module, trained: Collection[Tensor] | None, where: Parameters | None = None
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that a reset changes, by name, and sentences on parameters that no optimizer trains.

    Without a selection these are the trained parameters and their buffers: a buffer belongs to the smallest enclosing
    submodule that has parameters.
    """
    tensors = tensors_of(model)
    if where is not None:
        selection = checked(where, Parameters()).select(model, trained)
        chosen = set(selection.values())
        found = {name: tensor for name, tensor in tensors.items() if tensor in chosen}
        return found, leaves_out(getattr(selection, "untrained", ()))
    reasons = {name: why_not_trained(parameter, trained) for name, parameter in model.named_parameters()}
    parts, follows = dict(model.named_modules(remove_duplicate=False)), dict[str, bool]()

    def is_trained(path: str) -> bool:
        if path not in parts:  # as the name of a tensor may have dots, of tensordict
            return is_trained(path.rpartition(".")[0])
        if path not in follows:
            own = [why_not_trained(parameter, trained) for parameter in parts[path].parameters()]
            follows[path] = not all(own) if own or not path else is_trained(path.rpartition(".")[0])
        return follows[path]

    found = {
        name: tensor
        for name, tensor in tensors.items()
        if (not reasons[name] if name in reasons else is_trained(name.rpartition(".")[0]))
    }
    return found, leaves_out([name for name, reason in reasons.items() if reason == UNTRAINED])
