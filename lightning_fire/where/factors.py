"""Factors that scale, mask or normalize a weight in the forward pass of its layer, read from its source."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from lightning_fire.where.usage import CASTS, PRODUCTS, called, methods_of

OTHER = ""
_QUANTIZED = "quantized"
_SHAPES = {
    *("t", "transpose", "permute", "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze"),
    *("unsqueeze", "expand", "clone", "detach", "copy", "double", "add", "sub"),
}
_ELEMENTWISE = {
    *("mul", "multiply", "div", "divide", "true_divide", "where", "abs", "exp", "pow", "square", "tanh"),
    *("softplus", "relu", "sigmoid", "softmax"),
}
_NAMED = re.compile(r"normali[sz]|(batch|layer|instance|group|weight|spectral|rms)_?norm|standardi[sz]|mask|rescale")
_ROUNDING = re.compile(r"round|quant|binari|ternar|floor|int8|float8|fp8|(?<![a-z])sign\b", re.IGNORECASE)
_CONVOLUTION = re.compile("conv(?!ert)")

Factors = set[str] | None
"""The factors of a weight in an expression; None if it is not computed from the weight."""


class _Scope(NamedTuple):
    """Names in a method: that of the module (`self`), the factors of local values, and other methods of the class."""

    module: str
    local: Mapping[str, Factors]
    methods: Mapping[str, ast.FunctionDef]


def factors_of_weight(kind: type) -> frozenset[str]:
    """Return the attributes by which the forward pass of a layer multiplies its weight, and `OTHER` for other values.

    Recognized are products and convolutions with `self.weight * self.mask`, `self.weight / norm`,
    `F.normalize(self.weight)` and the like, also through local names and methods, and changes in place
    (`self.weight.data *= self.mask`). Sums, slices, casts, quantization and unknown functions are not factors.

    Args:
        kind: Class of a layer with a parameter `weight`.

    Example:
        >>> from torch import nn
        >>> factors_of_weight(nn.Linear)
        frozenset()
    """
    return _factors_of_weight(kind)


@cache
def _factors_of_weight(kind: type) -> frozenset[str]:
    methods = {method.name: method for method in methods_of(kind)}
    names = ["forward"] if "forward" in methods else []
    for name in names:  # and those that it calls, directly or through others
        called_by = {node.attr for node in ast.walk(methods[name]) if isinstance(node, ast.Attribute)}
        names += [other for other in methods if other in called_by and other not in names]
    found: set[str] = set()
    for name in names:
        scope = _scope(methods[name], methods)
        uses = [_factors(used, scope) or set() for used in _uses(methods[name], scope)]
        found = found.union(*(factors for factors in uses if _QUANTIZED not in factors))
    return frozenset(found)


def _scope(
    method: ast.FunctionDef, methods: Mapping[str, ast.FunctionDef], arguments: Iterable[Factors] = ()
) -> _Scope:
    module, *parameters = [argument.arg for argument in [*method.args.args, ast.arg("")]]
    local: dict[str, Factors] = dict(zip(parameters, arguments, strict=False))
    scope = _Scope(module, local, {name: each for name, each in methods.items() if each is not method})
    for _ in range(2):  # a loop may use the value of its round before
        for name, value in _assigned(method):
            local[name] = _union([local.get(name), _factors(value, scope)])
    return scope


def _assigned(method: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the local names with the values that are assigned to them, in the order of the lines."""
    nodes = [node for node in ast.walk(method) if isinstance(node, ast.Assign | ast.AugAssign)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=False)
                yield from ((target.id, value) for target, value in pairs if isinstance(target, ast.Name))
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                yield name, ast.BinOp(target, op, value)


def _uses(method: ast.FunctionDef, scope: _Scope) -> Iterator[ast.expr]:
    """Yield the operands of products and convolutions, and the values that are written into the weight."""
    for node in ast.walk(method):
        match node:
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                yield from (left, right)
            case ast.Call(func=function):
                name = called(function)
                if name in PRODUCTS or name == "einsum" or _CONVOLUTION.search(name):
                    yield from _operands(node)
                elif name.endswith("_") and isinstance(function, ast.Attribute):
                    written = _factors(function.value, scope) is not None
                    yield from [node, *node.args] if written else []
            case ast.AugAssign(target=ast.Attribute() as target, op=op, value=value):
                yield ast.BinOp(target, op, value)
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                yield from [value] if _factors(target, scope) is not None else []


def _factors(node: ast.expr, scope: _Scope) -> Factors:
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr="weight") if owner == scope.module:
            return set()
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == scope.module and name in scope.methods:
            return _returned(scope.methods[name], scope)  # a property
        case ast.Name(id=name):
            return scope.local.get(name)
        case ast.Attribute(value=inner, attr="T" | "mT" | "data") | ast.Subscript(value=inner):
            return _factors(inner, scope)
        case ast.UnaryOp(operand=inner):
            return _factors(inner, scope)
        case ast.IfExp(body=first, orelse=second):
            return _union([_factors(first, scope), _factors(second, scope)])
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            known = [_factors(left, scope), _factors(right, scope)]
            found = _union(known)
            if found is None or not isinstance(op, ast.Mult | ast.Div | ast.Pow):
                return found
            return found | {_attribute(left if known[0] is None else right, scope)}
        case ast.Call():
            return _of_call(node, scope)
    return None


def _of_call(node: ast.Call, scope: _Scope) -> Factors:
    name, operands = called(node.func).removesuffix("_"), _operands(node)
    method = scope.methods.get(name)
    if method and isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == scope.module:
        return _returned(method, scope, [_factors(operand, scope) for operand in node.args])
    receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    found = _union([_factors(operand, scope) for operand in [*receiver, *operands]])
    if found is None or name in CASTS | _SHAPES:
        return found
    if _ROUNDING.search(ast.unparse(node)):
        return found | {_QUANTIZED}
    return found | {OTHER} if name in _ELEMENTWISE or _NAMED.search(name) else None


def _returned(method: ast.FunctionDef, scope: _Scope, arguments: Iterable[Factors] = ()) -> Factors:
    inner = _scope(method, scope.methods, arguments)
    values = [node.value for node in ast.walk(method) if isinstance(node, ast.Return) and node.value]
    return _union([_factors(value, inner) for value in values])


def _operands(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _attribute(node: ast.expr, scope: _Scope) -> str:
    """Return the name of an attribute of the module, also cast or reshaped; `OTHER` for other expressions."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == scope.module and name != "weight":
            return name
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in CASTS | _SHAPES:
            return _attribute(inner, scope)
        case ast.Subscript(value=inner):
            return _attribute(inner, scope)
    return OTHER


def _union(found: Iterable[Factors]) -> Factors:
    known = [factors for factors in found if factors is not None]
    return set().union(*known) if known else None
