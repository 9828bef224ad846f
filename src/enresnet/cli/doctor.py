"""``enresnet doctor``. It must run where other commands do not: rich and tyro may be missing."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from enresnet.cli.installation import Line, inspect_installation
from enresnet.common.requirements import install_command
from enresnet.common.text import for_terminal


def command(*, json: Path | None = None) -> int:
    """Show what is installed and what works: versions, hardware, compiler, data, extras, caches.

    The exit code is 1 if something is broken that the package needs. Nothing is fetched.

    Args:
        json: Also write all of it to this file.
    """
    _write(json, "")  # raises before the work if it cannot be written
    found = inspect_installation()
    broken = [line for lines in found.values() for line in lines if line.state == "broken"]
    values = {section: [line.to_json() for line in lines] for section, lines in found.items()}
    _write(json, json_format.dumps({"works": not broken, **values}, indent=2) + "\n")
    for section, lines in found.items():
        _show(section, lines)
    if not broken:
        print("everything that the package needs works")
        return 0
    print(f"broken: {for_terminal(', '.join(line.name for line in broken))}")
    missing = [line.missing for line in broken if line.missing is not None]
    if missing:
        print(f"to install what is missing: {for_terminal(install_command(missing))}")
    return 1


def _show(section: str, lines: list[Line], *, width: int = 80) -> None:
    """Print a section. A command to be copied stays on one line, however long."""
    print(f"{section}:")
    column = max((len(line.name) for line in lines), default=0)
    for line in lines:
        remark = f"BROKEN: {line.remark}" if line.state == "broken" else line.remark
        words = f"{line.name:<{column}}  {line.found}"
        if remark:
            near = len(words) + len(remark) + 5 <= width
            words += f" ({remark})" if near else f"\n    {remark}"
        print(for_terminal(f"  {words}"))
    print()


def _write(path: Path | None, text: str) -> None:
    """Write text to a file, if there is one; without any, only raise where it could not be."""
    if path is None:
        return
    try:
        from enresnet.common.files import atomic_write, writable
    except ImportError:  # without platformdirs
        if text:
            path.write_text(text)
        return
    writable(path)
    if text:
        with atomic_write(path) as temporary:
            temporary.write_text(text)


def without_tyro(words: list[str]) -> int:
    """Run the command where tyro, which reads the other commands' options, cannot be imported."""
    if not words or (len(words) == 2 and words[0] == "--json"):
        return command(json=Path(words[1]) if words else None)
    raise ValueError(f"doctor takes --json FILE only, found {' '.join(words)}")
