"""`file:PATH`: recordings of the user's own; and what all sources that are read from files share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from smodice_cli import envs
from smodice_cli.errors import InputError
from smodice_cli.files import matching
from smodice_cli.lazy import np
from smodice_cli.sources import layouts
from smodice_cli.sources.source import EVERYTHING, Blocks, Choice, Contents, Source


class Recorded(Source):
    """A source that is read from a file; its scheme says where that lies and how it gets there (`file`)."""

    def check_states(self, states: np.ndarray, where: str, first: int = 0) -> None:
        """Refuse all-zero states, which a preallocated recording that was never filled leaves behind."""
        zero = (states == 0).all(axis=1)
        if zero.any():
            raise InputError(
                f"{where}: some states are all zeros, first in transition {first + int(zero.argmax())}, "
                "which usually means a recording that was preallocated and never filled",
                "remove those rows from the file",
            )

    def describe(self, choice: Choice = EVERYTHING, *, fetch: bool = True) -> Contents | None:
        path = self.file(fetch=fetch)
        if path is None:
            return None
        with layouts.opened(path, replace(choice, subset=self.subset)) as recording:
            return recording.describe()

    def episodes(
        self, env: str, seed: int, workers: int, *, states_only: bool = False, choice: Choice = EVERYTHING
    ) -> Blocks:
        found = envs.find(env)
        path = self.file()
        assert path is not None
        chosen = replace(choice, subset=self.subset, usual=found.observation_parts)
        with layouts.opened(path, chosen) as recording:
            same = recording.describe().observations == found.obs_dim
            horizon = found.horizon if same else envs.UNLIMITED  # another body has a time limit of its own
            yield from self.select(recording.episodes(horizon, states_only=states_only))

    def members(self, choice: Choice = EVERYTHING) -> list[Path]:
        path = self.file()
        assert path is not None
        with layouts.opened(path, replace(choice, subset=self.subset)) as recording:
            return recording.members


class File(Recorded):
    """A file, a folder or a pattern on this machine; which layout it has, it says itself."""

    @property
    def label(self) -> str:
        return f"{self.scheme}:{Path(self.name).name}"

    @property
    def origin(self) -> str:
        return self.text

    def file(self, *, fetch: bool = True) -> Path | None:
        path = Path(self.name)
        if not matching(path):
            raise InputError(f"nothing matches {path}" if "*" in self.name else f"{path} does not exist")
        return path
