"""Common random numbers: under the same noise two points differ by nothing but themselves.

A step of a blind search changes a margin by far less than fresh noise does. Judged under different
noise, the better of two points would be known only after very many draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

First = TypeVar("First")
Second = TypeVar("Second")


class CommonRandomNumbers:
    """The generators that a model draws from, and a way to let it draw the same twice.

    They are seen at work, wherever the model holds them; torch's global ones are left alone unless
    the model itself draws from them. Noise that is not torch's (numpy's, say) is fresh each time.
    """

    def __init__(self, seed: int) -> None:
        self._sources: dict[torch.Generator, None] = {}
        self._seeds = torch.Generator().manual_seed(seed)

    def watch(self, call: Callable[[], object]) -> None:
        """Note every generator that ``call`` draws from in this thread, and put them back."""
        with _Watch() as seen:
            call()
        for source, state in seen.states.items():
            source.set_state(state)
        self._sources |= dict.fromkeys(seen.states)

    def under_the_same_noise(
        self, first: Callable[[], First], second: Callable[[], Second]
    ) -> tuple[First, Second]:
        """Return what two functions give, the second under the noise that the first has met.

        What is drawn afterwards is drawn by neither: where they drew differently much (a model may
        keep its noise for some calls), the generator starts anew elsewhere.
        """
        before = self._states()
        one = first()
        after = self._states()
        for source, state in before.items():
            source.set_state(state)
        two = second()
        for source, state in self._states().items():
            if not torch.equal(state, after[source]):
                source.manual_seed(int(torch.randint(2**62, (), generator=self._seeds)))
        return one, two

    def _states(self) -> dict[torch.Generator, Tensor]:
        return {source: source.get_state() for source in self._sources}


class _Watch(TorchDispatchMode):
    """Sees every operation of this thread that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.states: dict[torch.Generator, Tensor] = {}  # as they were before the first draw

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            words = [*args, *kwargs.values()]
            given = [word for word in words if isinstance(word, torch.Generator)]
            for source in given or _global_generators(words):
                if source not in self.states:
                    self.states[source] = source.get_state()
        return func(*args, **kwargs)


def _global_generators(words: list[Any]) -> list[torch.Generator]:
    """Return the generator that torch takes by itself, from what an operation was given."""
    places = [word.device for word in words if isinstance(word, Tensor)]
    places += [word for word in words if isinstance(word, torch.device)]
    if places and places[0].type == "cuda":
        index = places[0].index
        return [
            torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
        ]
    return [torch.default_generator] if not places or places[0].type == "cpu" else []
