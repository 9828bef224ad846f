"""Streams of random numbers of our own; torch's global generators are left as they were.

Networks that are not ours may draw from torch's global generators, as dropout does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@contextmanager
def torch_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators inside a ``with`` block; after it they are as before."""
    import torch

    with torch.random.fork_rng(devices=_gpus(device)):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class TorchState:
    """Where torch's global generators stand."""

    cpu: torch.Tensor
    gpu: tuple[torch.device, torch.Tensor] | None

    @classmethod
    def of(cls, device: torch.device) -> TorchState:
        """Return that of the CPU's, and of that of a GPU."""
        import torch

        gpu = (device, torch.cuda.get_rng_state(device)) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), gpu)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Repeat the draws of the generators from here on; afterwards they continue."""
        import torch

        gpus = [] if self.gpu is None else [self.gpu[0]]
        with torch.random.fork_rng(devices=gpus):
            torch.set_rng_state(self.cpu)
            if self.gpu is not None:
                torch.cuda.set_rng_state(self.gpu[1], self.gpu[0])
            yield


def _gpus(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
