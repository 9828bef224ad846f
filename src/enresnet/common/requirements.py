"""What the package needs to run, what its extras add, and how to install what is missing.

In a clone ``pyproject.toml`` says it: what pip once noted may be older than the code. Elsewhere the
metadata of the installed package does. This file imports nothing that could itself be missing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "enresnet"
# What is imported, where that is not the name of the package with another dash.
_MODULES = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}
_WRITTEN = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*(?:>=\s*(?P<least>[\w.]+))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")


@dataclass(frozen=True)
class Requirement:
    """A package that ours needs, and its least version; "" if any will do."""

    name: str
    least: str = ""

    def __str__(self) -> str:
        """As pip takes it: torch>=2.6."""
        return f"{self.name}>={self.least}" if self.least else self.name

    @property
    def module(self) -> str:
        """What is imported of it."""
        return _MODULES.get(self.name.lower(), self.name.replace("-", "_"))

    def installed(self) -> str:
        """Return the version that is installed; "" if there is none."""
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return ""

    def is_met(self) -> bool:
        """Return whether it is installed, and new enough."""
        found = self.installed()
        return bool(found) and is_at_least(found, self.least)


def is_at_least(version: str, least: str) -> bool:
    """Return whether a version is another or later, by its numbers: 2.13.0+cpu is after 2.6."""
    return _numbers(version) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    (leading,) = re.findall(r"^[\d.]*", version.strip())
    found = [int(part) for part in leading.split(".") if part]
    while found and found[-1] == 0:  # 2.0 is 2
        found.pop()
    return tuple(found)


def clone() -> Path | None:
    """Return the folder of the clone that this code is in; None if it is an installed copy."""
    folder = Path(__file__).resolve().parents[3]
    try:
        return folder if _project(folder)["name"] == PACKAGE else None
    except (OSError, ValueError, KeyError):
        return None


def python_needed() -> str:
    """Return the least version of Python that the package runs on."""
    folder = clone()
    if folder is None:
        written = importlib.metadata.metadata(PACKAGE)["Requires-Python"]
    else:
        written = _project(folder)["requires-python"]
    return str(written).removeprefix(">=")


def core_requirements() -> list[Requirement]:
    """Return the packages that ours cannot do without."""
    return _requirements()[""]


def extras() -> dict[str, list[Requirement]]:
    """Return what each extra adds; not ``dev``, which is for work on the package itself."""
    return {name: of for name, of in _requirements().items() if name not in ("", "dev")}


def install_command(requirements: list[Requirement]) -> str:
    """Return the command that installs packages into the Python that runs.

    It names the packages themselves: ``enresnet[extra]`` would need ours to be on an index.
    """
    words = [sys.executable or "python", "-m", "pip", "install"]
    folder = clone()
    if folder is not None and (folder / "constraints.txt").is_file():
        words += ["-c", str(folder / "constraints.txt")]
    return shlex.join([*words, *map(str, requirements)])


def needs(what: str, package: str, extra: str) -> None:
    """Raise, with the command that installs it, unless a package of an extra is installed.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{what} needs {package}, which is not installed: {install_command(extras()[extra])}",
            name=package,
        )


def _requirements() -> dict[str, list[Requirement]]:
    """Return the requirements by extra; those of the package itself under ""."""
    folder = clone()
    if folder is not None:
        project = _project(folder)
        written = {"": project["dependencies"], **project["optional-dependencies"]}
        return {extra: list(map(_read, lines)) for extra, lines in written.items()}
    metadata = importlib.metadata.metadata(PACKAGE)
    found: dict[str, list[Requirement]] = {"": []}
    found.update({extra: [] for extra in metadata.get_all("Provides-Extra") or []})
    for line in metadata.get_all("Requires-Dist") or []:
        wanted, _, condition = line.partition(";")
        extra = _EXTRA.search(condition)
        found.setdefault(extra[1] if extra else "", []).append(_read(wanted))
    return found


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def _read(line: str) -> Requirement:
    match = _WRITTEN.match(line.strip())
    if match is None:
        raise ValueError(f"{line!r} is no requirement such as torch>=2.6")
    return Requirement(match["name"], match["least"] or "")
