"""A source of data: what the rest of the tool asks of it, whatever its scheme."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from smodice_cli import envs
from smodice_cli.data import Transitions
from smodice_cli.errors import InputError, UsageError, nearest
from smodice_cli.lazy import np

ROW_SELECTIONS = ("steps", "episodes", "traj", "best", "filter")
STATE_SELECTIONS = ("states", "success")
Blocks = Generator[Transitions, None, None]  # of whole episodes
Parts = tuple[str, ...]
PARTS: Parts = ("observation",)  # of an observation that is a dictionary, where no environment says otherwise


@dataclass(frozen=True)
class Choice:
    """What is read of recordings that hold several things, or call them by names of their own."""

    parts: Parts = ()  # of an observation that is a dictionary: names or patterns, joined in this order
    usual: Parts = PARTS  # the parts where none are named
    columns: Parts = ()  # of a table: those of the state, names or patterns
    actions: Parts = ()  # ... and those of the action
    episode: str = ""  # the column that numbers the episodes ...
    must_number: bool = True  # ... and whether a recording without it is refused, or is one episode
    keys: tuple[tuple[str, str], ...] = ()  # our names of columns, and the file's
    subset: str = ""  # a named part of the episodes: a filter key, a split
    goes_on: bool = False  # episodes go on after terminal rows, to the next time limit

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Our names of columns, and the file's; a single part is what the file calls its observations."""
        single = {"observations": self.parts[0]} if len(self.parts) == 1 else {}
        return tuple((dict(self.keys) | single).items())


EVERYTHING = Choice()
MARKS = (
    "--keys timeouts=NAME (cut there), --keys terminals=NAME (over there) or --episode-column NAME say where they end"
)
COLUMNS = ("observations", "actions", "next_observations", "rewards", "terminals", "timeouts")


def words(text: str) -> Parts:
    """`a,b,c` as a list of words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_keys(text: str) -> tuple[tuple[str, str], ...]:
    """`observations=obs,actions=acts`: our names of columns, and the file's."""
    found = []
    for word in words(text):
        ours, equals, theirs = word.partition("=")
        if not equals or not theirs:
            raise UsageError(f"--keys {text}: expected OURS=THEIRS, e.g. --keys observations=obs,actions=acts")
        if ours not in COLUMNS:
            raise UsageError(f"--keys {text}: '{ours}' is no column of ours", nearest(ours, COLUMNS))
        found.append((ours, theirs))
    return tuple(found)


def choice_of(config: Any, env: envs.Environment | None = None, *, expert: bool = False) -> Choice:
    """What the settings of build-dataset choose of recordings, or of those of the expert."""
    other = words(config.expert_keys) if expert else ()
    return Choice(
        parts=other or words(config.obs_keys),
        usual=env.observation_parts if env else PARTS,
        columns=other or words(config.state_columns),
        actions=words(config.action_columns),
        episode=config.episode_column,
        must_number=not (expert and config.episode_column),  # one demonstration has nothing to number
        keys=parse_keys(config.keys),
    )


@dataclass(frozen=True)
class Contents:
    """What a source holds: the widths of states and actions (0: no actions), and what recordings may lack."""

    observations: int
    actions: int
    rewards: bool = True
    ends: bool = True  # marks of where episodes end
    names: Parts = ()  # of the state's dimensions, where the recording knows them
    action_names: Parts = ()
    left_out: Parts = ()  # what else was observed and is no part of the state
    episode_name: str = ""  # what the recording calls its episodes, e.g. demo_{}


@dataclass(frozen=True)
class Source:
    """A source text, SCHEME:NAME[#SELECTION], taken apart; each scheme is a subclass."""

    text: str
    scheme: str
    name: str
    selection: str = ""
    count: int | None = None
    subset: str = ""  # of the episodes, by the recording's own name for it

    bare_number: ClassVar[str] = "episodes"  # what a number alone after the # counts
    endless: ClassVar[bool] = False  # whether there are always more episodes

    @property
    def label(self) -> str:
        """How the source is called in tables."""
        return f"{self.scheme}:{self.name}"

    @property
    def origin(self) -> str:
        """What the rows come from, whichever of them are selected; where they may be a mixture, that matters too."""
        return self.text if self.selection == "best" else f"{self.scheme}:{self.name}"

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

    def describe(self, choice: Choice = EVERYTHING, *, fetch: bool = True) -> Contents | None:
        """What it holds; None where it is not there yet and may not be downloaded."""
        raise NotImplementedError

    def episodes(
        self, env: str, seed: int, workers: int, *, states_only: bool = False, choice: Choice = EVERYTHING
    ) -> Blocks:
        """Blocks of whole episodes after the selection of rows; `states_only` accepts data without actions."""
        raise NotImplementedError

    def members(self, choice: Choice = EVERYTHING) -> list[Path]:
        """The files that its rows are numbered by; none where they come from no file."""
        return []

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
            elif self.selection == "best":
                yield self._best(self._episode_range(stream, 0, count) if count else stream)
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

    def _best(self, stream: Iterator[Transitions]) -> Transitions:
        """The trajectory with the highest return."""
        best, most, paid = None, -np.inf, False
        for block in stream:
            returns = np.array(block.returns())
            if not np.isfinite(returns).all():
                raise InputError(f"source '{self.text}' holds NaN or infinite rewards")
            number = int(returns.argmax())
            if returns[number] > most:
                best, most = block.take(number, number + 1), returns[number]
            paid |= bool(block.rewards.any())
        if best is None or not paid:
            raise InputError(f"source '{self.text}' holds no rewards that would tell which trajectory is the best")
        return best

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
