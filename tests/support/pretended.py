"""A device that is not there: its tensors say that they are on `cuda`, and are computed on the CPU.

So values, and the branches that follow from them, are those of the CPU; what would wait for the device is recorded, and
what a device refuses raises an error. The autograd engine needs a driver for such tensors: a plain one stands in.
"""

import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import lightning_fire

aten = torch.ops.aten
_PACKAGE = str(Path(lightning_fire.__file__).parent)
_CPU = torch.device("cpu")
_READS = {  # the shape of the result, or a number, depends on the values
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
    "bincount",
}
_DECOMPOSES = "svd", "eig", "qr", "cholesky", "lu_factor", "inv", "solve", "lstsq"  # each reads whether it succeeded
_ANY_DEVICES = {"_to_copy", "copy_", "index", "index_put_", "_index_put_impl_", "set_"}
_NO_SCALARS = {
    "cat",
    "stack",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "dot",
    "mv",
}  # of the CPU beside them


class PretendedTensor(Tensor):
    """A tensor on a pretended device, with the tensor of the CPU that holds its values."""

    of_cpu: Tensor

    @staticmethod
    def __new__(cls, of_cpu: Tensor, device: torch.device) -> "PretendedTensor":
        tensor = Tensor._make_wrapper_subclass(
            cls,
            of_cpu.shape,
            strides=of_cpu.stride(),
            storage_offset=of_cpu.storage_offset(),
            dtype=of_cpu.dtype,
            device=device,
        )
        tensor.of_cpu = of_cpu.detach()
        return tensor

    def __init__(self, *_: Any) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.of_cpu} on {self.device}"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func} of a tensor of a pretended device after its end")


class PretendedGenerator(torch.Generator):
    """Stands in for `torch.Generator`: draws on the CPU, and says that it is on any device."""

    def __new__(cls, device: Any = "cpu") -> "PretendedGenerator":
        generator = super().__new__(cls, "cpu")
        generator.pretended = torch.device(device)
        return generator

    @property
    def device(self) -> torch.device:
        return self.pretended


class _OwnGenerators(TorchFunctionMode):
    """Raises an error where values are drawn by a generator of another device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if (generator := given.get("generator")) is not None:
            device = torch.device(given["device"]) if given.get("device") else args[0].device if args else _CPU
            if device.type != generator.device.type:
                raise RuntimeError(f"{func.__name__}: a generator of {generator.device} for {device}")
        return func(*args, **given)


class Pretended(FakeTensorMode):
    """Context manager: `cuda` devices are there.

    Attributes:
        waits: How often the host waits for a device to read from it or to copy, by the lines of the package.
        decompositions: How often it waits for a decomposition, such as of singular values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = Counter[str]()
        self.decompositions = Counter[str]()
        self._generators = defaultdict[torch.device, torch.Generator](lambda: torch.Generator("cpu").manual_seed(0))
        self._current = [0]
        self._contexts = ExitStack()

    @property
    def count(self) -> int:
        """The number of waits, but for decompositions."""
        return sum(self.waits.values())

    def forget(self) -> None:
        """Count from 0 again."""
        self.waits.clear()
        self.decompositions.clear()

    def __enter__(self) -> "Pretended":
        if torch.cuda.is_available():
            pytest.skip("a GPU is there, which nothing can stand in for: tests/gpu has its tests")
        cuda, generators = torch.cuda, self._generators

        @contextmanager
        def on(index: int) -> Iterator[None]:
            self._current.append(index)
            yield
            self._current.pop()

        def device(index: int | None = None) -> torch.device:
            return torch.device("cuda", self._current[-1] if index is None else index)

        for context in (
            mock.patch.object(cuda, "get_rng_state", lambda *index: generators[device(*index)].get_state()),
            mock.patch.object(cuda, "set_rng_state", lambda state, *index: generators[device(*index)].set_state(state)),
            mock.patch.object(cuda, "manual_seed", lambda seed: generators[device()].manual_seed(seed)),
            mock.patch.object(cuda, "device", on),
            mock.patch.object(torch.autograd, "grad", _gradients),
            mock.patch.object(Tensor, "backward", _backward),
            torch.backends.cudnn.flags(enabled=False),  # whose own operations the CPU has not
            mock.patch.object(torch, "Generator", PretendedGenerator),
            _OwnGenerators(),
            mock.patch.object(torch.__future__, "_overwrite_module_params_on_conversion", True),  # by `module.to`
        ):
            self._contexts.enter_context(context)
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._contexts.close()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves([args, kwargs]) if isinstance(leaf, Tensor)]
        there = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
        asked = kwargs.get("device")
        device = torch.device(asked) if asked is not None else there[0].device if there else _CPU
        if not there and device.type != "cuda":
            return func(*args, **kwargs)
        if device.type == "cuda":
            device = torch.device("cuda", self._current[-1] if device.index is None else device.index)
            kwargs |= {} if asked is None else {"device": _CPU}
        name = func._schema.name.removeprefix("aten::")
        self._check(name, tensors, there)
        self._record(name, args, kwargs, device)
        of_cpu, options = _on_the_cpu(args), {key: _on_the_cpu(value) for key, value in kwargs.items()}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            with self._random(device):
                result = func(*of_cpu, **options)
        else:
            result = func(*of_cpu, **options)
        if func._schema.is_mutable:
            return _written(func, args, kwargs)
        if name == "_to_copy" and any(result is each for each in of_cpu):
            result = result.clone()  # from one device to another
        return result if device.type != "cuda" else _on(device, result)

    def _check(self, name: str, tensors: Sequence[Tensor], there: Sequence[Tensor]) -> None:
        """Raise an error for tensors that are not on one device."""
        if name in _ANY_DEVICES or name.startswith("_foreach"):
            return
        others = {str(tensor.device) for tensor in tensors if tensor.ndim or name in _NO_SCALARS}
        if len(others | {str(tensor.device) for tensor in there}) > 1:
            raise RuntimeError(f"{name}: expected all tensors to be on one device, found {sorted(others)}")

    def _record(self, name: str, args: Any, kwargs: Any, device: torch.device) -> None:
        if any(word in name for word in _DECOMPOSES) and "linalg" in name:
            self.decompositions[_place(name)] += 1
            return
        other = args[1].device if name == "copy_" else device
        copies = name in ("_to_copy", "copy_") and _CPU in (args[0].device, other)
        blocks = not kwargs.get("non_blocking") and (len(args) < 3 or args[2] is not True)
        indexes = name in ("index", "index_put_", "_index_put_impl_")
        if name in _READS or (copies and blocks) or (indexes and _reads_indices(args)):
            self.waits[_place(name)] += 1

    @contextmanager
    def _random(self, device: torch.device) -> Iterator[None]:
        """Draw from the generator of a pretended device instead of that of the CPU."""
        of_cpu, own = torch.default_generator.get_state(), self._generators[device]
        torch.default_generator.set_state(own.get_state())
        yield
        own.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(of_cpu)


