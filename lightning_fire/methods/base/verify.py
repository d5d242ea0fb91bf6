"""Verify after the next optimizer steps that changed weights are not back at their old values."""

import inspect
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lightning_fire._private import step_hooks
from lightning_fire.distributed import local
from lightning_fire.methods.base.optimizers import Optimizers, parameters_of, with_inner
from lightning_fire.methods.base.transfers import read

_ENTRIES = 256  # entries compared per weight: those of _LOOKED_AT that changed most
_LOOKED_AT = 16_384
_FEWEST = 16  # an ordinary step may bring a few entries back by chance
_NEAR = 0.5  # a move over at least this fraction of the way back counts as undone
_SAME = 1e-2  # at most this fraction of the way is left if values were restored
_FAR = 4  # times the length of a step
_LOOKS = 10  # optimizer steps of a weight that does not move
_STEPS = 1000  # after which the check ends in any case

_waiting: list["Verification"] = []


@dataclass(eq=False)
class _Sample:
    """Entries of a weight, float32 (n,), on its device: old, new, and as last read."""

    name: str
    weight: "weakref.ref[Tensor]"
    positions: Tensor
    old: Tensor
    new: Tensor
    last: Tensor
    way: Tensor  # norm of the last move, if it led back, else 0
    looks: int = 0
    steps: int = 0  # steps that have moved it

    def read(self) -> Tensor:
        """Return the present entries."""
        weight = self.weight()
        return self.last if weight is None else _entries(weight)[self.positions].float()

    def is_back(self, now: Tensor, near: float = 1 - _NEAR) -> Tensor:
        """Return, as a bool tensor, whether entries have left the last ones and are near the old ones."""
        whole, rest = (_norm(value - self.old) for value in (self.new, now))
        return (rest < near * whole) & self.differ(now)

    def is_far(self, optimizer: Optimizer) -> Tensor:
        """Return, as a bool tensor, whether old and new entries are further apart than a normal step."""
        weight, step = self.weight(), torch.ones_like(self.new)
        gradient = None if weight is None else weight.grad
        if gradient is not None and not gradient.is_sparse:
            step = torch.maximum(step, _entries(gradient)[self.positions].float().abs())
        rate = max((group.get("lr", 0.0) for group in optimizer.param_groups), default=0.0)
        return _norm(self.new - self.old) > _FAR * rate * _norm(step)

    def stays(self, now: Tensor) -> Tensor:
        """Return, as a bool tensor, whether entries were led back by the last move and now move far less."""
        return self.is_back(now) & (_norm(now - self.last) < self.way / _FAR)

    def differ(self, now: Tensor) -> Tensor:
        """Return, as a bool tensor, whether entries have left the last ones."""
        return (now != self.last).any()


