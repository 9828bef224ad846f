"""Memory that is freed is kept for the next tensor, rather than handed back to the system.

By default the C library of Linux maps every tensor above 32 MB anew and hands freed memory back:
each pass then pays for pages that the one before had already.
"""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
GIGABYTE = 1 << 30


def keep_memory() -> bool:
    """Let this process keep up to two gigabytes that it freed; return whether that is possible.

    For the command line and for processes of our own: a library must not change its caller's.
    Whoever set ``MALLOC_...`` variables keeps what they chose.
    """
    if not sys.platform.startswith("linux") or any(
        name.startswith("MALLOC_") for name in os.environ
    ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    wanted = ((M_MMAP_THRESHOLD, GIGABYTE), (M_TRIM_THRESHOLD, 2 * GIGABYTE - 1))
    taken = [mallopt(*setting) for setting in wanted]  # older libraries refuse the first
    return all(taken)