def _on_the_cpu(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_on_the_cpu(each) for each in value]
    return value.of_cpu if isinstance(value, PretendedTensor) else value


def _on(device: torch.device, result: Any) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_on(device, each) for each in result)
    return PretendedTensor(result, device) if isinstance(result, Tensor) else result


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the arguments that an operation has written into, as it returns them."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    written = [
        given[argument.name]
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    returned = len(func._schema.returns)
    return None if not returned else written[0] if returned == 1 else tuple(written)


def _reads_indices(args: Any) -> bool:
    """Return whether an index is a mask, whose entries are counted, or is copied from the CPU."""
    masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
    fills = len(args) > 2 and len(args[1]) == 1 and args[2].numel() == 1  # without a count
    return any(index is not None and index.device == _CPU for index in args[1]) or bool(masks and not fills)


def _place(name: str) -> str:
    frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(_PACKAGE)]
    lines = (f"{frame.filename.removeprefix(_PACKAGE)[1:]}:{frame.lineno}" for frame in reversed(frames[-3:]))
    return f"{name} @ {' < '.join(lines)}"


_grad, _real_backward = torch.autograd.grad, Tensor.backward


def _gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    **kwargs: Any,
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad`, of a pretended device by `_reverse`."""
    roots = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    if not any(isinstance(root, PretendedTensor) for root in roots):
        return _grad(outputs, inputs, grad_outputs, retain_graph, create_graph, **kwargs)
    seeds = [None] * len(roots) if grad_outputs is None else list(tree_leaves([grad_outputs]))
    edges = [get_gradient_edge(each) for each in ([inputs] if isinstance(inputs, Tensor) else inputs)]
    found: dict[Any, Tensor | None] = {(edge.node, edge.output_nr): None for edge in edges}

    def visit(node: Any, gradients: list[Tensor | None]) -> None:
        for number, gradient in enumerate(gradients):
            if (node, number) in found:
                found[node, number] = gradient

    with torch.set_grad_enabled(create_graph):
        _reverse(roots, seeds, visit)
    values = tuple(found[edge.node, edge.output_nr] for edge in edges)
    if not kwargs.get("allow_unused") and None in values:
        raise RuntimeError("One of the differentiated Tensors appears to not have been used in the graph")
    return values


def _backward(tensor: Tensor, gradient: Tensor | None = None, *args: Any, **kwargs: Any) -> None:
    """`Tensor.backward`, of a pretended device by `_reverse`."""
    if not isinstance(tensor, PretendedTensor):
        _real_backward(tensor, gradient, *args, **kwargs)
        return

    def visit(node: Any, gradients: list[Tensor | None]) -> None:
        leaf = getattr(node, "variable", None)
        if leaf is not None and gradients[0] is not None:
            leaf.grad = gradients[0].detach().clone() if leaf.grad is None else leaf.grad + gradients[0].detach()

    with torch.no_grad():
        _reverse([tensor], [gradient], visit)


def _reverse(roots: Sequence[Tensor], seeds: Sequence[Any], visit: Callable[[Any, list[Tensor | None]], None]) -> None:
    """Go back through a graph: each node after all that depend on it, with the gradients of its outputs."""
    edges = [get_gradient_edge(root) for root in roots]
    waiting, seen, stack = Counter[Any](), set[Any](), [edge.node for edge in edges]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        after = [following for following, _ in node.next_functions if following is not None]
        waiting.update(after)
        stack += after
    sums = defaultdict[Any, dict[int, Tensor]](dict)

    def add(node: Any, number: int, gradient: Tensor | None) -> None:
        if gradient is not None:
            expected = node._input_metadata[number]
            gradient = gradient.sum_to_size(expected.shape).to(expected.dtype)
            sums[node][number] = sums[node][number] + gradient if number in sums[node] else gradient

    for root, edge, seed in zip(roots, edges, seeds, strict=True):
        add(edge.node, edge.output_nr, torch.ones_like(root) if seed is None else seed)
    ready = list(dict.fromkeys(edge.node for edge in edges if not waiting[edge.node]))
    while ready:
        node = ready.pop()
        gradients = sums.pop(node, {})
        number = max(gradients, default=0) + 1
        values = [gradients.get(index) for index in range(number)]
        visit(node, values)
        if hasattr(node, "variable"):
            continue
        results = node(*values) if gradients else [None] * len(node.next_functions)
        results = results if isinstance(results, tuple | list) else (results,)
        for (following, index), result in zip(node.next_functions, results, strict=True):
            if following is not None:
                add(following, index, result)
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)
