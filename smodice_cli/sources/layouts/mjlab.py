"""mjlab's motion.npz: a motion without actions, which is an expert as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.d4rl import Npz, heads

USUAL = ("joint_pos", "joint_vel")


class Motion(Npz):
    """One motion: positions and velocities of joints, and of bodies if those are chosen (`--obs-keys body_pos_w`)."""

    format = "a motion of mjlab's"
    numbered = False

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        names = {name for name, *_ in heads(path)} if super().recognises(path, file) else set()
        return names >= set(USUAL) and "observations" not in names

    def open_columns(self) -> Mapping[str, Any]:
        with np.load(self.path, allow_pickle=False) as archive:
            there = [name for name in archive if archive[name].ndim > 1]
            chosen = arrays.pick(self.choice.parts or USUAL, there, self.origin, "--expert-keys")
            parts = {name: archive[name].reshape(len(archive[name]), -1) for name in chosen}
        self.left_out = tuple(name for name in there if name not in chosen)
        states, self.names = arrays.join(parts, chosen, self.origin)
        if not len(states):
            raise InputError(f"{self.origin} has no rows")
        return {"observations": states, "timeouts": np.arange(len(states)) == len(states) - 1}
