"""ALOHA's HDF5: a file an episode, `observations/qpos` and `action`; its pictures are not read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.d4rl import D4rl

USUAL = ("qpos",)


class Aloha(D4rl):
    """One episode; `--obs-keys qpos,qvel` adds velocities."""

    numbered = False

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return file is not None and "action" in file and "qpos" in file.get("observations", ())

    def open_columns(self) -> Mapping[str, Any]:
        there = self.file["observations"]
        chosen = arrays.pick(self.choice.parts or USUAL, there, self.origin, "--obs-keys")
        states, self.names = arrays.join(there, chosen, self.origin)
        self.left_out = tuple(name for name in there if name not in chosen)
        if not len(states):
            raise InputError(f"{self.origin} has no rows")
        last = np.arange(len(states)) == len(states) - 1
        return {"observations": states, "actions": self.file["action"], "timeouts": last}

    def listing(self) -> dict[str, str]:
        return arrays.listing(self.file)
