"""The examples in the docstrings of public names run as they are."""

import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import enresnet
from enresnet.models import ResNet
from problems import seeded

ROOMS = ["data", "models", "attacks", "evaluation", "training", "pde", "report", "paper"]

# These take seconds to a minute each.
SLOW = {
    "paper.run_quickstart",
    "paper.study_classifier",
    "paper.study_multilevel",
    "paper.study_particles",
    "paper.verify_solvers",
    "pde.study_characteristics",
    "report.Quickstart",
    "report.quickstart_page",
}


def names(room=None):
    """Return every name that an example may use, as after the imports of a notebook.

    Of two rooms with a name in common, the example's own counts.
    """
    known = {"enresnet": enresnet, **{name: getattr(enresnet, name) for name in enresnet.__all__}}
    for each in [*ROOMS, *([room] if room else [])]:
        known |= shown_by(each)
    return {**known, "torch": torch, "nn": nn, "Path": Path}


def shown_by(room):
    door = importlib.import_module(f"enresnet.{room}")
    return {name: getattr(door, name) for name in door.__all__}


def example_of(thing):
    """Return the code of a docstring's example; "" where there is none."""
    text = inspect.getdoc(thing) or ""
    found = re.search(r"^Example::\n\n((?:    .*\n|\n)+)", f"{text}\n", flags=re.M)
    return textwrap.dedent(found[1]) if found else ""


def examples(known):
    """Yield the examples of functions, of classes, and of the methods of classes."""
    for name, thing in known.items():
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        yield name, example_of(thing)
        for method in vars(thing) if inspect.isclass(thing) else ():
            if not method.startswith("_") or method == "__call__":
                yield f"{name}.{method}", example_of(getattr(thing, method))


def run_examples(room, *, slow):
    """Run the quick or the slow examples of a room; return how many there are."""
    ran = 0
    for name, code in examples(shown_by(room)):
        if not code or (f"{room}.{name}" in SLOW) != slow:
            continue
        model = ResNet.of_depth(8, noise=0.1, generator=seeded()).eval()
        images = torch.rand(2, 3, 8, 8, generator=seeded())
        own = {"model": model, "images": images, "labels": torch.tensor([0, 1])}
        try:
            exec(code, {**names(room), **own})
        except Exception as error:
            pytest.fail(f"the example of {room}.{name} fails: {error!r}")
        ran += 1
    return ran


def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(run_examples(room, slow=False) for room in ROOMS) > 60


@pytest.mark.slow
def test_slow_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(run_examples(room, slow=True) for room in ROOMS) == len(SLOW)
