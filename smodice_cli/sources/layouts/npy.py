"""numpy's .npy: a file of states alone, or a folder with one file a column (observations.npy, actions.npy, ...)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smodice_cli.lazy import np
from smodice_cli.sources.layouts import arrays
from smodice_cli.sources.layouts.d4rl import D4rl


class Npy(D4rl):
    """D4RL's columns, each mapped from its file."""

    format = "an .npy file of numbers"

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return path.suffix == ".npy" if path.is_file() else len(list(path.glob("*.npy"))) > 1

    def open_columns(self) -> Mapping[str, Any]:
        if self.path.is_file():
            return {"observations": np.load(self.path, mmap_mode="r")}
        places = {path.stem: path for path in sorted(self.path.glob("*.npy"))}
        named = arrays.Named(places, self.choice.names)
        return {name: np.load(named[name], mmap_mode="r") for name in named}
