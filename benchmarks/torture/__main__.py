"""``python -m torture``: malformed inputs, kills and faults; exit code 1 if anything was lost.

    make torture                                               # the whole campaign, hours
    cd benchmarks && python -m torture --inputs 200 --kills 60     # a first look, minutes
    cd benchmarks && python -m torture --only sets --number 464    # one input again

Everything happens in a folder of its own, and a process that would write elsewhere ends at once.
Stopped at any moment, it goes on when the same command is given again with the same --folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import tyro

from torture.outcomes import Tally


def main(
    *,
    inputs: int = 10_000,
    kills: int = 1100,
    seed: int = 0,
    workers: int = 1,
    only: tuple[str, ...] = (),
    number: int | None = None,
    folder: Path | None = None,
    json_file: Path | None = None,
) -> int:
    """Run the campaign, or go on with it.

    Args:
        inputs: Malformed inputs from each generator.
        kills: Processes that are killed, or meet a fault, in all.
        seed: Fixes the inputs, and where faults happen.
        workers: Processes that share the work; a core each.
        only: The generators and kinds of faults to try; by default all.
        number: Try this one input or fault of the one named by --only, and say what became of it.
        folder: Where it works, and goes on; by default a new folder among the temporary ones.
        json_file: Write the figures to this file whenever a generator is done.
    """
    from torture.campaign import NAMES, Campaign

    if odd := [name for name in only if name not in NAMES]:
        sys.exit(f"--only knows {', '.join(NAMES)}; found {', '.join(odd)}")
    if number is not None and len(only) != 1:
        sys.exit("--number is for one name: give it with --only")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + 15))
    place = folder or Path(tempfile.mkdtemp(prefix="torture-"))
    with Campaign(place, seed) as campaign:
        if number is not None:
            tally = campaign.again(only[0], number)
            print("\n".join([*tally.outcomes, *(loss["what"] for loss in tally.losses)]))
            return 1 if tally.lost else 0
        wanted = _wanted([name for name in NAMES if not only or name in only], inputs, kills)
        target = None if json_file is None else json_file.resolve()
        started, found = time.monotonic(), dict[str, Tally]()
        try:
            for name in campaign.run(wanted, workers):
                found[name] = campaign.tally(name, wanted[name])
                print(line(name, found[name]), flush=True)
                for loss in found[name].losses[:3]:
                    print(f"  number {loss['number']}: {loss['what']}", flush=True)
                if target is not None:
                    _write(target, seed, wanted, found)
        except KeyboardInterrupt:
            print(f"stopped; the same command with --folder {place} goes on")
            return 128 + 2
    total = Tally()
    for tally in found.values():
        total.add(tally)
    print(f"{line('all', total)}; this run took {time.monotonic() - started:.0f} s, in {place}")
    return 1 if total.lost else 0


def _wanted(names: list[str], inputs: int, kills: int) -> dict[str, int]:
    """Return how many tries of every name there are to be."""
    from torture.faults import WEIGHTS

    weights = {name: WEIGHTS[name] for name in names if name in WEIGHTS}
    tries, left = {name: inputs for name in names if name not in weights}, kills
    while weights:  # rounded one by one, so that the sum is right
        name, whole = min(weights, key=weights.__getitem__), sum(weights.values())
        tries[name] = round(left * weights.pop(name) / whole)
        left -= tries[name]
    return {name: tries[name] for name in names if tries[name]}


def line(name: str, tally: Tally) -> str:
    """Return the count of one generator in words."""
    return (
        f"{name}: {tally.tried} tried, {tally.answered} answered, {tally.held} held, "
        f"{tally.lost} lost, {len(tally.outcomes)} distinct outcomes, {tally.seconds:.0f} s"
    )


def _write(target: Path, seed: int, wanted: dict[str, int], found: dict[str, Tally]) -> None:
    """Write the figures, in the order of the campaign; what is not done yet is missing."""
    import enresnet
    from torture.campaign import code_digest
    from torture.faults import CAMPAIGNS

    values = {
        "version": enresnet.__version__,
        "code": code_digest(),
        "seed": seed,
        "whole": set(found) == set(wanted),
        "inputs": {n: found[n].to_json() for n in wanted if n in found and n not in CAMPAIGNS},
        "faults": {n: found[n].to_json() for n in wanted if n in found and n in CAMPAIGNS},
    }
    unfinished = target.with_name(f".{target.name}.unfinished")
    unfinished.write_text(json.dumps(values, indent=2) + "\n")
    unfinished.replace(target)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(tyro.cli(main))