class Verification:
    """Raises an error if changed weights are back at their old values before, in or after the next step.

    Some entries of each weight are compared at the start and end of the first two steps that move it. A change is
    undone by an optimizer that steps copies of the weights, or by a loop that copies an average, a checkpoint or such
    copies into the model. Old values at the start of the first step mean that the weights were overwritten. Old values
    at its end could come from an ordinary step; they count as undone if the move is longer than gradient and learning
    rate explain, or if the second step is much shorter than the first. Torch's optimizers step the weights themselves
    and undo nothing, though LBFGS may reach the old weights.

    Args:
        values: New values by tensor; the tensors still hold the old ones.
        names: Names of tensors; others are not verified.
        optimizers: Those that train the model. Default: every optimizer that holds one of the tensors.
    """

    def __init__(
        self,
        values: Mapping[Tensor, Tensor] | None = None,
        names: Mapping[Tensor, str] | None = None,
        optimizers: Optimizers = (),
    ):
        self.samples = [
            sample
            for tensor, new in (values or {}).items()
            if tensor in (names or {}) and (sample := _sample((names or {})[tensor], tensor, new))
        ]
        self._optimizers = list(optimizers) if isinstance(optimizers, Sequence) else with_inner(optimizers)
        self._handles: list[Any] = []  # two for each optimizer, before and after its steps
        self.hooked: dict[int, Optimizer] = {}
        self._held: set[_Sample] = set()
        self._steps = 0
        self._seen: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._flags: list[tuple[_Sample, str, Tensor]] = []

    def begin(self) -> None:
        """Start the check at the next step of the weights, replacing an earlier check of them. Idempotent."""
        if self._handles or not self.samples:
            return
        hooked = {id(step_hooks(each)): each for each in with_inner(self._optimizers) if step_hooks(each) is not None}
        if self._optimizers and not hooked:
            return  # of another library
        own = {sample.weight() for sample in self.samples}
        for other in list(_waiting):  # one per optimizer: only the last hook can be removed while hooks run
            kept = [sample for sample in other.samples if sample.weight() not in own]
            if hooked.keys() == other.hooked.keys() or not hooked.keys().isdisjoint(other.hooked):
                self.samples, kept, hooked = [*self.samples, *kept], [], other.hooked | hooked
            other.samples = kept
            other.close(unless_waiting=True)
        self._optimizers, self.hooked = [], hooked
        held = parameters_of(list(hooked.values()))
        self._held = {sample for sample in self.samples if sample.weight() in held}
        for each in hooked.values():
            self._handles += [each.register_step_pre_hook(self._before), each.register_step_post_hook(self._after)]
        if not hooked:
            self._handles = [
                register_optimizer_step_pre_hook(self._before),
                register_optimizer_step_post_hook(self._after),
            ]
        _waiting.append(self)

    def close(self, unless_waiting: bool = False) -> None:
        """End the check; with `unless_waiting`, only if no weight is left to verify."""
        self.samples = [s for s in self.samples if unless_waiting and s.weight() is not None]
        if self.samples:
            return
        for handle in self._handles:
            handle.remove()
        self._handles, self.hooked, self._held, self._flags = [], {}, set(), []
        if self in _waiting:
            _waiting.remove(self)

    def __reduce__(self) -> Any:
        return Verification, ()  # copies and pickles of an optimizer check nothing

    def _of(self, optimizer: Optimizer) -> list[tuple[_Sample, bool]]:
        """Return the samples to compare in a step, and whether the optimizer holds their weights.

        In its first two steps it may also turn out to hold copies of weights that it does not hold itself.
        """
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        found = [(sample, id(sample.weight()) in held) for sample in self.samples]
        if not all(is_held for _, is_held in found):
            self._seen[optimizer] = self._seen.get(optimizer, 0) + 1
            if self._seen[optimizer] > 4:  # before and after a step
                return [(sample, True) for sample, is_held in found if is_held]
        return found

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        for handle in self._handles[1::2]:
            handle.hooks_dict_ref().move_to_end(handle.id)  # from where `_after` can remove it
        if not (own := self._of(optimizer)) or _is_capturing():
            return
        for sample, _held in own:
            now = sample.read()
            # A user's method may continue after an event and end near the old values by chance; later a loop may copy
            # into the weights values that were stepped elsewhere.
            back = sample.is_back(now) & sample.is_far(optimizer) if self._steps else sample.is_back(now, _SAME)
            self._flags.append((sample, "after" if self._steps else "before", back))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        plain = _is_plain(optimizer)
        own = [
            (sample, held)
            for sample, held in self._of(optimizer)
            if not (held and plain and getattr(sample.weight(), "grad", None) is None)
        ]
        self._steps += 1
        if own and not _is_capturing():
            self._look(optimizer, own, plain)
        lasts = not self.hooked or self._seen.get(optimizer, 0) <= 4
        self.samples = [
            sample
            for sample in self.samples
            if sample.steps < 2 and sample.looks < _LOOKS and self._steps < _STEPS and (lasts or sample in self._held)
        ]
        self.close(unless_waiting=True)

    def _look(self, optimizer: Optimizer, own: Sequence[tuple[_Sample, bool]], plain: bool) -> None:
        now = [sample.read() for sample, _ in own]
        moved = [sample.differ(value) for (sample, _), value in zip(own, now, strict=True)]
        for (sample, held), value in zip(own, now, strict=True):
            if not (held and plain):
                back = sample.is_back(value)
                self._flags.append((sample, "in", (back & sample.is_far(optimizer)) | sample.stays(value)))
                sample.way = torch.where(back, _norm(value - sample.last), 0.0)
        for (sample, held), value, has_moved in zip(own, now, self._decide(optimizer, moved), strict=True):
            sample.last = value
            sample.steps += has_moved
            sample.looks += held

    def _decide(self, optimizer: Optimizer, others: Sequence[Tensor] = ()) -> list[bool]:
        """Raise an error if a weight is back at its old values; return the values of other flags. One device wait."""
        flags, self._flags = self._flags, []
        values = read([*(flag for *_, flag in flags), *others])
        if found := [(s, time) for (s, time, _), value in zip(flags, values[: len(flags)], strict=True) if value]:
            names = list(dict.fromkeys(sample.name for sample, _ in found))
            time = found[0][1]
            self.close()
            raise RuntimeError(_message(names, time, type(optimizer).__name__))
        return values[len(flags) :]


