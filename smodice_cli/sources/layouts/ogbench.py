"""OGBench's npz: `terminals` is set on the last *state* of an episode, whose action is void, not on a true end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smodice_cli.sources.layouts.d4rl import Npz, heads

MARKS = {"observations", "actions", "terminals", "qpos", "qvel"}  # what its files hold ...
OTHERS = {"rewards", "timeouts", "next_observations"}  # ... and what they do not


class OgBench(Npz):
    """D4RL's columns, where an episode has one state more than actions."""

    numbered = False

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        names = {name for name, *_ in heads(path)} if super().recognises(path, file) else set()
        return names >= MARKS and not names & OTHERS

    def open_columns(self) -> Mapping[str, Any]:
        columns = dict(super().open_columns())
        return columns | {"timeouts": columns.pop("terminals")}
