"""A network that runs again in its backward pass must meet the same noise there.

Gradient checkpointing (``torch.utils.checkpoint``) runs blocks again to save memory, and restores
torch's global generators for that alone. Noise comes from a stream of its own: a second pass would
have other noise than the first, and the gradient would be that of no function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_repeated: ContextVar[bool] = ContextVar("repeated", default=False)


class OtherNoiseError(RuntimeError):
    """A second pass would have other noise than the first."""


@contextmanager
def same_noise() -> Iterator[None]:
    """Allow a second pass: whoever runs it has put the noise back to where the first began."""
    before = _repeated.set(True)
    try:
        yield
    finally:
        _repeated.reset(before)


def check_first_pass() -> None:
    """Raise where noise is about to be drawn in a backward pass.

    Raises:
        OtherNoiseError: It is, and nobody has put the noise back.
    """
    in_backward: int = torch._C._current_graph_task_id()
    if in_backward != -1 and not _repeated.get():
        raise OtherNoiseError(
            "the network runs again in its backward pass, as gradient checkpointing "
            "(torch.utils.checkpoint) does, and would meet other noise there than in its forward "
            "pass: the gradient would be wrong. Turn gradient checkpointing off; an ensemble saves "
            "memory by enresnet.models.set_recompute(model, True), which repeats the noise"
        )
