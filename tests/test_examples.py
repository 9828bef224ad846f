"""The examples in the docstrings of public names run as they are.

A reader has typed ``import enresnet``, nothing else. So an example writes ``enresnet.name`` for a
name that ``enresnet`` shows, and opens with the imports of all others. Only a network and a batch
for it are given.
"""

import ast
import importlib
import inspect
import re
import textwrap
from itertools import takewhile

import pytest
import torch

import enresnet
from enresnet.models import ResNet
from problems import seeded

ROOMS = ["data", "models", "models.frozen", "attacks", "evaluation", "training", "pde", "report"]
ROOMS += ["publish", "paper", "demo"]

# These take seconds to a minute each.
SLOW = {
    "paper.run_quickstart",
    "paper.study_classifier",
    "paper.study_multilevel",
    "paper.study_particles",
    "paper.verify_solvers",
    "pde.study_characteristics",
    "report.Quickstart",
    "report.render_quickstart",
}


def given():
    """Return the names that an example may use without an import."""
    return {
        "enresnet": enresnet,
        "model": ResNet.of_depth(8, noise=0.1, generator=seeded()).eval(),
        "images": torch.rand(2, 3, 8, 8, generator=seeded()),
        "labels": torch.tensor([0, 1]),
    }


def shown_by(room):
    """Return the public names of a subpackage."""
    door = importlib.import_module(f"enresnet.{room}")
    return {name: getattr(door, name) for name in door.__all__}


def example_of(thing):
    """Return the code of a docstring's example; "" where there is none."""
    text = inspect.getdoc(thing) or ""
    found = re.search(r"^Example::\n\n((?:    .*\n|\n)+)", f"{text}\n", flags=re.M)
    return textwrap.dedent(found[1]) if found else ""


def examples(room):
    """Yield the examples of functions, of classes, and of the methods of classes, by name."""
    for name, thing in shown_by(room).items():
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        yield f"{room}.{name}", example_of(thing)
        for method in vars(thing) if inspect.isclass(thing) else ():
            if not method.startswith("_") or method == "__call__":
                yield f"{room}.{name}.{method}", example_of(getattr(thing, method))


def run_examples(room, *, slow):
    """Run the quick or the slow examples of a subpackage; return how many there are."""
    ran = 0
    for name, code in examples(room):
        if not code or (name in SLOW) != slow:
            continue
        try:
            exec(code, given())
        except Exception as error:
            pytest.fail(f"the example of {name} fails: {error!r}")
        ran += 1
    return ran


def misplaced_imports(code):
    """Return the imports below an example's first lines, and those of names that enresnet shows."""
    nodes = ast.parse(code).body
    top = list(takewhile(is_import, nodes))
    found = [ast.unparse(node) for node in nodes[len(top) :] if is_import(node)]
    for node in top:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            names = [alias.name for alias in node.names]
            found += [
                ast.unparse(node)
                for name in names
                if getattr(module, name) is getattr(enresnet, name, None)
            ]
    return found


def is_import(node):
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(run_examples(room, slow=False) for room in ROOMS) > 60


@pytest.mark.slow
def test_slow_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(run_examples(room, slow=True) for room in ROOMS) == len(SLOW)


def test_examples_open_with_the_imports_of_what_enresnet_does_not_show():
    found = {name: misplaced_imports(code) for room in ROOMS for name, code in examples(room)}
    assert {name: imports for name, imports in found.items() if imports} == {}


@pytest.mark.parametrize(
    "code",
    [
        "from enresnet.models import create_model",
        "print(1)\nfrom enresnet.attacks import IFGSM",
        "from enresnet.models import Normalized, load_model",
    ],
)
def test_a_misplaced_import_would_be_found(code):
    assert len(misplaced_imports(code)) == 1
    assert misplaced_imports("from enresnet.pde import feynman_kac\nfeynman_kac") == []
