"""`file:PATH`: recordings of the user's own; and what all sources that are read from files share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from smodice_cli import envs
from smodice_cli.console import console
from smodice_cli.data import Transitions
from smodice_cli.errors import InputError
from smodice_cli.files import matching, nearby
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
            held = recording.describe().observations
        ours = held == found.obs_dim and not found.recorded  # else its ends are where they are marked
        horizon = found.horizon if ours else envs.UNLIMITED  # another body has a time limit of its own
        chosen = replace(chosen, goes_on=ours and found.goes_on)
        with layouts.opened(path, chosen) as recording:
            stream = recording.episodes(horizon, states_only=states_only)
            if found.recorded and found.as_recorded(held) == found.obs_dim:
                stream = self._converted(stream, found.recorded)
            yield from self.select(_paid_once(stream) if chosen.goes_on else stream)

    def _converted(self, stream: Blocks, recorded: Callable[[Transitions], tuple[Transitions, str]]) -> Blocks:
        """The rows as the environment itself would have given them, with its remarks told once."""
        told = {""}
        with closing(stream):
            for block in stream:
                try:
                    converted, remark = recorded(block)
                except InputError as error:
                    raise InputError(f"{self.text}: {error.message}", error.hint) from error
                if remark not in told:
                    told.add(remark)
                    console.note(f"{self.text}: {remark}")
                if converted.episodes:
                    yield converted

    def members(self, choice: Choice = EVERYTHING) -> list[Path]:
        path = self.file()
        assert path is not None
        with layouts.opened(path, replace(choice, subset=self.subset)) as recording:
            return recording.members


def _paid_once(stream: Blocks) -> Blocks:
    """Episodes that go on where the task is solved, each with the first of its rewards alone."""
    with closing(stream):
        for block in stream:
            before = np.cumsum(block.rewards != 0) - (block.rewards != 0)
            earlier = before - np.repeat(before[block.offsets[:-1]], np.diff(block.offsets))
            yield replace(block, rewards=np.where(earlier > 0, 0, block.rewards).astype(np.float32))


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
            missing = f"nothing matches {path}" if "*" in self.name else f"{path} does not exist"
            raise InputError(missing, nearby(path, "file:"))
        return path
