"""What tells a model from another, so that results of two are never taken for those of one.

Of torch's modules and ours, the kind, the hyper-parameters they show and the weights tell all. Of
other people's, and of plain functions, everything that can be reached counts too: attributes, code,
closures, and the globals that the code names. What cannot be looked into, such as a session of
another library, is known by its type alone; then the answers to a few fixed images must do, which
only a deterministic model can give.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from enresnet.evaluation.scoring import drawn_logits
from enresnet.models.interface import Model, device_of, module_of
from enresnet.models.noise import NoiseStream

PROBES = 16
DEEP = 12  # how far attributes of attributes are followed
_OWN = frozenset(vars(nn.Module())) | {"training"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, range)
# Where a stream of random numbers stands is no part of the model.
_STREAMS = (torch.Generator, NoiseStream, np.random.Generator, np.random.BitGenerator)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Identity:
    """What tells a model from another, and whether it does."""

    digest: str
    blind: bool  # there is more to the model than could be seen


def digest_of(model: Model, shape: Sequence[int] | None = None) -> str:
    """Return what tells a model from another."""
    return identify(model, shape).digest


def identify(model: Model, shape: Sequence[int] | None = None) -> Identity:
    """Return what tells a model from another.

    ``shape`` is that of an image, C x H x W; with it the answers of a function count too.
    """
    look, answers = _Look(), ""
    look.at(model)
    if shape is not None and (module_of(model) is None or look.blind):
        answers = _answers(model, shape)
        look.add(answers)
    return Identity(look.digest.hexdigest()[:16], look.blind and not answers)


def reachable(model: Model) -> list[Any]:
    """Return what a model holds, as far as can be seen: modules, streams, and all else."""
    look = _Look()
    look.at(model)
    return [thing for _, thing in look.met.values()]


def _answers(model: Model, shape: Sequence[int]) -> str:
    """Return the likeliest classes of a few images that are always the same; "" if they vary.

    Their order, not the logits: those may differ in the last digit from one machine to the next.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((PROBES, *shape), generator=generator)
    one, two = drawn_logits(model, images.to(device_of(model, default=images.device)), 2)
    first, second = (
        x.nan_to_num().topk(min(3, x.shape[1]), dim=1).indices.tolist() for x in (one, two)
    )
    return str(first) if first == second and torch.allclose(one, two, equal_nan=True) else ""


