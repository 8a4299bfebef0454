"""What a program hands to our functions, checked before anything is done with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from smodice_cli.engine import Options, check_seed
from smodice_cli.errors import UsageError


def path(given: Any, what: str) -> Path:
    """A path, or an artifact's."""
    if not isinstance(given, str | os.PathLike) or not isinstance(found := os.fspath(given), str):
        raise UsageError(f"{what} must be a path, not {type(given).__name__}")
    if not found or "\0" in found:
        raise UsageError(f"{what} = {found!r} is no path")
    return Path(found)


def text(given: Any, what: str) -> str:
    """Text."""
    if not isinstance(given, str):
        raise UsageError(f"{what} must be text, not {type(given).__name__}")
    return given


def several(given: Any, what: str) -> list[Any]:
    """A list of things."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"{what} must be a list, not {type(given).__name__}")
    return list(given)


def options(given: Any) -> Options:
    """How to run; the usual way where nothing is said."""
    if not isinstance(given, Options | None):
        raise UsageError(f"options must be smodice.Options(...), not {type(given).__name__}")
    return given or Options()


def seed(given: Any) -> int:
    """What every generator takes."""
    return check_seed(given)


def seeds(given: Any) -> list[int]:
    """At least one, and each once."""
    found = [check_seed(one) for one in several(given, "seeds")]
    if not found or len({*found}) != len(found):
        raise UsageError("seeds: at least one, and each once")
    return found
