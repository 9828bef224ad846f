"""Kills and faults; see the campaign's page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torture.outcomes import Tally

CAMPAIGNS: dict[str, Callable[[int, int, Path], Tally]] = {}
