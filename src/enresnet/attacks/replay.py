"""Common random numbers: under the same noise two points differ by nothing but themselves.

A step of a blind search changes a margin by far less than fresh noise does. Judged under different
noise, the better of two points would be known only after very many draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from enresnet.models.noise import NoiseStream, shared_stream


def remember_noise(modules: Iterable[nn.Module]) -> Callable[[], None]:
    """Return a function that puts the noise of ``modules`` back to where it stands now.

    That is our own noise, generators that a module keeps among its attributes, and torch's global
    ones. What else a model draws from (numpy, say) goes on, and is fresh each time.
    """
    sources: dict[NoiseStream | torch.Generator, None] = {shared_stream: None}
    sources |= dict.fromkeys(_global_generators())
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, NoiseStream | torch.Generator):
                sources[value] = None
    states: list[tuple[Any, Any]] = [(source, source.get_state()) for source in sources]

    def put_back() -> None:
        for source, state in states:
            source.set_state(state)

    return put_back


def _global_generators() -> list[torch.Generator]:
    accelerators = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *accelerators]
