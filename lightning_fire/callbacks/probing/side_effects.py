"""Run a module without side effects."""

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric

from lightning_fire._lightning import OWN_LINKS, attached_trainer, random_states, set_random_states
from lightning_fire._private import is_compiled
from lightning_fire.callbacks.probing.replayed import Replayed, is_iterator, recorded
from lightning_fire.methods.base.all_or_nothing import distinct, insist
from lightning_fire.methods.base.ignored_passes import ignored_passes, keeping_modes
from lightning_fire.methods.base.optimizers import with_inner

_OF_TORCH = set(vars(nn.Module())) - {"_parameters", "_buffers"}  # hooks and the like
_LIBRARIES = {"torch", "lightning", "lightning_fire", "pytorch_lightning", "torchmetrics", "numpy", "builtins"}
_LARGE = 2**20  # larger tensor and array attributes are not saved
_MANY = 1000  # larger containers, such as data sets, are not saved item by item

Restore = Callable[[], object]


def as_written(module: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Context manager: run a module without `torch.compile`, so that hooks registered after compiling run."""
    return torch.compiler.set_stance("force_eager") if is_compiled(module) else contextlib.nullcontext()


@contextlib.contextmanager
def without_side_effects(module: nn.Module) -> Iterator[None]:
    """Context manager: run a module, then restore random states, buffers, frozen parameters, metrics and attributes.

    Attributes are those of the module, of its submodules and of plain objects in them; of the Trainer and its callbacks
    only random generators, arrays and iterators. Items drawn from iterators are drawn again. Schedulers and the
    parameter groups of optimizers are restored. Logs are dropped. Trainable parameters are not restored.
    """
    trainer = attached_trainer(module)
    states, restores = random_states(), _restores_of(module)
    if trainer is not None:
        restores += _restores_of_trainer(trainer)
    loggers = [] if trainer is None else trainer.loggers
    if loggers:
        trainer.loggers = [DummyLogger() for _ in loggers]
    vars(module)["log"] = _drop

    @torch.no_grad()
    def restore_all() -> None:
        set_random_states(states)
        if loggers:
            trainer.loggers = loggers
        for restore in restores:
            restore()

    try:
        with ignored_passes(module):
            yield
    finally:
        insist(restore_all)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager: run a module in evaluation mode and without `torch.compile`."""
    with keeping_modes(module):
        module.eval()
        with as_written(module):
            yield


def _restores_of(module: nn.Module) -> list[Restore]:
    """Return functions that restore the current state of a module."""
    restores: list[Restore] = []
    seen: set[int] = set()
    for part in module.modules():
        _save_attributes(part, restores, seen, depth=3)
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    trainable = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    small = sum(parameter.numel() for parameter in frozen) <= 2 * trainable  # an EMA, not a large frozen model
    for tensor in [*(frozen if small else []), *module.buffers()]:
        _save_tensor(tensor, restores)
    return restores


def _restores_of_trainer(trainer: Any) -> list[Restore]:
    """Return functions that restore optimizers' groups, schedulers, and generators of a Trainer and its callbacks."""
    restores: list[Restore] = []
    seen: set[int] = set()
    for optimizer in with_inner(trainer.optimizers):
        for group in optimizer.param_groups:
            _save_container(group, restores, seen, depth=1, whole=False)
    for config in trainer.lr_scheduler_configs:
        _save_attributes(config.scheduler, restores, seen, depth=3)
    for thing in [trainer, *(each for each in trainer.callbacks if not _is_own(each))]:
        for name, value in list(vars(thing).items()):
            _record_iterator(vars(thing), name, restores)
            _save_state(value, restores)
    return restores


def _save(value: Any, restores: list[Restore], seen: set[int], depth: int, whole: bool) -> None:
    if value is None or isinstance(value, int | float | str) or _save_state(value, restores):
        return  # most attributes are of these
    if isinstance(value, Tensor):
        if (whole or value.numel() <= _LARGE) and not isinstance(value, nn.Parameter):
            _save_tensor(value, restores)
    elif isinstance(value, list | dict | set | deque):
        _save_container(value, restores, seen, depth, whole)
    elif isinstance(value, tuple) and len(value) <= _MANY and depth:
        for item in value:
            _save(item, restores, seen, depth - 1, whole)
    elif isinstance(value, LRScheduler):
        _save_attributes(value, restores, seen, depth=3)  # of several schedulers in one
    elif isinstance(value, nn.Module) or _is_users_object(value):
        _save_attributes(value, restores, seen, depth - 1)


def _save_state(value: Any, restores: list[Restore]) -> bool:
    """Save the state of a random generator or an array; return whether it is one."""
    if isinstance(value, np.random.Generator):
        value = value.bit_generator
    if isinstance(value, torch.Generator):
        restores.append(partial(value.set_state, value.get_state()))
    elif isinstance(value, np.random.BitGenerator):
        restores.append(partial(setattr, value, "state", value.state))
    elif isinstance(value, np.random.RandomState):
        restores.append(partial(value.set_state, value.get_state()))
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        restores.append(partial(value.setstate, value.getstate()))
    elif type(value) is np.ndarray:
        if value.size <= _LARGE and value.flags.writeable:
            restores.append(partial(np.copyto, value, value.copy()))
    else:
        return False
    return True


def _record_iterator(items: Any, key: Any, restores: list[Restore]) -> None:
    """Replace an item of a dict or list, if it is an iterator, by one that is rewound afterwards."""
    if is_iterator(items[key]):
        items[key] = replayed = recorded(items[key])
        restores.append(partial(_put_back, items, key, replayed))


def _put_back(items: Any, key: Any, replayed: Replayed) -> None:
    items[key] = replayed.rewound()


def _save_attributes(thing: Any, restores: list[Restore], seen: set[int], depth: int) -> None:
    if id(thing) in seen or depth == 0:
        return
    seen.add(id(thing))
    saved = dict(vars(thing))
    restores.append(partial(_refill, vars(thing), saved))
    skipped = {*(_OF_TORCH if isinstance(thing, nn.Module) else ()), *OWN_LINKS}
    for name, value in saved.items():
        if name not in skipped:
            _record_iterator(vars(thing), name, restores)
            _save(value, restores, seen, depth, whole=isinstance(thing, Metric))


def _save_container(value: Any, restores: list[Restore], seen: set[int], depth: int, whole: bool) -> None:
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    saved = value.copy()
    restores.append(partial(_refill, value, saved))
    if len(saved) <= _MANY:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            _record_iterator(value, key, restores)
        for item in list(saved.values() if isinstance(saved, dict) else saved):
            _save(item, restores, seen, depth - 1, whole)


def _save_tensor(tensor: Tensor, restores: list[Restore]) -> None:
    part = distinct(tensor)
    saved = part.clone()
    restores.append(lambda: part.copy_(saved))


def _refill(container: Any, saved: Any) -> None:
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(saved)


def _is_own(callback: Any) -> bool:
    """Return whether a callback is of this package, or derived from one, which may draw between measured gradients."""
    return any(kind.__module__.startswith("lightning_fire.") for kind in type(callback).__mro__)


def _is_users_object(value: Any) -> bool:
    """Return whether an object is of a class outside the libraries, such as a user's own EMA; False for optimizers."""
    of_library = type(value).__module__.split(".")[0] in _LIBRARIES
    return hasattr(value, "__dict__") and not isinstance(value, type | torch.optim.Optimizer) and not of_library


def _drop(*args: Any, **kwargs: Any) -> None:
    """Replacement of `LightningModule.log` that drops its arguments."""
