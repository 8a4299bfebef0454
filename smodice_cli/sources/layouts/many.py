"""Folders and patterns: the recordings in them one after the other, each with an episode or many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli.data import Transitions
from smodice_cli.errors import InputError
from smodice_cli.files import matching, natural
from smodice_cli.lazy import np
from smodice_cli.sources import layouts
from smodice_cli.sources.layouts import Layout, arrays, foreign
from smodice_cli.sources.source import Blocks, Contents

ENDINGS = (".hdf5", ".h5", ".npz", ".npy", ".csv", ".tsv", ".parquet", ".zarr")


class Many(Layout):
    """Several recordings, in the order of the numbers in their names, all of one width."""

    format = "a folder of recordings"
    filters = numbered = True

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return path.is_dir() or not path.exists()

    @cached_property
    def members(self) -> list[Path]:  # type: ignore[override]
        """The recordings, also those of the folders among them that are no recording themselves."""
        found = []
        for path in self._inside():
            if path.is_dir():
                with layouts.opened(path, self.choice, keep=False) as recording:
                    found += recording.members
            else:
                found.append(path)
        return found

    def _inside(self) -> list[Path]:
        """The files and folders at the place itself."""
        if not self.path.is_dir():
            found = matching(self.path)
            if not found:
                raise InputError(f"nothing matches {self.path}")
            return found
        inside = [path for path in self.path.iterdir() if not path.name.startswith(".")]
        found = sorted((path for path in inside if path.suffix.lower() in ENDINGS), key=natural)
        if not found:
            deeper = f"; recordings in folders below are reached by a pattern: '{self.path}/**/*.hdf5'"
            what = foreign.what_is(self.path) if inside else "an empty folder"
            raise InputError(f"{self.origin} cannot be read: it is {what}", foreign.FORMATS + deeper)
        return found

    @cached_property
    def first(self) -> Contents:
        """What the first of them holds."""
        return self._describe(self.members[0])

    def _describe(self, path: Path) -> Contents:
        with layouts.opened(path, self.choice, keep=False) as recording:
            return recording.describe()

    def describe(self) -> Contents:
        return self.first if len(self.members) == 1 else replace(self.first, ends=True)

    def episodes(self, horizon: int, *, states_only: bool = False) -> Blocks:
        return arrays.batched(self._each(horizon, states_only))

    def _each(self, horizon: int, states_only: bool) -> Iterator[Transitions]:
        for index, path in enumerate(self.members):
            with layouts.opened(path, self.choice, keep=False) as recording:
                self._check(path, recording.describe(), states_only)
                for block in recording.episodes(horizon, states_only=states_only):
                    origin = np.zeros((block.episodes, 3), np.int64) if block.origin is None else block.origin
                    origin[:, 0] = index
                    yield replace(block, origin=origin)

    def _check(self, path: Path, held: Contents, states_only: bool) -> None:
        first, names = self.first, self.members[0].name
        if held.observations != first.observations or (held.actions != first.actions and not states_only):
            raise InputError(
                f"{path} has {held.observations} dimensions of state and {held.actions} of action, "
                f"{names} {first.observations} and {first.actions}",
                "one folder or pattern holds the recordings of one robot",
            )
        if held.names != first.names:
            raise InputError(f"{path} names its dimensions {', '.join(held.names)}, {names} {', '.join(first.names)}")

    def listing(self) -> dict[str, str]:
        with layouts.opened(self.members[0], self.choice, keep=False) as recording:
            inside = recording.listing()
        return {f"{len(self.members)} recordings": f"{self.members[0].name} to {self.members[-1].name}", **inside}

    def flags(self) -> list[str]:
        with layouts.opened(self.members[0], self.choice, keep=False) as recording:
            return recording.flags()
