"""In a notebook: a bar shows below the cell, and a table is printed where it is asked for."""

import builtins
import sys
from types import ModuleType, SimpleNamespace

import pytest

from enresnet.common import progress
from enresnet.common.progress import in_notebook, progress_bar
from enresnet.common.tables import as_text


class ZMQInteractiveShell:
    """What IPython's shell is called in a Jupyter kernel."""


@pytest.fixture
def cell(monkeypatch):
    """Pretend to be in a Jupyter kernel; the texts that its cell shows, one after another."""
    shown = []

    def update(content, *, raw):
        assert raw
        shown.append(content["text/plain"])

    def display(content, *, raw, display_id):
        assert raw
        assert display_id
        shown.append(content["text/plain"])
        return SimpleNamespace(update=update)

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = ZMQInteractiveShell
    displays.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return shown


def test_a_bar_shows_below_the_cell_and_goes(cell, monkeypatch, capfd):
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    with progress_bar("evaluating", 10) as advance:
        advance(4, "fgsm")
        advance(5, "pgd")
    assert "evaluating" in cell[1]
    assert " 40% fgsm" in cell[1]
    assert " 90% pgd" in cell[2]
    assert "\x1b" not in "".join(cell)
    assert cell[-1] == ""
    assert capfd.readouterr().err == ""


def test_a_bar_that_is_asked_for_stays(cell):
    with progress_bar("evaluating", 10, show=True) as advance:
        advance(10)
    assert "100%" in cell[-1]


def test_no_bar_where_it_is_refused(cell):
    with progress_bar("evaluating", 10, show=False) as advance:
        advance(10)
    assert cell == []


def test_a_bar_is_drawn_a_few_times_a_second(cell):
    with progress_bar("evaluating", 1000, show=True) as advance:
        for _ in range(1000):
            advance(1)
    assert len(cell) < 100


def test_a_table_as_text_is_returned_and_not_shown(cell):
    assert "fgsm" in as_text([{"images": "fgsm"}])
    assert cell == []


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_elsewhere_it_is_no_notebook(shell, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    ipython = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not in_notebook()
    ipython.get_ipython = lambda: shell
    assert not in_notebook()
