"""How to install what only some commands need: the extras that pyproject.toml lists."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path


class MissingExtraError(ModuleNotFoundError):
    """A package that only some commands need is not installed; the command line says so."""

    exit_code = 2


def needs(what: str, package: str, extra: str) -> None:
    """Raise, with the command that installs it, unless ``package`` is installed.

    Args:
        what: What needs it, as the beginning of the sentence.
        package: The name that is imported.
        extra: The extra of this package that brings it.

    Raises:
        MissingExtraError: It is not installed.
    """
    if find_spec(package) is None:
        raise MissingExtraError(
            f"{what} needs {package}, which is not installed: {install_command(extra)}",
            name=package,
        )


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the Python that runs this.

    A clone is installed from its own folder: no index knows the version it holds.
    """
    root = Path(__file__).parents[3]
    cloned = (root / "pyproject.toml").is_file() and Path(__file__).parents[2].name == "src"
    words = ["--editable", f"{root}[{extra}]"] if cloned else [f"enresnet[{extra}]"]
    python = [sys.executable, "-m"] if sys.executable else []
    return shlex.join([*python, "pip", "install", *words])
