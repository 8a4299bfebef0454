"""Diffusion policy's zarr: arrays with a row a step under `data`, and under `meta/episode_ends` where episodes end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.d4rl import D4rl

STATES, ACTION = ("state", "obs"), "action"  # what is read where nothing else is asked for


class Zarr(D4rl):
    """Columns of one length; `--obs-keys state,keypoint` chooses those of the state."""

    format = "a zarr store"
    extra = ("zarr", "zarr")
    numbered = False

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return path.is_dir() and any((path / name).exists() for name in (".zgroup", "zarr.json"))

    def open_columns(self) -> Mapping[str, Any]:
        import zarr

        self.store: Any = zarr.open_group(str(self.path), mode="r")
        if "data" not in self.store or "meta/episode_ends" not in self.store:
            has = ", ".join(sorted(self.store)) or "nothing"
            raise InputError(f"{self.origin} has no 'data' and 'meta/episode_ends' (it has: {has})")
        there = arrays.Named(self.store["data"], self.choice.keys)
        found = {name: there[name] for name in ("rewards", "terminals") if name in there}
        for name in (ACTION, "actions"):
            found |= {"actions": there[name]} if name in there else {}
        known = [name for name in there if name not in (ACTION, "actions", *found)]
        usual = [name for name in ("observations", *STATES) if name in known][:1] or STATES[:1]
        chosen = arrays.pick(self.choice.parts or usual, known, self.origin, "--obs-keys")
        for column in (*found.values(), *(there[name] for name in chosen), self.store["meta/episode_ends"]):
            self._check_held(column)
        states, self.names = arrays.join(there, chosen, self.origin)
        self.left_out = tuple(name for name in known if name not in chosen)
        return found | {"observations": states, "timeouts": self._ends(len(states))}

    def _check_held(self, column: Any) -> None:
        """Refuse an array that declares far more numbers than its chunks hold: the others would be made up."""
        size = math.prod(getattr(column, "shape", ())) * 4
        if size > arrays.ROOM:
            held = sum(file.stat().st_size for file in (self.path / column.path).rglob("*") if file.is_file())
            arrays.check_size(size, held, f"{self.origin}: '{column.path}'")

    def _ends(self, rows: int) -> np.ndarray:
        ends = np.asarray(self.store["meta"]["episode_ends"][:])
        if not len(ends) or ends[-1] != rows or (np.diff(ends, prepend=0) <= 0).any():
            raise InputError(
                f"{self.origin}: 'meta/episode_ends' must rise to the number of rows, {rows} "
                f"(it has {len(ends)} ends, the last {int(ends[-1]) if len(ends) else 'none'})"
            )
        marks = np.zeros(rows, bool)
        marks[ends.astype(np.int64) - 1] = True
        return marks

    def listing(self) -> dict[str, str]:
        return arrays.listing(self.store)
