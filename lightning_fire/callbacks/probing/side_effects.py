"""Run a module only for somebody to look, and put everything back as it was."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_fire._lightning import OWN_LINKS, attached_trainer, is_compiled, random_states, set_random_states
from lightning_fire.methods.change import to_the_end
from lightning_fire.methods.unit_reset import ignored_passes

_OWN_OF_MODULES = set(vars(nn.Module())) - {"_parameters", "_buffers"}  # hooks and the like
_FOREIGN = {"torch", "lightning", "lightning_fire", "pytorch_lightning", "torchmetrics", "numpy", "builtins"}
_LARGE = 2**20

Restore = Callable[[], None]


def as_written(module: nn.Module) -> contextlib.AbstractContextManager:
    """Run a module without `torch.compile`: what is compiled does not see hooks that came later."""
    return torch.compiler.set_stance("force_eager") if is_compiled(module) else contextlib.nullcontext()


@contextlib.contextmanager
def leaving_no_trace(module: nn.Module) -> Iterator[None]:
    """Put a module and the random states back at the end as they were; drop what is logged in between.

    Put back are buffers, frozen parameters, metrics, and the attributes of the module, its parts and of plain objects
    that they hold: numbers, tensors, lists, sets and dictionaries. Trainable parameters are left as they become.
    """
    states, restores = random_states(), _restores_of(module)
    trainer = attached_trainer(module)
    loggers = [] if trainer is None else trainer.loggers
    if loggers:
        trainer.loggers = [DummyLogger() for _ in loggers]
    vars(module)["log"] = _drop

    @torch.no_grad()
    def put_back() -> None:
        set_random_states(states)
        if loggers:
            trainer.loggers = loggers
        for restore in restores:
            restore()

    try:
        with ignored_passes():
            yield
    finally:
        to_the_end(put_back)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run a module as one plain function: in evaluation mode, without `torch.compile`."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with as_written(module):
            yield
    finally:
        for part, training in modes:
            if type(part).train is not nn.Module.train:
                part.train(training)  # it may do more than set the flag
        for part, training in modes:
            part.training = training


def _restores_of(module: nn.Module) -> list[Restore]:
    """Return what to call, to have everything as it is now."""
    restores: list[Restore] = []
    seen: set[int] = set()
    for part in module.modules():
        _save_object(part, restores, seen, depth=3)
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    trainable = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    if sum(parameter.numel() for parameter in frozen) <= 2 * trainable:  # a moving average, not a large frozen model
        for parameter in frozen:
            _save_tensor(parameter.detach(), restores)
    for buffer in module.buffers():
        _save_tensor(buffer, restores)
    return restores


def _save_object(thing: Any, restores: list[Restore], seen: set[int], depth: int) -> None:
    """Save the attributes of an object, and what they hold."""
    if id(thing) in seen or depth == 0:
        return
    seen.add(id(thing))
    names, copied = vars(thing), dict(vars(thing))

    def restore() -> None:
        names.clear()
        names.update(copied)

    restores.append(restore)
    skipped = {*(_OWN_OF_MODULES if isinstance(thing, nn.Module) else ()), *OWN_LINKS}
    for name, value in copied.items():
        if name not in skipped:
            _save(value, restores, seen, depth, whole=isinstance(thing, Metric))


def _save(value: Any, restores: list[Restore], seen: set[int], depth: int, whole: bool) -> None:
    if isinstance(value, Tensor):
        if (whole or value.numel() <= _LARGE) and not isinstance(value, nn.Parameter):
            _save_tensor(value, restores)
    elif isinstance(value, list | dict | set | deque):
        _save_container(value, restores, seen, depth, whole)
    elif isinstance(value, nn.Module) or _is_plain(value):
        _save_object(value, restores, seen, depth - 1)


def _is_plain(value: Any) -> bool:
    """Tell an object of the user's own, such as a running average, from those of the libraries."""
    foreign = type(value).__module__.split(".")[0] in _FOREIGN
    return hasattr(value, "__dict__") and not isinstance(value, type) and not foreign


def _save_container(value: Any, restores: list[Restore], seen: set[int], depth: int, whole: bool) -> None:
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    copied = value.copy()

    def restore() -> None:
        value.clear()
        (value.extend if isinstance(value, list | deque) else value.update)(copied)

    restores.append(restore)
    if len(copied) <= 1000:  # not the samples of a data set
        for item in list(copied.values()) if isinstance(copied, dict) else list(copied):
            _save(item, restores, seen, depth - 1, whole)


def _save_tensor(tensor: Tensor, restores: list[Restore]) -> None:
    copied = tensor.detach().clone()

    def restore() -> None:
        tensor.detach().copy_(copied)

    restores.append(restore)


def _drop(*args: Any, **kwargs: Any) -> None:
    """Stand in for `LightningModule.log`."""
