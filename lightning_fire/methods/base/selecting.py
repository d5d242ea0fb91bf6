"""Selection of the weights of a model that given optimizers train."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.methods.base.averages import averaged
from lightning_fire.methods.base.copies import copies_in
from lightning_fire.methods.base.optimizers import Optimizers, listed, parameters_of, resting
from lightning_fire.methods.base.several import class_of
from lightning_fire.methods.initial_values import tensors_of
from lightning_fire.where import Parameters, Weights, WeightView
from lightning_fire.where.argument import check_model, checked
from lightning_fire.where.selection import some
from lightning_fire.where.trained import UNTRAINED, leaves_out, trained, why_not_trained


@contextmanager
def trained_by(
    model: nn.Module, optimizers: Optimizers = (), paused: Collection[Tensor] = ()
) -> Iterator[list[Optimizer]]:
    """Context manager: selections take only what the optimizers of a model train.

    Args:
        model: Any module.
        optimizers: One or several. Without them every trainable parameter counts as trained.
        paused: Their parameters that count as trained although they are currently frozen.

    Yields:
        The optimizers as a list.

    Raises:
        TypeError: If the model is not a module, or an optimizer is not an optimizer.
        ValueError: If the optimizers train no parameter of the model.
    """
    check_model(model)
    given = listed(optimizers)
    stepped = parameters_of(given) if given else None
    parameters: list[Tensor] = list(model.parameters())
    if stepped is not None and not stepped.issuperset(parameters) and not stepped.issubset(parameters):
        stepped |= copies_in(given, parameters).keys()  # weights whose copies they step
    if stepped is not None:
        stepped -= resting(given)
    if of_averages := averaged(model):
        stepped = (set(parameters) if stepped is None else stepped) - of_averages
    if stepped is not None and parameters and stepped.isdisjoint(parameters):
        names = ", ".join(type(optimizer).__name__ for optimizer in given)
        raise ValueError(
            f"the given optimizers ({names}) train no parameter of {class_of(model)}: they belong to another"
            " model, or keep copies of its weights, which would undo a change"
        )
    with trained(stepped, paused):
        yield given


def select_weights(model: nn.Module, where: Weights | None, default: Weights) -> tuple[Sequence[WeightView], list[str]]:
    """Select weights; return them, and sentences on those left out."""
    where = checked(where, default)
    selection = where.select(model)
    missed = [view for view in selection if why_not_trained(view.parameter) == UNTRAINED]  # by a user's selection
    if missed and len(missed) == len(selection):
        raise ValueError(
            f"{where} selects no weight of {type(model).__name__}: {some([view.name for view in missed])}"
            f" {'is' if len(missed) == 1 else 'are'} {UNTRAINED}"
        )
    names = [*getattr(selection, "untrained", ()), *(view.name for view in missed)]
    taken = [view for view in selection if view not in missed] if missed else selection
    return taken, leaves_out(names, getattr(selection, "left_out", ()))


def trained_tensors(model: nn.Module, where: Parameters | None = None) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that a reset changes, by name, and the names of parameters that no optimizer trains.

    Without a selection these are the trained parameters and their buffers: a buffer belongs to the smallest enclosing
    submodule that has parameters.
    """
    tensors = tensors_of(model)
    if where is not None:
        selection = checked(where, Parameters()).select(model)
        chosen = set(selection.values())
        found = {name: tensor for name, tensor in tensors.items() if tensor in chosen}
        return found, list(getattr(selection, "untrained", ()))
    reasons = {name: why_not_trained(parameter) for name, parameter in model.named_parameters()}
    parts, follows = dict(model.named_modules(remove_duplicate=False)), dict[str, bool]()

    def is_trained(path: str) -> bool:
        if path not in follows:
            own = [why_not_trained(parameter) for parameter in parts[path].parameters()]
            follows[path] = not all(own) if own or not path else is_trained(path.rpartition(".")[0])
        return follows[path]

    return {
        name: tensor
        for name, tensor in tensors.items()
        if (not reasons[name] if name in reasons else is_trained(name.rpartition(".")[0]))
    }, [name for name, reason in reasons.items() if reason == UNTRAINED]
