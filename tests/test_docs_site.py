"""The documentation site builds without a warning, has every public name, needs no network."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest

from test_architecture import DOORS

pytestmark = pytest.mark.slow
pytest.importorskip("furo", reason="make docs installs what builds the site")

ROOT = Path(__file__).parent.parent
PACKAGES = [f"enresnet.{door}".rstrip(".") for door in [*DOORS, "models.frozen"]]
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    options = ["--fresh-env", "--fail-on-warning", "--keep-going", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


class Page(HTMLParser):
    """What a page fetches, where it leads, and the names of its places."""

    def __init__(self, path):
        super().__init__()
        self.fetched, self.links, self.places, self.formulas = [], [], set(), 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in FETCHED and values.get(FETCHED[tag]) and values.get("rel") != "canonical":
            self.fetched.append(values[FETCHED[tag]])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        self.formulas += tag == "math"


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_public_name_is_in_the_inventory(site):
    from sphinx.util.inventory import InventoryFile

    known = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    names = {name for kind, found in known.data.items() if kind[:3] == "py:" for name in found}
    wanted = {f"{one}.{name}" for one in PACKAGES for name in import_module(one).__all__}
    assert len(wanted) > 150
    assert wanted - names == set()


def test_nothing_is_fetched_from_elsewhere(site, pages):
    assert len(pages) > 50
    found = {
        path.name: [one for one in page.fetched if "//" in one] for path, page in pages.items()
    }
    assert {name: fetched for name, fetched in found.items() if fetched} == {}
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)[^;)]*//[^;)]*", sheet.read_text()) == [], sheet


def test_links_lead_somewhere(pages):
    lost = []
    for path, page in pages.items():
        for link in page.links:
            target, _, place = link.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = (path.parent / target).resolve() if target else path
            if not there.exists() or (
                place and there in pages and place not in pages[there].places
            ):
                lost.append(f"{path.name}: {link}")
    assert lost == []


def test_formulas_are_drawn_by_the_browser(site, pages):
    assert pages[site / "pde.html"].formulas > 50
    assert pages[site / "api" / "models.html"].formulas > 3
    assert (site / "_static" / "STIXTwoMath-Regular.ttf").stat().st_size > 100_000


def test_the_reference_shows_equations_arguments_and_sources(site):
    text = (site / "api" / "attacks.html").read_text()
    entry = text[text.index('id="enresnet.attacks.IFGSM"') :]
    assert "Parameters" in entry
    assert "source/src/enresnet/attacks/ifgsm.py.html#L-" in entry
    shown = (site / "source" / "src" / "enresnet" / "attacks" / "ifgsm.py.html").read_text()
    assert "Iterative fast gradient sign method" in shown


def test_every_command_is_described(pages, site):
    from enresnet.cli import COMMANDS

    assert {f"enresnet-{name}" for name in COMMANDS} <= pages[site / "commands.html"].places
