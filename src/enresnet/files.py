"""Files that are whole or not there: written under a temporary name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; on success it becomes ``path``, otherwise it leaves no trace."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: its folder does not exist")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()  # with the permissions that any new file gets
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
