r"""The trainings and measurements behind ``results``, in the order of their worth, as one command.

    python benchmarks/evidence.py                                   # what is there, what is not
    OMP_NUM_THREADS=1 python benchmarks/evidence.py --work RUNS     # do what is not
    python docs/_ext/results_tables.py --write                      # then show it

Runs are trained in RUNS, outside of the repository. When one ends, its network is kept in
``results`` in half precision and measured as it is kept. Killed, the same command goes on; several
processes, such as one for each core, may share the work. ``--only`` takes parts of names.

To train all runs of a comparison by one commit, call this file with the Python of a clone of that
commit, and ``--results`` to keep what it proves elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import tyro

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
EVALUATION = "evaluation.json"

ALL = 10_000  # test images of CIFAR
FEW = {"fgsm": ALL, "ifgsm20": 2000}
MORE = {**FEW, "cw": 1000, "cw_kappa0.5": 1000, "strongest": 500}
BASE = (  # 15 epochs of N-FGSM, the reference of the study
    *("--epochs", "15", "--label-smoothing", "0", "--epsilon-growth", "0"),
    *("--low-resolution", "0", "--shift", "none"),
)

# Arms that the guard against collapse may have changed, by a mistake of its own: docs/study.md.
MIRROR, GROWING = ("--shift", "0"), ("--epsilon-growth", "0.5")
AGAIN = {
    "m-grow-2": (*MIRROR, *GROWING),
    "m-grow-ls0.1-2": (*MIRROR, *GROWING, "--label-smoothing", "0.1"),
    "m-low-2": (*MIRROR, "--epochs", "21", "--low-resolution", "0.4"),
}


@dataclass(frozen=True)
class Place:
    """Where runs are trained, and where what they prove is kept.

    Commands run beside the results and name them by a relative path, since some write it down.
    """

    runs: Path
    folder: Path

    @property
    def results(self) -> Path:
        """The folder of results, as commands name it."""
        return Path(self.folder.name)


class Job(Protocol):
    """Something to do: a name, whether it is done, and the commands that do it."""

    @property
    def name(self) -> str:
        """The folder in ``results`` that it fills, or what it measures."""
        ...

    def done(self, results: Path) -> bool:
        """Return whether all of it is kept."""
        ...

    def commands(self, place: Place) -> Iterator[list[str]]:
        """Yield the commands; those of a part that is done end at once."""
        ...


@dataclass(frozen=True)
class Run:
    """One network of one seed: trained, kept, attacked."""

    model: str
    seed: int = 0
    recipe: str = "fast"
    data: str = "cifar10"
    attacks: Mapping[str, int] = field(default_factory=lambda: FEW)  # and how many images
    variant: str = ""
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder in ``results``."""
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.data}/{self.recipe}/{self.model}{variant}-seed{self.seed}"

    def done(self, results: Path) -> bool:
        """Return whether it was attacked on as many images as are wanted."""
        found = section(results / self.name, "best").get("robust", {})
        return all(found.get(a, {}).get("images", 0) >= n for a, n in self.attacks.items())

    def commands(self, place: Place) -> Iterator[list[str]]:
        """Yield the commands; those of a part that is done end at once."""
        run, kept = place.runs / self.name, place.results / self.name
        if not (place.folder / self.name / "best.safetensors").is_file():
            yield self.obtain(place)
            yield [sys.executable, str(BENCHMARKS / "keep.py"), str(run), str(kept)]
        for attack, images in self.attacks.items():
            limit = [] if images == ALL else ["--limit", str(images)]
            yield enresnet("evaluate", str(kept), "--attacks", attack, *limit)

    def obtain(self, place: Place) -> list[str]:
        """Return the command that trains it."""
        named = ("--model", self.model, "--data", self.data, "--recipe", self.recipe)
        how = ("--seed", str(self.seed), *self.options, "--out", str(place.runs / self.name))
        return enresnet("train", *named, *how)


@dataclass(frozen=True)
class Integrated(Run):
    """Two networks that were trained apart, joined (Sec. 4.2); ``parts`` are their folders."""

    parts: tuple[str, ...] = ()

    def commands(self, place: Place) -> Iterator[list[str]]:
        """Yield the commands, once the parts are there."""
        if all((place.folder / part / "best.safetensors").is_file() for part in self.parts):
            yield from super().commands(place)

    def obtain(self, place: Place) -> list[str]:
        """Return the command that joins its parts."""
        parts = (str(place.results / part) for part in self.parts)
        return enresnet("integrate", *parts, "--out", str(place.runs / self.name))