def _message(names: Sequence[str], time: str, optimizer: str) -> str:
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    causes = {
        "in": f"{optimizer} steps from copies of its own, such as float32 master weights. Re-create the optimizer"
        " after the event, or copy the weights of the model into its copies",
        "before": "They have been overwritten since the event: by a checkpoint or a state_dict that was loaded, by an"
        " average that was swapped in, or by a trainer that keeps copies of the weights. To try an event and reject it,"
        " act on a copy: `trial = copy.deepcopy(model)`",
        "after": "They are overwritten after a step: by copies from which the loop steps, such as float32 master"
        " weights, by an average that was swapped in, or by a checkpoint that was loaded",
    }
    verb = "is back at its" if len(names) == 1 else "are back at their"
    place = "before" if time == "before" else "after"
    return f"an event has been undone: {some} {verb} old values {place} the next step of {optimizer}. {causes[time]}."


def _sample(name: str, tensor: Tensor, new: Tensor) -> _Sample | None:
    """Sample a weight; None if too few of its entries can be compared."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return None
    before, after = _entries(tensor).float(), _entries(new).to(tensor.device).float()
    if before.numel() < _FEWEST:
        return None
    rounding = 8 * torch.finfo(tensor.dtype).eps
    distance = (after - before).abs()
    distance = torch.where(distance > rounding * torch.maximum(after.abs(), before.abs()), distance, 0)
    positions = distance.topk(min(_ENTRIES, len(distance))).indices
    old, after = before[positions], after[positions]
    # With too few changed entries `old` is NaN, so that no comparison is true.
    enough = (distance > 0).sum() >= _FEWEST
    return _Sample(
        name, weakref.ref(tensor), positions, torch.where(enough, old, torch.nan), after, after, after.new_zeros(())
    )


def _entries(tensor: Tensor) -> Tensor:
    """Return entries at fixed positions, spread over rows and columns by an odd stride."""
    own = local(tensor)
    own = torch.view_as_real(own) if own.is_complex() else own
    return own.reshape(-1)[:: own.numel() // _LOOKED_AT | 1]


def _norm(entries: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(entries)
    return length


def _is_plain(optimizer: Optimizer) -> bool:
    """Return whether an optimizer steps the weights themselves: torch's own `step`, without hooks of others."""
    hooks = (getattr(hook, "__self__", None) for hook in (step_hooks(optimizer) or {}).values())
    step = inspect.unwrap(type(optimizer).step)
    known = step.__module__.startswith(("torch.optim.", "lightning_fire.optim."))
    return known and all(isinstance(owner, Verification) for owner in hooks)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
