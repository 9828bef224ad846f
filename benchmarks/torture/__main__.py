"""``python -m torture``: malformed inputs, then kills and faults; exit code 1 if anything was lost.

    make torture                                          # the whole campaign, hours
    cd benchmarks && python -m torture --inputs 200 --kills 10    # a first look, minutes

Everything happens in a folder of its own, and a process that would write elsewhere ends at once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro

from torture.outcomes import Tally


def main(
    *,
    inputs: int = 12_000,
    kills: int = 1000,
    seed: int = 0,
    only: tuple[str, ...] = (),
    folder: Path | None = None,
    json_file: Path | None = None,
) -> int:
    """Run the campaign.

    Args:
        inputs: Malformed inputs from each generator.
        kills: Processes that are killed, or meet a fault, in all.
        seed: Fixes the inputs, and where faults are injected.
        only: The generators and campaigns to run; by default all.
        folder: Where it works; by default a new folder among the temporary ones.
        json_file: Write the figures to this file after every generator.
    """
    from torture.faults import CAMPAIGNS
    from torture.inputs import GENERATORS
    from torture.workers import run_generator

    known = [*GENERATORS, *CAMPAIGNS]
    if odd := [name for name in only if name not in known]:
        sys.exit(f"--only knows {', '.join(known)}; found {', '.join(odd)}")
    place = (folder or Path(tempfile.mkdtemp(prefix="torture-"))).resolve()
    target = None if json_file is None else json_file.resolve()
    found: dict[str, dict[str, Any]] = {}
    started = time.monotonic()
    for name in known:
        if only and name not in only:
            continue
        begun = time.monotonic()
        if name in GENERATORS:
            tally = run_generator(name, inputs, seed, place / name)
        else:
            tally = CAMPAIGNS[name](kills // len(CAMPAIGNS), seed, place / name)
        found[name] = {**tally.to_json(), "seconds": round(time.monotonic() - begun)}
        print(line(name, tally), flush=True)
        for loss in tally.lost[:3]:
            print(f"  number {loss['number']}: {loss['what']}", flush=True)
        if target is not None:
            whole = {"seed": seed, "seconds": round(time.monotonic() - started), "found": found}
            target.write_text(json.dumps(whole, indent=2) + "\n")
    lost = sum(value["lost"] for value in found.values())
    tried = sum(value["tried"] for value in found.values())
    print(f"{tried} tried, {lost} lost, {time.monotonic() - started:.0f} s, in {place}")
    return 1 if lost else 0


def line(name: str, tally: Tally) -> str:
    """Return the count of one generator in words."""
    return (
        f"{name}: {tally.tried} tried, {tally.answered} answered, {tally.held} held, "
        f"{len(tally.lost)} lost, {len(tally.answers)} distinct outcomes"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(tyro.cli(main))