@dataclass(frozen=True)
class Varied:
    """A kept network measured with another noise in testing than in training."""

    run: str
    noise: float
    attacks: Mapping[str, int]

    @property
    def name(self) -> str:
        """The folder in ``results``, and the noise."""
        return f"{self.run} with noise {self.noise:g}"

    def done(self, results: Path) -> bool:
        """Return whether it was attacked on as many images as are wanted."""
        found = section(results / self.run, f"best, with noise {self.noise:g}").get("robust", {})
        return all(found.get(a, {}).get("images", 0) >= n for a, n in self.attacks.items())

    def commands(self, place: Place) -> Iterator[list[str]]:
        """Yield the commands, once the network is there."""
        kept = place.results / self.run
        for attack, images in self.attacks.items() if (place.folder / self.run).is_dir() else ():
            limit = [] if images == ALL else ["--limit", str(images)]
            varied = ("--noise", f"{self.noise:g}", "--attacks", attack)
            yield enresnet("evaluate", str(kept), *varied, *limit)


@dataclass(frozen=True)
class Blind:
    """Images made against one network, classified by another (Tables 3 and 6)."""

    table: str
    target: str
    source: str
    data: str
    recipe: str = "fast"
    seed: int = 0
    images: int = 1000

    @property
    def name(self) -> str:
        """What is measured."""
        return f"{self.data}/{self.recipe}/{self.target}-seed{self.seed} from {self.source}"

    def done(self, results: Path) -> bool:
        """Return whether all attacks of the table were measured."""
        folder = results / self.data / self.recipe / f"{self.target}-seed{self.seed}"
        found = section(folder, f"best, blind from {self.source}").get("robust", {})
        wanted = ("fgsm", "ifgsm20", "cw")
        return all(found.get(a, {}).get("images", 0) >= self.images for a in wanted)

    def commands(self, place: Place) -> Iterator[list[str]]:
        """Yield the command, once both networks are there."""
        folder = place.folder / self.data / self.recipe
        if all((folder / f"{n}-seed{self.seed}").is_dir() for n in (self.target, self.source)):
            wanted = (self.table, "--only", f"{self.target}-from-{self.source}")
            how = ("--recipe", self.recipe, "--seeds", str(self.seed), "--limit", str(self.images))
            where = ("--runs", str(place.results), "--out", str(place.runs / "blind"))
            yield enresnet("reproduce", *wanted, *how, *where)


@dataclass(frozen=True)
class Arm:
    """A training of the study of recipes, judged on validation images (docs/study.md)."""

    arm: str
    seed: int
    options: tuple[str, ...] = ()
    model: str = "resnet20"

    @property
    def name(self) -> str:
        """Its name in ``results/study/study.json``."""
        return f"study/{self.arm}-{self.seed}"

    def done(self, results: Path) -> bool:
        """Return whether it was read into the table."""
        table = results / "study" / "study.json"
        return table.is_file() and f"{self.arm}-{self.seed}" in json.loads(table.read_text())

    def commands(self, place: Place) -> Iterator[list[str]]:
        """Yield the training, and the command that reads it."""
        named = ("--model", self.model, "--data", "cifar10", "--recipe", "fast")
        run = place.runs / self.name
        yield enresnet("train", *named, *self.options, "--seed", str(self.seed), "--out", str(run))
        kept = place.results / "study" / "study.json"
        yield [sys.executable, str(BENCHMARKS / "study.py"), str(run.parent), "--kept", str(kept)]


def usual(seed: int) -> Mapping[str, int]:
    """Return the attacks on a network of Table 2; those that take long only on seed 0."""
    return MORE if seed == 0 else FEW


def attacked(seed: int) -> Mapping[str, int]:
    """Return the attacks on a network with another noise; C&W only on seed 0."""
    return {"fgsm": ALL, "cw": 1000} if seed == 0 else {"fgsm": ALL}


def tuned(model: str) -> Iterator[Arm]:
    """Yield the arms that try other rates and weight decays on a network."""
    for rate in ("0.1", "0.4"):
        yield Arm(f"{model}-lr{rate}", 1, ("--learning-rate", rate), model)
    for decay in ("2e-4", "1e-3"):
        yield Arm(f"{model}-wd{decay}", 1, ("--weight-decay", decay), model)


