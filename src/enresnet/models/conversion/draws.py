"""Random numbers that a network draws while it is looked into.

A trace would keep what was drawn: a block that drops out at random would do so always, or never.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.models.reachable_code import ReachableCode, is_generator

Generator = tuple[Callable[[], Any], Callable[[Any], Any]]


class DrawError(Exception):
    """A forward drew random numbers."""


@contextmanager
def no_draws(module: nn.Module) -> Iterator[None]:
    """Raise where the block draws from a generator that a module can reach; all are put back.

    Raises:
        DrawError: It did, whether or not it failed besides.
    """
    generators = list(_generators(module))
    states = [get() for get, _ in generators]
    try:
        yield
    finally:
        drawn = False
        for (get, put), state in zip(generators, states, strict=True):
            if _as_bytes(get()) != _as_bytes(state):
                put(state)
                drawn = True
        if drawn:
            raise DrawError


@contextmanager
def seeded(module: nn.Module | None = None) -> Iterator[None]:
    """Let the global generators start from 0 inside; afterwards they stand where they stood.

    Those that a module reaches besides start from where they stand, and are put back too.
    """
    generators = list(_global_generators() if module is None else _generators(module))
    states = [get() for get, _ in generators]
    torch.default_generator.manual_seed(0)
    if _cuda_is_used():
        torch.cuda.manual_seed_all(0)
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    try:
        yield
    finally:
        for (_, put), state in zip(generators, states, strict=True):
            put(state)


def _global_generators() -> Iterator[Generator]:
    """Yield how the state of each global generator is read and set."""
    yield torch.random.get_rng_state, torch.random.set_rng_state
    if _cuda_is_used():
        yield torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all
    yield random.getstate, random.setstate
    if (numpy := sys.modules.get("numpy")) is not None:
        yield numpy.random.get_state, numpy.random.set_state


def _generators(module: nn.Module) -> Iterator[Generator]:
    """Yield the same of the global generators, and of those that a module has at hand."""
    yield from _global_generators()
    numpy = sys.modules.get("numpy")
    states = torch.Generator if numpy is None else (torch.Generator, numpy.random.RandomState)
    reached = ReachableCode(list(module.modules())).generators()
    own = (value for value in vars(module).values() if is_generator(value))
    for value in (*own, *reached):
        if isinstance(value, random.Random):
            yield value.getstate, value.setstate
        elif isinstance(value, states):
            yield value.get_state, value.set_state
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            yield partial(getattr, bits, "state"), partial(setattr, bits, "state")


def _cuda_is_used() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _as_bytes(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.cpu().numpy().tobytes()
    if isinstance(state, list):
        return [_as_bytes(one) for one in state]
    return pickle.dumps(state)
