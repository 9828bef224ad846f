"""Streams of random numbers of our own; torch's global generator is never touched."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def fresh_generator() -> torch.Generator:
    """Return a CPU generator seeded from the system's entropy.

    An unseeded ``torch.Generator()`` starts from one fixed seed, the same in every process.
    """
    import torch

    generator = torch.Generator()
    generator.seed()
    return generator


def checked_generator(generator: object) -> torch.Generator:
    """Return ``generator``, or a fresh one for None; refuse anything else."""
    import torch

    if generator is None:
        return fresh_generator()
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, found {generator!r}; "
            "for a seed write torch.Generator().manual_seed(seed)"
        )
    return generator


def named_seed(seed: int, purpose: str) -> int:
    """Return the seed that ``seed`` gives for one purpose, independent of the other purposes."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def named_generator(seed: int, purpose: str) -> torch.Generator:
    """Return the stream that ``seed`` gives for one purpose."""
    import torch

    return torch.Generator().manual_seed(named_seed(seed, purpose))
