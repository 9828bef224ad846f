"""Two versions of the package on the same work, in turn: does the later one cost more?

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before . --json-file before_after.json

Each version has a process of its own that stays alive, and the two take turns, so that changes in
the machine's speed cancel. Compared are the seconds of a turn, after over before: the median of the
ratios with the lowest and the highest. A digest of the results tells whether both computed the
same. The work uses only names that both versions have.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

Work = Callable[[], Iterator[bytes]]


def training() -> Iterator[bytes]:
    """PGD-10 training, En_1ResNet20, 128 random images"""
    import torch

    from enresnet.data import DataSet
    from enresnet.models import create_model
    from enresnet.training import Trainer, load_recipe

    images, labels = _problem(128)
    few = torch.utils.data.TensorDataset(images[:4], labels[:4])
    data = DataSet.of(torch.utils.data.TensorDataset(images, labels), few)
    torch.manual_seed(0)
    model = create_model("en1_resnet20", num_classes=10)
    for _ in Trainer(model, data, load_recipe("paper", epochs=1000, milestones=(0.9,))).epochs():
        yield next(model.parameters()).detach().numpy().tobytes()


def ifgsm() -> Iterator[bytes]:
    """IFGSM-20 with EOT-5, En_2ResNet20, 16 random images"""
    from enresnet.attacks import IFGSM

    yield from _attacked("en2_resnet20", lambda g: IFGSM(epsilon=8 / 255, eot=5, generator=g), 16)


def apgd() -> Iterator[bytes]:
    """APGD-100, ResNet20, 32 random images"""
    from enresnet.attacks import APGD

    yield from _attacked("resnet20", lambda g: APGD(epsilon=8 / 255, generator=g), 32)


def square() -> Iterator[bytes]:
    """Square with 500 queries, ResNet20, 32 random images"""
    from enresnet.attacks import Square

    yield from _attacked("resnet20", lambda g: Square(epsilon=8 / 255, steps=500, generator=g), 32)


def evaluation() -> Iterator[bytes]:
    """evaluate, clean and FGSM, En_2ResNet20, 256 random images"""
    import enresnet
    from enresnet.attacks import FGSM

    images, labels = _problem(256)
    model = _model("en2_resnet20")
    while True:
        enresnet.evaluate(model, (images, labels), [FGSM(epsilon=8 / 255)], seed=0)
        yield b""


def start() -> Iterator[bytes]:
    """enresnet models, from its start to its end"""
    while True:
        done = subprocess.run([sys.executable, "-m", "enresnet", "models"], stdout=subprocess.PIPE)
        done.check_returncode()
        yield b""


WORK: dict[str, Work] = {
    work.__name__: work for work in (training, ifgsm, apgd, square, evaluation, start)
}


def _problem(count: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, 32, 32, generator=generator)
    return images, torch.randint(10, (count,), generator=generator)


def _model(name: str) -> Any:
    import torch

    from enresnet.models import create_model

    torch.manual_seed(0)
    return create_model(name, num_classes=10).eval()


def _attacked(name: str, attack: Callable[[Any], Any], count: int) -> Iterator[bytes]:
    """Attack the network's own predictions, which no image has lost before."""
    import torch

    model, (images, _) = _model(name), _problem(count)
    with torch.no_grad():
        labels = model(images).argmax(1)
    while True:
        adversarial = attack(torch.Generator().manual_seed(0))(model, images, labels)
        yield adversarial.numpy().tobytes()


def serve(name: str) -> None:
    """Do the work whenever a line comes in; answer with the seconds and a digest of the result."""
    _keep_memory()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the work prints does not mix with the answers
    turns = WORK[name]()
    for _ in sys.stdin:
        begin = time.perf_counter()
        result = next(turns)
        seconds = time.perf_counter() - begin
        print(json.dumps([seconds, hashlib.sha256(result).hexdigest()]), file=answers, flush=True)


def _keep_memory() -> None:
    """Let the C library keep its memory, as the command line does."""
    import importlib

    for place in ("enresnet.common.allocator", "enresnet.allocator"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(place).keep_memory()


def compare(name: str, sides: list[Path], repeats: int) -> dict[str, Any]:
    """Let both versions do the same work in turn."""
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(name, side)) for side in sides]
        turns = [[_turn(worker) for worker in workers] for _ in range(repeats + 1)][1:]
    ratios = sorted(after[0] / before[0] for before, after in turns)
    return {
        "what": WORK[name].__doc__,
        "after over before": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "seconds before": statistics.median(turn[0][0] for turn in turns),
        "seconds after": statistics.median(turn[1][0] for turn in turns),
        "same results": all(before[1] == after[1] for before, after in turns),
        "turns": repeats,
    }


def _worker(name: str, side: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(side / "src")},
    )


def _turn(worker: subprocess.Popen[str]) -> tuple[float, str]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit(f"{worker.args!r} ended; it cannot do this work")
    seconds, digest = json.loads(answer)
    return seconds, digest


def main(
    before: Path,
    after: Path,
    *,
    only: tuple[str, ...] = (),
    repeats: int = 9,
    json_file: Path | None = None,
) -> None:
    """Compare two checkouts of the package.

    Args:
        before: The earlier checkout.
        after: The later one.
        only: The work to compare; by default all.
        repeats: Turns of each, after one to warm up.
        json_file: Also write the figures to this file.
    """
    for side in (before, after):
        if not (side / "src" / "enresnet").is_dir():
            raise SystemExit(f"{side} is no checkout of the package: it has no src/enresnet")
    if odd := [name for name in only if name not in WORK]:
        raise SystemExit(f"--only knows {', '.join(WORK)}; found {', '.join(odd)}")
    found = {}
    for name in only or WORK:
        found[name] = compare(name, [before.resolve(), after.resolve()], repeats)
        row = found[name]
        same = "the same results" if row["same results"] else "other results"
        print(
            f"{name}: {row['after over before']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f}),"
            f" {row['seconds before']:.2f} s before, {row['seconds after']:.2f} s after, {same}\n"
            f"  {row['what']}",
            flush=True,
        )
        if json_file is not None:
            json_file.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        import tyro

        tyro.cli(tyro.conf.configure(tyro.conf.PositionalRequiredArgs)(main))
