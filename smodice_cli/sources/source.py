"""A source of data: what the rest of the tool asks of it, whatever its scheme."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from smodice_cli import envs
from smodice_cli.data import Transitions
from smodice_cli.errors import InputError, UsageError
from smodice_cli.lazy import np

ROW_SELECTIONS = ("steps", "episodes", "traj")
STATE_SELECTIONS = ("states", "success")
Blocks = Generator[Transitions, None, None]  # of whole episodes
Parts = tuple[str, ...]
PARTS: Parts = ("observation",)  # of an observation that is a dictionary, where no environment says otherwise


@dataclass(frozen=True)
class Contents:
    """What a source holds: the widths of states and actions (0: no actions), and what recordings may lack."""

    observations: int
    actions: int
    rewards: bool = True
    ends: bool = True  # marks of where episodes end


@dataclass(frozen=True)
class Source:
    """A source text, SCHEME:NAME[#SELECTION], taken apart; each scheme is a subclass."""

    text: str
    scheme: str
    name: str
    selection: str = ""
    count: int | None = None

    bare_number: ClassVar[str] = "episodes"  # what a number alone after the # counts
    endless: ClassVar[bool] = False  # whether there are always more episodes

    @property
    def label(self) -> str:
        """How the source is called in tables."""
        return f"{self.scheme}:{self.name}"

    @property
    def origin(self) -> str:
        """What the rows come from, whichever of them are selected; where they may be a mixture, that matters too."""
        return f"{self.scheme}:{self.name}"

    @property
    def body(self) -> str:
        """The environment it acts in; '' for recordings, which do not say."""
        return ""

    def check(self, example: str) -> None:
        """Refuse what this scheme cannot make sense of; `example` is a selection that would do."""

    def check_offline(self, env: str) -> None:
        """Refuse an offline source that cannot be used, before anything is simulated, downloaded or written."""
        if self.selection in STATE_SELECTIONS:
            raise UsageError(f"offline source '{self.text}': #{self.selection} selects states, not transitions")
        self.check("#50000")
        if self.body not in ("", env):
            raise InputError(f"offline source '{self.text}' acts in {self.body}, but the data are for {env}")

    def check_expert(self, env: str) -> None:
        """The same for an expert source, which may come from another body."""
        self.check("#traj=0")
        if self.selection == "success" and envs.find(env).success is None:
            raise UsageError(f"source '{self.text}': environment '{env}' has no success test of its own")

    def check_states(self, states: np.ndarray, where: str, first: int = 0) -> None:
        """Refuse states that cannot be meant; the first is row number `first` of `where`."""

    def file(self, *, fetch: bool = True) -> Path | None:
        """The file it depends on, downloaded first where that is needed and allowed; None if there is none."""
        return None

    def check_sum(self, sha256: str) -> None:
        """Refuse a file that is not what it was when it was first used; `sha256` is what it is now."""

    def describe(self, parts: Parts = PARTS, *, fetch: bool = True) -> Contents | None:
        """What it holds; None where it is not there yet and may not be downloaded."""
        raise NotImplementedError

    def episodes(self, env: str, seed: int, workers: int, *, states_only: bool = False) -> Blocks:
        """Blocks of whole episodes after the selection of rows; `states_only` accepts data without actions."""
        raise NotImplementedError

    def select(self, stream: Blocks) -> Blocks:
        """What the selection leaves of all episodes.

        The stream is closed here, not by the garbage collector, which would swallow a Ctrl-C while its processes end.
        """
        count = self.count or 0
        with closing(stream):
            if self.selection == "steps":
                yield from self._first_rows(stream, count)
            elif self.selection == "episodes":
                yield from self._episode_range(stream, 0, count)
            elif self.selection == "traj":
                yield from self._episode_range(stream, count, count + 1)
            else:
                yield from stream

    def _first_rows(self, stream: Iterator[Transitions], rows: int) -> Iterator[Transitions]:
        seen = 0
        for block in stream:
            block = block.truncate(rows - seen)
            seen += block.rows
            yield block
            if seen == rows:
                return
        raise InputError(f"source '{self.text}' has only {seen} transitions")

    def _episode_range(self, stream: Iterator[Transitions], first: int, last: int) -> Iterator[Transitions]:
        seen = 0
        for block in stream:
            low, high = max(first - seen, 0), min(last - seen, block.episodes)
            if low < high:
                yield block.take(low, high)
            seen += block.episodes
            if seen >= last:
                return
        raise InputError(f"source '{self.text}' has only {seen} trajectories (counted from 0)")

    def summary(self, rows: int, returns: list[float], *, rewards: bool = True) -> dict[str, Any]:
        """The source as a dataset's header tells of it; one without rewards says so."""
        return {
            "label": self.label,
            "origin": self.origin,
            "rows": rows,
            "episodes": len(returns),
            "mean_return": float(np.mean(returns)) if returns else 0.0,
            **({} if rewards else {"rewards": False}),
        }
