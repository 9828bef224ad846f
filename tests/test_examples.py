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

ROOMS = ["data", "models", "attacks", "evaluation"]


def names():
    """Return every name that an example may use, as after the imports of a notebook."""
    known = {"enresnet": enresnet, **{name: getattr(enresnet, name) for name in enresnet.__all__}}
    for room in ROOMS:
        door = importlib.import_module(f"enresnet.{room}")
        known |= {name: getattr(door, name) for name in door.__all__}
    return {**known, "torch": torch, "nn": nn, "Path": Path}


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


def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = names()
    ran = 0
    for name, code in examples(known):
        if not code:
            continue
        model = ResNet.of_depth(8, noise=0.1, generator=seeded()).eval()
        images = torch.rand(2, 3, 8, 8, generator=seeded())
        own = {"model": model, "images": images, "labels": torch.tensor([0, 1])}
        try:
            exec(code, {**known, **own})
        except Exception as error:
            pytest.fail(f"the example of {name} fails: {error!r}")
        ran += 1
    assert ran > 80
