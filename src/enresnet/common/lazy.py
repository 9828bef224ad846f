"""Packages whose public names load on first use, so that what needs no torch does not wait for it.

A package says which of its files holds which names; the file is imported when one of them is asked
for. Type checkers read the same names from imports under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


def load_on_first_use(package: str, homes: dict[str, str]) -> list[str]:
    """Let a package load its names when they are asked for; return them, sorted, for ``__all__``.

    Files of the package that are no names of it are attributes too, as after an import.

    Args:
        package: Its ``__name__``.
        homes: The names in each of its modules, separated by spaces.
    """
    module = sys.modules[package]
    module.__dict__["_home_of"] = {
        name: f"{package}.{home}" for home, names in homes.items() for name in names.split()
    }
    module.__class__ = _LazyPackage
    return sorted(module.__dict__["_home_of"])


class _LazyPackage(ModuleType):
    _home_of: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self._home_of:
            value = getattr(importlib.import_module(self._home_of[name]), name)
        elif not name.startswith("_") and find_spec(f"{self.__name__}.{name}") is not None:
            value = importlib.import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a file sets it as an attribute; where a function has its name, as train in
        # train.py, the attribute is the function.
        if name in self._home_of and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Return what is public: the names, the packages inside, and what Python asks for."""
        inside = {found.name for found in iter_modules(self.__path__) if found.ispkg}
        return sorted({*self._home_of, *inside, *(n for n in self.__dict__ if n.startswith("__"))})