FAST, QUIET = "cifar10/fast", ("--noise", "0")
JOBS: tuple[Job, ...] = (
    *(Run(m, seed, attacks=usual(seed)) for seed in range(5) for m in ("resnet20", "en1_resnet20")),
    *(Run("en2_resnet20", seed, attacks=usual(seed)) for seed in range(3)),
    *(Run("en2_resnet20", s, variant="without_noise", options=QUIET) for s in range(3)),
    *(
        Integrated(
            "resnet20+resnet20",
            own,
            variant="integrated",
            parts=(f"{FAST}/resnet20-seed{own}", f"{FAST}/resnet20-seed{other}"),
        )
        for own, other in ((0, 3), (2, 4))  # no network in two of them
    ),
    # What noise does in training and in testing, each apart.
    *(Varied(f"{FAST}/en1_resnet20-seed{s}", 0, attacked(s)) for s in range(5)),
    *(Varied(f"{FAST}/resnet20-seed{s}", 0.1, attacked(s)) for s in range(5)),
    # Table 1, and the check for masked gradients.
    *(Run(m, recipe="natural_fast") for m in ("resnet20", "en1_resnet20", "en2_resnet20")),
    # Tables 5 and 6.
    *(Run(m, data="cifar100") for m in ("resnet20", "en2_resnet20", "resnet44")),
    Blind("table6", "resnet20", "en2_resnet20", "cifar100"),
    Blind("table6", "en2_resnet20", "resnet20", "cifar100"),
    # En5, Table 3 and Table 7.
    Run("en5_resnet20"),
    Blind("table3", "resnet20", "en5_resnet20", "cifar10"),
    Blind("table3", "en5_resnet20", "resnet20", "cifar10"),
    Integrated(
        "en2_resnet20+en5_resnet20",
        variant="integrated",
        parts=(f"{FAST}/en2_resnet20-seed0", f"{FAST}/en5_resnet20-seed0"),
    ),
    *(Run(m, recipe="long", attacks=MORE) for m in ("resnet20", "en1_resnet20", "en2_resnet20")),
    # The study: the reference again, rate and weight decay of ensembles, twice the epochs.
    *(Arm("base", seed, BASE) for seed in (0, 2, 3)),
    *(Arm(name, 1, (*BASE, *changed)) for name, changed in AGAIN.items()),
    *tuned("en1_resnet20"),
    *tuned("en2_resnet20"),
    Arm("epochs42", 1, ("--epochs", "42")),
)


def main(
    *,
    work: Path | None = None,
    results: Path = ROOT / "results",
    only: Sequence[str] = (),
) -> None:
    """Say what is there, or do what is not.

    Args:
        work: Train in this folder what is not there; by default nothing is done.
        results: Where results are kept.
        only: Only jobs whose names contain one of these.
    """
    jobs = [job for job in JOBS if not only or any(part in job.name for part in only)]
    if not jobs:
        sys.exit(f"--only: no job has {' or '.join(only)} in its name")
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        place = Place(work.resolve(), results.resolve())
        failed = [job.name for job in jobs if not do(job, place)]
        if failed:
            sys.exit(f"failed, the last lines say why: {', '.join(failed)}")
    for job in jobs:
        print("done    " if job.done(results) else "not run ", job.name)


def do(job: Job, place: Place) -> bool:
    """Do what is not done of a job, unless another process does; return whether nothing failed."""
    with alone(place.runs / ".locks" / job.name.replace("/", "_")) as mine:
        if not mine or job.done(place.folder):
            return True
        for command in job.commands(place):
            print("$", *command[2 if command[1] == "-m" else 1 :], flush=True)
            if subprocess.run(command, check=False, cwd=place.folder.parent).returncode:
                return False
    return True


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Hold a lock; what comes out is whether no other process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def section(folder: Path, name: str) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    """Return a section of what was measured of a run; empty if nothing was."""
    path = folder / EVALUATION
    found: dict[str, Mapping[str, Mapping[str, Mapping[str, int]]]]
    found = json.loads(path.read_text()) if path.is_file() else {}
    return found.get(name, {})


def enresnet(*words: str) -> list[str]:
    """Return a command line."""
    return [sys.executable, "-m", "enresnet", *words]


if __name__ == "__main__":
    tyro.cli(main)
