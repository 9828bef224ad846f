"""``python -m torture.part``: one part of the campaign, in a process of its own.

The campaign starts it; ``python -m torture`` is the command for people.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from torture.faults import CAMPAIGNS, prepare, try_faults
from torture.outcomes import Tally
from torture.workers import try_inputs


def try_part(folder: Path, name: str, first: int, last: int, seed: int) -> Tally:
    """Try the inputs or faults ``first`` to ``last - 1``, in a folder of their own."""
    place = folder / "work" / f"{name}-{first}"
    shutil.rmtree(place, ignore_errors=True)
    started = time.monotonic()
    if name in CAMPAIGNS:
        tally = try_faults(name, first, last, seed, place, folder / "prepared")
    else:
        tally = try_inputs(name, first, last, seed, place)
    tally.seconds = time.monotonic() - started
    return tally


def main(words: list[str]) -> None:
    """Do the part that the words name, and print its count."""
    folder = Path(words[0]).resolve()
    if words[1] == "prepare":
        shutil.rmtree(folder / "prepared", ignore_errors=True)
        prepare(folder / "prepared")
        return
    name, first, last, seed = words[1], *map(int, words[2:5])
    tally = try_part(folder, name, first, last, seed)
    print(json.dumps(tally.to_json()))


if __name__ == "__main__":
    main(sys.argv[1:])