class _Look:
    """A digest of all that is met, each thing once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.blind = False
        self.met: dict[int, tuple[int, Any]] = {}

    def add(self, *words: object) -> None:
        self.digest.update(repr(words).encode())

    def at(self, thing: Any, depth: int = 0) -> None:
        """Take in a model, or anything that it holds."""
        if isinstance(thing, _PLAIN):
            self.add(thing)
        elif id(thing) in self.met:
            self.add("again", self.met[id(thing)][0])
        elif depth <= DEEP:
            # The thing itself is kept, or another could get its address.
            self.met[id(thing)] = (len(self.met), thing)
            self._inside(thing, depth + 1)

    def _inside(self, thing: Any, depth: int) -> None:
        if isinstance(thing, Tensor):
            self._tensor(thing)
        elif isinstance(thing, np.ndarray):
            self.add(thing.shape, str(thing.dtype))
            self.digest.update(thing.tobytes())
        elif isinstance(thing, nn.Module):
            self._module(thing, depth)
        elif isinstance(thing, Mapping):
            for key, value in thing.items():
                self.add(str(key))
                self.at(value, depth)
        elif isinstance(thing, list | tuple | set | frozenset):
            ordered = sorted(thing, key=repr) if isinstance(thing, set | frozenset) else thing
            for value in ordered:
                self.at(value, depth)
        elif isinstance(thing, types.MethodType):
            self.at(thing.__self__, depth)
            self.add(thing.__name__)
            self.at(thing.__func__, depth)
        elif isinstance(thing, types.FunctionType):
            self._function(thing, depth)
        elif isinstance(thing, types.CodeType):
            self._code(thing, depth)
        elif isinstance(thing, functools.partial):
            for part in (thing.func, thing.args, thing.keywords):
                self.at(part, depth)
        elif isinstance(thing, type):
            self.add(_name(thing))
            self._class(thing, depth)
        elif isinstance(thing, types.BuiltinFunctionType | types.ModuleType):
            self.add(thing.__name__)
        else:
            self._object(thing, depth)

    def _tensor(self, tensor: Tensor) -> None:
        content: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        self.digest.update(content)

    def _module(self, module: nn.Module, depth: int) -> None:
        self.digest.update(type(module).__name__.encode())
        self.digest.update(repr([part.extra_repr() for part in module.modules()]).encode())
        for name, tensor in module.state_dict().items():
            self.digest.update(name.encode())
            if isinstance(tensor, Tensor):
                self._tensor(tensor)
        for name, part in module.named_modules():
            own = {key: value for key, value in vars(part).items() if key not in _OWN}
            hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
            if hooks or "forward" in own or not _shows_all(type(part)):
                self.add(name)
                for thing in (own, hooks, type(part)):
                    self.at(thing, depth)

    def _class(self, kind: type, depth: int) -> None:
        for base in kind.__mro__:
            if not _is_library(base):
                for name, value in sorted(vars(base).items()):
                    function = _function_of(value)
                    if isinstance(function, types.FunctionType) or not name.startswith("__"):
                        self.add(name)
                        self.at(function, depth)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        self.add(function.__module__, function.__qualname__)
        if _is_library(function):
            return
        self._code(function.__code__, depth)
        self.at(function.__defaults__, depth)
        self.at(function.__kwdefaults__, depth)
        for cell in function.__closure__ or ():
            try:
                self.at(cell.cell_contents, depth)
            except ValueError:  # not filled yet
                self.add("empty")
        names = _names_in(function.__code__)
        for name in names:
            if name in function.__globals__:
                self._named(name, function.__globals__[name], names, depth)

    def _named(self, name: str, thing: Any, names: list[str], depth: int) -> None:
        self.add(name)
        self.at(thing, depth)
        if isinstance(thing, types.ModuleType) and not _is_library(thing):
            for inner in names:
                if inner in vars(thing):
                    self.at(vars(thing)[inner], depth)

    def _code(self, code: types.CodeType, depth: int) -> None:
        self.digest.update(code.co_code)
        self.add(code.co_names)
        for constant in code.co_consts:
            self.at(constant, depth)

    def _object(self, thing: Any, depth: int) -> None:
        self.add(_name(type(thing)))
        if isinstance(thing, _STREAMS):
            return
        values = getattr(thing, "__dict__", None)
        if values is not None:
            self.at(dict(values), depth)
            self.at(type(thing), depth)
        elif " at 0x" not in (text := repr(thing)):
            self.add(text)
        elif not _is_builtin(type(thing)):
            self.blind = True


def _names_in(code: types.CodeType) -> list[str]:
    """Return the globals and attributes that code names, also inside its own functions."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return sorted({*code.co_names, *(name for c in inner for name in _names_in(c))})


def _function_of(value: Any) -> Any:
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _shows_all(kind: type) -> bool:
    """Return whether weights and extra_repr say all of a module: of torch's and of ours."""
    return kind.__module__.partition(".")[0] in ("torch", "enresnet")


def _is_library(thing: Any) -> bool:
    """Return whether something belongs to an installed package: its code is no part of the model.

    What is in it may change without notice, as caches do.
    """
    name = thing.__name__ if isinstance(thing, types.ModuleType) else _home(thing)
    if name.partition(".")[0] in ("torch", "enresnet") or name in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(_LIBRARIES)


def _is_builtin(kind: type) -> bool:
    return _home(kind).partition(".")[0] in sys.stdlib_module_names


def _home(thing: Any) -> str:
    return getattr(thing, "__module__", None) or "builtins"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
