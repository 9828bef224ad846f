"""Whether the source of a ``forward`` adds activations, where it cannot be traced.

An activation is an argument of ``forward``, or something that was computed from one; a shape or a
number is none.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

# torch's own blocks with residual connections; its other modules have none.
TORCH_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_ADDITIONS = (operator.add, operator.iadd, torch.add, torch.Tensor.add, torch.Tensor.add_)
_PLAIN_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "training")
_PLAIN_METHODS = ("size", "dim", "numel", "item")
_PLAIN_FUNCTIONS = ("len", "int", "float", "bool", "str", "isinstance", "hasattr", "range", "type")


def adds_activations(module: nn.Module) -> bool:
    """Return whether a module's ``forward``, or a function that it uses, adds some.

    True where there is no source to read.
    """
    if isinstance(module, TORCH_BLOCKS):
        return True
    kind = type(module)
    read = _definitions(kind, "forward")[:1]
    for function in read:  # which grows
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            return True
        activations = _activations(tree)
        if any(_is_addition(node, activations, function) for node in ast.walk(tree)):
            return True
        used = (other for node in ast.walk(tree) for other in _used(node, kind, function))
        read += dict.fromkeys(other for other in used if other not in read)
    return False


def _definitions(kind: type, name: str) -> list[FunctionType]:
    """Return the functions of a name in a class and those it inherits from, but for torch's."""
    own = (base for base in kind.__mro__ if not base.__module__.startswith("torch.nn"))
    found = (vars(base).get(name) for base in own)
    plain = (f.__func__ if isinstance(f, classmethod | staticmethod) else f for f in found)
    return [f for f in map(_unwrapped, plain) if isinstance(f, FunctionType)]


def _unwrapped(function: object) -> object:
    return inspect.unwrap(function) if callable(function) else function


def _used(node: ast.AST, kind: type, function: FunctionType) -> list[FunctionType]:
    """Return the methods, or the functions but for torch's and Python's, that it names."""
    if isinstance(node, ast.Attribute) and _is_own(node.value, function):
        found = _definitions(kind, node.attr)
        return found if isinstance(node.value, ast.Call) else found[:1]  # super() is one of them
    named = _unwrapped(_resolved(node, function))
    if isinstance(named, FunctionType):
        library = str(named.__module__).partition(".")[0]
        return [] if library == "torch" or library in sys.stdlib_module_names else [named]
    return []


def _is_own(node: ast.expr, function: FunctionType) -> bool:
    """Return whether an expression is the first argument, as ``self``, or ``super()``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in function.__code__.co_varnames[:1]


def _resolved(node: ast.AST, function: FunctionType) -> Any:
    """Return what a name in a function's source stands for, or an attribute of it; else None."""
    if isinstance(node, ast.Attribute):
        holder = _resolved(node.value, function)
        named = isinstance(holder, ModuleType) or holder is torch.Tensor
        return getattr(holder, node.attr, None) if named else None
    if not isinstance(node, ast.Name):
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        if name == node.id:
            try:
                return cell.cell_contents
            except ValueError:  # it has no value yet
                return None
    return None if node.id in function.__code__.co_varnames else function.__globals__.get(node.id)


def _activations(tree: ast.AST) -> set[str]:
    """Return the names that stand for activations anywhere in a function."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            names.update(_tensor_arguments(node.args))
    known = -1
    while known < len(names):
        known = len(names)
        for node in ast.walk(tree):
            for target, value in _assignments(node):
                if _carries(value, names):
                    names.update(_stored(target))
    return names


def _tensor_arguments(arguments: ast.arguments) -> Iterator[str]:
    """Yield the arguments that may be tensors."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    pairs = [*zip(positional, defaults, strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for argument, default in pairs:
        number = isinstance(default, ast.Constant) and default.value is not None
        noted = argument.annotation is not None and ast.unparse(argument.annotation)
        if argument.arg != "self" and not number and noted not in ("int", "float", "bool", "str"):
            yield argument.arg
    if arguments.vararg is not None:
        yield arguments.vararg.arg


def _assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return what is stored where by a statement, or by a part of an expression."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AugAssign | ast.NamedExpr):
        return [(node.target, node.value)]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    if isinstance(node, ast.For | ast.comprehension):
        return [(node.target, node.iter)]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "extend", "insert")
    ):
        return [(node.func.value, argument) for argument in node.args]
    return []


def _stored(target: ast.expr) -> Iterator[str]:
    """Yield the names that an assignment binds, or whose contents it changes."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _stored(part)
    elif isinstance(target, ast.Starred | ast.Subscript):
        yield from _stored(target.value)


def _carries(node: ast.AST, names: set[str]) -> bool:
    """Return whether the value of an expression is an activation, or holds one."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Constant | ast.Compare | ast.JoinedStr):
        return False
    if isinstance(node, ast.Attribute):
        return node.attr not in _PLAIN_ATTRIBUTES and _carries(node.value, names)
    if isinstance(node, ast.Subscript):
        return _carries(node.value, names)
    if isinstance(node, ast.IfExp):
        return _carries(node.body, names) or _carries(node.orelse, names)
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _PLAIN_METHODS:
            return False
        if isinstance(called, ast.Name) and called.id in _PLAIN_FUNCTIONS:
            return False
    return any(_carries(child, names) for child in ast.iter_child_nodes(node))


def _is_addition(node: ast.AST, names: set[str], function: FunctionType) -> bool:
    """Return whether two activations are added: ``+``, ``+=``, ``add``, ``add_`` or ``sum``."""
    terms: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms = [node.left, node.right]
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        terms = [node.target, node.value]
    elif isinstance(node, ast.Call):
        given = [*node.args, *(k.value for k in node.keywords if k.arg in ("input", "other"))]
        if (isinstance(node.func, ast.Name) and node.func.id == "sum") or any(
            _adds(term, function)
            for term in given  # as functools.reduce(operator.add, terms)
        ):
            return any(_carries(term, names) for term in given)
        if _adds(node.func, function):
            terms = given
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("add", "add_"):
            terms = [*given, node.func.value]  # x.add(y)
    return sum(_carries(term, names) for term in terms) >= 2


def _adds(node: ast.AST, function: FunctionType) -> bool:
    """Return whether a name stands for a function that adds, as in ``from torch import add``."""
    found = _resolved(node, function)
    return callable(found) and any(found is adds for adds in _ADDITIONS)
