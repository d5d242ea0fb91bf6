"""Whether weights that are reset step as in a new optimizer, for every optimizer of the libraries that are installed.

    python -m tests.optimizers_of_libraries [LIBRARY ...]     # `make test-optimizers` installs all and checks

Each optimizer trains three weights for 30 steps with random gradients, an event replaces one weight or all, and its
next two steps are compared with those of a new optimizer: `equal` (to 1 %), or `warned` of. It is an error if they
differ without a warning, or if the event or the next step fails. The table goes to docs/optimizers.csv.
"""

import argparse
import contextlib
import csv
import importlib
import inspect
import io
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from lightning_fire.methods import drop_state

LIBRARIES = {  # module: distribution
    "torch.optim": "torch",
    "timm.optim": "timm",
    "pytorch_optimizer": "pytorch_optimizer",
    "torch_optimizer": "torch-optimizer",
    "schedulefree": "schedulefree",
    "heavyball": "heavyball",
    "bitsandbytes.optim": "bitsandbytes",
    "lion_pytorch": "lion-pytorch",
    "prodigyopt": "prodigyopt",
}
SHAPES = ((64, 64), (48, 32), (64,))  # the first is large enough for 8-bit codes
Build = Callable[[Any, list[nn.Parameter]], Optimizer]
BUILDS: list[Build] = [
    lambda kind, weights: kind(weights, lr=1e-2),
    lambda kind, weights: kind(weights),
    lambda kind, weights: kind(weights, lr=1e-2, momentum=0.9),
    lambda kind, weights: kind([each for each in weights if each.ndim > 1], lr=1e-2),
    lambda kind, weights: kind(
        [
            {"params": [each for each in weights if each.ndim > 1], "use_muon": True},
            {"params": [each for each in weights if each.ndim < 2], "use_muon": False},
        ]
    ),
    lambda kind, weights: kind(Adam(weights, lr=1e-2)),
    lambda kind, weights: kind(SGD(weights, lr=1e-2)),
    lambda kind, weights: kind(weights, Adam, lr=1e-2),
    lambda kind, weights: kind(weights, num_iterations=1000, lr=1e-2),
    lambda kind, weights: kind(weights, num_data=100),
]


def optimizers_of(library: str) -> Iterator[tuple[str, Any]]:
    """Return the names and classes of a library that are optimizers, wrappers among them."""
    module = importlib.import_module(library)
    for name, kind in sorted(vars(module).items()):
        is_wrapper = inspect.isclass(kind) and name.startswith("ScheduleFreeWrapper")
        if is_wrapper or (inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer):
            yield name, kind


def new_weights(values: list[Tensor] | None = None) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    values = values or [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [nn.Parameter(value.detach().clone()) for value in values]


def step(optimizer: Any, weights: list[nn.Parameter], seed: int, with_graph: bool) -> None:
    """Step with gradients that depend on the seed, with a graph for optimizers that use second derivatives."""
    torch.manual_seed(seed)
    gradients = [torch.randn_like(weight) for weight in weights]
    sparse = "Sparse" in type(optimizer).__name__

    def closure() -> Tensor:
        if with_graph:
            loss = sum((g * w.square() / 2).sum() for g, w in zip(gradients, weights, strict=True))
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights, create_graph=True), strict=True):
                weight.grad = gradient
            return loss
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.to_sparse() if sparse else gradient.clone()
        return torch.ones(())

    with torch.enable_grad():
        closure()
        optimizer.step(closure)


def made(build: Build, kind: Any, weights: list[nn.Parameter]) -> Any:
    optimizer = build(kind, weights)
    if callable(train := getattr(optimizer, "train", None)):
        train()
    return optimizer


def way_of(kind: Any) -> tuple[Build, bool]:
    """Return how to make an optimizer that trains, and whether its gradients need a graph."""
    problems = []
    for with_graph in (False, True):
        for build in BUILDS:
            weights = new_weights()
            try:
                optimizer = made(build, kind, weights)
                before = [weight.detach().clone() for weight in weights]
                for seed in range(8):
                    step(optimizer, weights, seed, with_graph)
                if not all(weight.isfinite().all() for weight in weights):
                    raise RuntimeError("has no finite weights after 8 steps")
                if all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True)):
                    raise RuntimeError("has not moved in 8 steps")
                return build, with_graph
            except Exception as error:
                problems.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    raise LookupError(problems[0])


def outcome(kind: Any, build: Build, with_graph: bool, every: bool) -> str:
    """Return what became of the replaced weights, in capitals if it is wrong.

    `equal`: they step as in a new optimizer. `counts on`: their state is that of a new one, and a count for
    several parameters continues. `warned`: the initial state is not known, which a warning says.
    """
    weights = new_weights()
    optimizer = made(build, kind, weights)
    for seed in range(30):
        step(optimizer, weights, seed, with_graph)
    replaced = weights if every else weights[:1]
    with torch.no_grad():
        for weight in replaced:
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    starts = [weight.detach().clone() for weight in replaced]
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            drop_state(optimizer, None if every else replaced)
        copies = new_weights([weight.data for weight in weights])
        new = made(build, kind, copies)
        of_new = all(
            same_state(optimizer.state.get(one, {}), new.state.get(other, {}))
            for one, other in zip(replaced, copies, strict=False)
        )
        for seed in (100, 101):
            step(optimizer, weights, seed, with_graph)
            step(new, copies, seed, with_graph)
    except Exception as error:
        refused = str(error).startswith("`optimizers` must be")
        return "refused" if refused else f"FAILED: {type(error).__name__}: {error}"
    if any(type(optimizer).__name__ in str(each.message) for each in told):
        return "warned"
    pairs = zip(replaced, copies, starts, strict=False)
    is_equal = all(bool((one - other).norm() <= 0.01 * (other - start).norm() + 1e-9) for one, other, start in pairs)
    return "equal" if is_equal else "counts on" if of_new else "DIFFERENT"


def same_state(one: Any, other: Any) -> bool:
    """Return whether two states of a parameter have equal keys and tensors."""
    tensors = [(value, other.get(key)) for key, value in one.items() if isinstance(value, Tensor)]
    return one.keys() == other.keys() and all(isinstance(b, Tensor) and torch.equal(a, b) for a, b in tensors)


def results_of(library: str) -> dict[tuple[str, str], list[str]]:
    """Return the names of optimizers by their outcomes, of one weight and of all."""
    results = defaultdict(list)
    for name, kind in optimizers_of(library):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                way = way_of(kind)
            except LookupError as error:
                results["not tried", str(error)[:80]].append(name)
                continue
            found = outcome(kind, *way, every=False), outcome(kind, *way, every=True)
        results[found].append(name)
    return results


def main() -> int:
    """Print the table; return 1 if an optimizer differs without a warning, or fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(LIBRARIES)}; default: all")
    chosen = parser.parse_args().libraries or list(LIBRARIES)
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # of heavyball, whose compilation takes minutes
    warnings.simplefilter("ignore")
    totals, failed = defaultdict(int), False
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["library", "one weight reset", "all reset", "number", "optimizers"])
    for library in chosen:
        title = f"{LIBRARIES[library]} {version(LIBRARIES[library])}"
        for (one, every), names in sorted(results_of(library).items()):
            table.writerow([title, one, every, len(names), ", ".join(names)])
            sys.stdout.flush()
            totals[one if one == "not tried" else f"{one}, {every}"] += len(names)
            failed |= (one + every).lower() != one + every and one != "not tried"
    print(f"\n{sum(totals.values())} optimizers: " + ", ".join(f"{number} {what}" for what, number in totals.items()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
