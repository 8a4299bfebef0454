"""`file:PATH`: a recording of the user's own; and what all sources that are read from a file share."""

from __future__ import annotations

from pathlib import Path

from smodice_cli import envs
from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.sources import layouts
from smodice_cli.sources.source import PARTS, Blocks, Contents, Parts, Source


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

    def describe(self, parts: Parts = PARTS, *, fetch: bool = True) -> Contents | None:
        path = self.file(fetch=fetch)
        if path is None:
            return None
        with layouts.opened(path) as recording:
            return recording.describe(parts)

    def episodes(self, env: str, seed: int, workers: int, *, states_only: bool = False) -> Blocks:
        found = envs.find(env)
        parts = found.observation_parts
        path = self.file()
        assert path is not None
        with layouts.opened(path) as recording:
            same = recording.describe(parts).observations == found.obs_dim
            horizon = found.horizon if same else envs.UNLIMITED  # another body has a time limit of its own
            yield from self.select(recording.episodes(horizon, states_only=states_only, parts=parts))


class File(Recorded):
    """A file on this machine; which layout it has, it says itself."""

    @property
    def label(self) -> str:
        return f"{self.scheme}:{Path(self.name).name}"

    @property
    def origin(self) -> str:
        return self.text

    def file(self, *, fetch: bool = True) -> Path | None:
        path = Path(self.name)
        if not path.is_file():
            raise InputError(f"{path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}")
        return path
