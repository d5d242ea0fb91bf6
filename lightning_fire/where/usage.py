"""Use of parameters in matrix products by modules of other libraries, read from the source of their classes."""

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

from torch import nn

CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "contiguous"}
PRODUCTS = {"linear": 1, "matmul": 1, "mm": 1, "bmm": 1, "addmm": 2, "baddbmm": 2}  # position of the weight
_LAST_TWO = ({-2, -1}, {1, 2})


class Usage(NamedTuple):
    """Use of a parameter in a matrix product.

    Attributes:
        layout: `out_in` for `F.linear(x, w)` and the like, `in_out` for `x @ w` and the like.
        indexed: Whether `w` is one item of the parameter, such as the weight of one expert.
    """

    layout: Literal["out_in", "in_out"]
    indexed: bool


class _Scope(NamedTuple):
    """Names in a method: that of the module (`self`), and local names that are assigned once."""

    module: str
    local: Mapping[str, ast.expr]


def usages(kind: type) -> Mapping[str, Usage]:
    """Return the uses by name of the parameters that a class uses in matrix products, always in the same way.

    Recognized are products with the parameter itself, an item of it or of a list of parameters, a cast, or its
    transpose, also through a local name. Other values computed from it, such as a normalized or scaled weight, do not
    count.

    Example:
        >>> usages(nn.Linear)
        {'weight': Usage(layout='out_in', indexed=False)}
    """
    return _usages(kind)


@cache
def _usages(kind: type) -> Mapping[str, Usage]:
    found: dict[str, set[Usage]] = {}
    for method in methods_of(kind):
        scope = _scope(method)
        for node in ast.walk(method):
            for operand, layout in _operands(node, scope):
                name, usage = _parameter(operand, layout, scope)
                if name:
                    found.setdefault(name, set()).add(usage)
    return {name: next(iter(ways)) for name, ways in found.items() if len(ways) == 1}


def _scope(method: ast.FunctionDef) -> _Scope:
    arguments = [argument.arg for argument in [*method.args.posonlyargs, *method.args.args]]
    nodes = list(ast.walk(method))
    stored = Counter([*arguments, *(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))])
    local: dict[str, ast.expr] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if stored[name] == 1:
                local[name] = value
            case ast.For() | ast.comprehension() if isinstance(node.target, ast.Name) and stored[node.target.id] == 1:
                local[node.target.id] = ast.Subscript(node.iter, node.target, ast.Load())
    return _Scope(next(iter(arguments), ""), local)


def halves(kind: type) -> Literal["", "halves", "interleaved"]:
    """Return how a class splits the outputs of a layer into halves: `x.chunk(2, …)`, or `x[..., ::2]`."""
    chunks, steps = False, False
    for node in (node for method in methods_of(kind) for node in ast.walk(method)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "chunk":
            arguments = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "chunks")]
            chunks |= any(isinstance(each, ast.Constant) and each.value == 2 for each in arguments)
        steps |= isinstance(node, ast.Slice) and isinstance(node.step, ast.Constant) and node.step.value == 2
    return "" if chunks == steps else "halves" if chunks else "interleaved"


@cache
def methods_of(kind: type) -> tuple[ast.FunctionDef, ...]:
    """Return the syntax trees of the methods of a class except its constructor; none without the source."""
    methods: dict[str, ast.FunctionDef] = {}
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        for item in tree.body if isinstance(tree, ast.ClassDef) else ():
            if isinstance(item, ast.FunctionDef):
                methods.setdefault(item.name, item)
    methods.pop("__init__", None)
    return tuple(methods.values())


def _operands(node: ast.AST, scope: _Scope) -> Iterator[tuple[ast.expr, Literal["out_in", "in_out"]]]:
    """Yield the operands used as weights in products, with their layouts."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        sides = [node.left, node.right]
    elif isinstance(node, ast.Call) and (name := called(node.func)) in PRODUCTS:
        at = PRODUCTS[name]
        named = [keyword.value for keyword in node.keywords if keyword.arg in ("weight", "mat2", "batch2", "other")]
        sides = [*node.args[at - 1 : at + 1], *named][:2]
        if name == "linear":
            yield from ((side, "out_in") for side in sides[1:])
            return
    else:
        if isinstance(node, ast.Call) and called(node.func) == "einsum":
            yield from _of_einsum(node.args)
        return
    known = [_parameter(side, "out_in", scope)[0] for side in sides]
    if len(sides) == 2 and not all(known):
        yield sides[0], "out_in"
        yield sides[1], "in_out"


def _of_einsum(arguments: Sequence[ast.expr]) -> Iterator[tuple[ast.expr, Literal["out_in", "in_out"]]]:
    """Yield operands whose last two dimensions are a summed dimension and an output dimension."""
    match arguments:
        case [ast.Constant(value=str(equation)), *operands]:
            inputs, _, output = equation.replace(" ", "").partition("->")
            terms = inputs.split(",")
            for index, (term, operand) in enumerate(zip(terms, operands, strict=False)):
                others = "".join(terms[:index] + terms[index + 1 :])
                summed = "".join(
                    "i" if x in others and x not in output else "o" if x not in others else "b" for x in term
                )
                if len(terms) == 2 and len(term) in (2, 3) and summed[-2:] in ("io", "oi"):
                    yield operand, "in_out" if summed[-2:] == "io" else "out_in"


def called(function: ast.expr) -> str:
    """Return the name of a called function, without the modules or object before it."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _parameter(
    expression: ast.expr, layout: Literal["out_in", "in_out"], scope: _Scope, indexed: bool = False
) -> tuple[str, Usage]:
    """Return the name in `self.name`, `self.name[i]`, `self.name.to(…)`, `self.name.T` or none, and its usage."""
    turned: Literal["out_in", "in_out"] = "in_out" if layout == "out_in" else "out_in"
    match expression:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == scope.module:
            return name, Usage(layout, indexed)
        case ast.Name(id=name) if name in scope.local:
            others = {other: value for other, value in scope.local.items() if other != name}
            return _parameter(scope.local[name], layout, _Scope(scope.module, others), indexed)
        case ast.Attribute(value=inner, attr="T" | "mT"):
            return _parameter(inner, turned, scope, indexed)
        case ast.Call(func=ast.Attribute(value=inner, attr="t"), args=[]):
            return _parameter(inner, turned, scope, indexed)
        case ast.Call(func=ast.Attribute(value=inner, attr="transpose"), args=[first, second]):
            dims = {_number(first), _number(second)}
            if dims in _LAST_TWO or dims == {0, 1}:
                return _parameter(inner, turned, scope, indexed)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in CASTS:
            return _parameter(inner, layout, scope, indexed)
        case ast.Subscript(value=inner, slice=ast.Name() | ast.Constant()):
            return _parameter(inner, layout, scope, True)
    return "", Usage(layout, indexed)


def _number(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None
