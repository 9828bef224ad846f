"""Results of a long comparison, kept one by one in a JSON file: it goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from enresnet.common.files import atomic_write


class Kept:
    """What was found so far under the same settings, in a file if there is one."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path = path
        self._content: dict[str, Any] = {"settings": settings, "found": {}}
        if path is not None and path.exists():
            self._content = json.loads(path.read_text())
            if self._content.get("settings") != settings:
                raise SystemExit(
                    f"--kept: {path} holds something else than results under {settings}; name "
                    "another file"
                )

    @property
    def found(self) -> dict[str, Any]:
        """All that was found."""
        found: dict[str, Any] = self._content["found"]
        return found

    def put(self, key: str, value: Any) -> None:
        """Keep a result."""
        self.found[key] = value
        if self.path is not None:
            with atomic_write(self.path) as temporary:
                temporary.write_text(json.dumps(self._content, indent=2) + "\n")
