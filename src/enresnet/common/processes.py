"""Which of several processes this one is, whoever started them."""

from __future__ import annotations

import os


def first_process() -> bool:
    """Return whether this process is the one that writes files and speaks.

    torchrun tells every process its RANK, on whatever machine it is; SLURM and Lightning Fabric
    tell it where it is.
    """
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    places = ("SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in places)
