"""D4RL's layout: columns with a row a step, in an HDF5 file or in an .npz archive of numpy's.

Variants met in real files: no `timeouts`, no `next_observations`, no `rewards`, no mark of an end at all; float64; an
extra axis on actions; `terminals` set at the time limit; a last episode that is cut short; nested `infos`, which are
not read. A row whose next state the file does not hold is left out, except after a true end, where nothing follows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from smodice_cli.console import console
from smodice_cli.data import Transitions
from smodice_cli.errors import InputError
from smodice_cli.lazy import np
from smodice_cli.parallel import cores
from smodice_cli.sources.layouts import Layout, arrays, missing
from smodice_cli.sources.source import EVERYTHING, Blocks, Choice, Contents, Parts

SCALAR_COLUMNS = ("rewards", "terminals", "timeouts")
COLUMNS = ("observations", "actions", "next_observations", *SCALAR_COLUMNS)


class D4rl(Layout):
    """Columns with a row a step; `terminals` and `timeouts` mark where episodes end."""

    numbered = True
    names: Parts = ()  # of the state's dimensions
    left_out: Parts = ()

    def __init__(self, path: Path, file: Any, choice: Choice = EVERYTHING) -> None:
        super().__init__(path, file, choice)
        self.held = self.open_columns()

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        return file is not None and "observations" in file

    def open_columns(self) -> Mapping[str, Any]:
        """Everything the file holds, by name."""
        return self.file

    def listing(self) -> dict[str, str]:
        return arrays.listing(self.held)

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """What is read, by D4RL's names, each column checked."""
        if "observations" not in self.held:
            raise missing(self.origin, self.held, "observations")
        self.rows = _check_columns(self.held, self.origin)
        return self.held

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The marks of true ends and of time limits."""
        columns = self.columns
        terminals, timeouts = (
            arrays.flags(columns, name, self.rows, self.origin) for name in ("terminals", "timeouts")
        )
        if self.numbers is None:
            if not terminals.any() and not timeouts.any():
                if likely := self.likely():
                    raise arrays.uncertain(self.origin, likely)
                if (name := arrays.marking(self.held)) and arrays.is_marks(self.held[name], self.rows):
                    raise arrays.unmarked(self.origin, name, self.choice.keys)
            return terminals, timeouts
        last = np.append(self.numbers[1:] != self.numbers[:-1], True)
        early = np.flatnonzero((timeouts if self.choice.goes_on else terminals | timeouts) & ~last)
        if len(early):
            row = int(early[0])
            raise InputError(
                f"{self.origin}: row {row} is marked as an end, and '{self.choice.episode}' says that episode "
                f"{self.numbers[row]} goes on",
                "leave --episode-column out, or correct one of the two",
            )
        return terminals, timeouts | (last if self.choice.goes_on else last & ~terminals)

    def likely(self) -> str:
        """The column that probably numbers the episodes: a whole number a row; '' where there is none."""
        found = {name: self.held[name] for name in self.held if self.numbered and arrays.numbering([name])}
        kinds = {name: getattr(getattr(column, "dtype", None), "kind", "") for name, column in found.items()}
        return next((n for n, column in found.items() if kinds[n] in ("i", "u") and column.size == self.rows), "")

    def flags(self) -> list[str]:
        if "observations" not in self.held:
            return self._guessed_keys()
        if self.choice.episode:
            return []
        marked = any(
            arrays.flags(self.columns, name, self.rows, self.origin).any() for name in ("terminals", "timeouts")
        )
        return [] if marked or not (likely := self.likely()) else ["--episode-column", likely]

    def _guessed_keys(self) -> list[str]:
        """--keys by the names that the file has, beside those that were given."""
        called = {"observations": arrays.OBSERVING, "actions": arrays.ACTING}
        given = dict(self.choice.keys)
        found = {
            ours: next((name for name in self.held if name.lower().startswith(begins)), "")
            for ours, begins in called.items()
            if ours not in given
        }
        if not found.get("observations"):
            return []
        return ["--keys", ",".join(f"{ours}={theirs}" for ours, theirs in (found | given).items() if theirs)]

    @cached_property
    def numbers(self) -> np.ndarray | None:
        """The number of the episode that each row belongs to; None where no column says."""
        name = self.choice.episode
        if not name or not self.numbered or (name not in self.held and not self.choice.must_number):
            return None
        if name not in self.held:
            raise arrays.unnumbered(self.origin, name, self.held)
        column = self.held[name]
        arrays.check_numbers(column, name, self.origin)
        arrays.check_held(column)
        if column.shape[0] != self.rows or column.size != self.rows:
            raise InputError(f"{self.origin}: '{name}' must have one number for each of the {self.rows} rows")
        found = arrays.whole_numbers(np.asarray(column[:]), self.origin, name)
        seen, times = np.unique(found[np.flatnonzero(np.diff(found, prepend=found[0] - 1))], return_counts=True)
        if (times > 1).any():
            raise InputError(
                f"{self.origin}: episode {seen[times.argmax()]} comes again after others",
                "keep the rows of an episode together, in order",
            )
        return found

    def describe(self) -> Contents:
        acted = arrays.width(self.columns["actions"]) if "actions" in self.columns else 0
        held = Contents(arrays.width(self.columns["observations"]), acted, "rewards" in self.columns)
        marked = any(marks.any() for marks in self.ends)
        return replace(held, ends=marked, names=self.names, left_out=self.left_out)

    def episodes(self, horizon: int, *, states_only: bool = False) -> Blocks:
        if not states_only:
            if "actions" not in self.columns:
                raise missing(self.origin, self.columns, "actions")
            arrays.check_numbers(self.columns["actions"], "actions", self.origin, action=True)
        terminals, timeouts = (marks.copy() for marks in self.ends)
        if self.choice.goes_on:
            if not timeouts.any():
                raise InputError(
                    f"{self.origin}: without 'timeouts' nothing says where its episodes end: "
                    "they go on after rows that 'terminals' marks",
                    "add a column 'timeouts', true in the last row of each episode",
                )
            terminals[:] = False
        timeouts[-1] |= not terminals[-1]  # a last episode that is cut short
        if "timeouts" not in self.columns and "actions" in self.columns and self.numbers is None:
            _mark_time_limits(terminals, timeouts, horizon, self.origin)
        seen = 0
        with ThreadPoolExecutor(cores()) as pool:
            quick = {name: arrays.quick(self.columns[name], pool) for name in COLUMNS if name in self.columns}
            for block in _blocks(quick, terminals, timeouts):
                block = block if "next_observations" in quick else arrays.shifted(block, states_only)
                if block.episodes:
                    assert block.origin is not None
                    counted = seen + np.arange(block.episodes)
                    block.origin[:, 1] = counted if self.numbers is None else self.numbers[block.origin[:, 2]]
                    seen += block.episodes
                    yield block


class Npz(D4rl):
    """An archive, unpacked into memory when it is opened; one that holds Python objects is refused."""

    format = "an .npz file of numbers"
    reads: tuple[str, ...] = COLUMNS

    @classmethod
    def recognises(cls, path: Path, file: Any) -> bool:
        if not path.is_file():
            return False
        with open(path, "rb") as handle:
            return handle.read(2) == b"PK"  # a zip archive

    def open_columns(self) -> Mapping[str, Any]:
        with np.load(self.path, allow_pickle=False) as archive:
            declared = sum(entry.file_size for entry in archive.zip.infolist())
            arrays.check_size(declared, self.path.stat().st_size, self.origin)
            named = arrays.Named(archive, self.choice.names)
            wanted = (*self.reads, self.choice.episode)
            called = (arrays.numbering(named), arrays.marking(named))
            return {name: named[name] if name in (*wanted, *called) else None for name in named}

    def listing(self) -> dict[str, str]:
        return {name: f"{' x '.join(map(str, shape)) or 'one value'} {kind}" for name, shape, kind in heads(self.path)}


def heads(path: Path) -> list[tuple[str, tuple[int, ...], Any]]:
    """Name, shape and type of the arrays in an archive of numpy's; none where it is no such archive."""
    found = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    version = np.lib.format.read_magic(member)
                    read = (
                        np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
                    )
                    shape, _, kind = read(member)
                    found.append((name.removesuffix(".npy"), shape, kind))
    except (OSError, ValueError, zipfile.BadZipFile):
        return []
    return found


def _check_columns(columns: Mapping[str, Any], origin: str) -> int:
    """The number of rows, which all columns must share; rows of flags and rewards hold one number each."""
    present = {name: columns[name] for name in COLUMNS if name in columns}
    for name, column in present.items():
        arrays.check_numbers(column, name, origin)
    rows = present["observations"].shape[0]
    if rows == 0:
        raise InputError(f"{origin} has no rows")
    for name, column in present.items():
        if column.shape[0] != rows:
            raise InputError(f"{origin}: '{name}' has {column.shape[0]} rows, 'observations' {rows}")
        if name in SCALAR_COLUMNS and column.size != rows:
            raise InputError(f"{origin}: '{name}' has more than one number a row")
    if len({arrays.width(present[name]) for name in present if name.endswith("observations")}) > 1:
        raise InputError(f"{origin}: 'next_observations' and 'observations' differ in their dimensions")
    return rows


def _blocks(columns: Mapping[str, Any], terminals: np.ndarray, timeouts: np.ndarray) -> Iterator[Transitions]:
    """Whole episodes, as many as BLOCK_ROWS rows hold, and at least one; next states where the file has them."""
    offsets = _offsets(terminals | timeouts)
    first = 0
    while first < len(offsets) - 1:
        last = max(int(np.searchsorted(offsets, offsets[first] + arrays.BLOCK_ROWS, "right")) - 1, first + 1)
        window = slice(int(offsets[first]), int(offsets[last]))
        states = arrays.matrix(columns["observations"], window)
        following = arrays.matrix(columns["next_observations"], window) if "next_observations" in columns else states
        steps = (states, *arrays.actions_and_rewards(columns, window), following, terminals[window], timeouts[window])
        starts = offsets[first:last]
        origin = np.stack([np.zeros_like(starts), np.zeros_like(starts), starts], axis=1)
        yield Transitions(*steps, offsets[first : last + 1] - offsets[first], origin)
        first = last


def _offsets(ends: np.ndarray) -> np.ndarray:
    offsets = np.concatenate([[0], np.flatnonzero(ends) + 1])
    return offsets if offsets[-1] == len(ends) else np.append(offsets, len(ends))


def _mark_time_limits(terminals: np.ndarray, timeouts: np.ndarray, horizon: int, origin: str) -> None:
    """In a log of actions without `timeouts`, a row that is the last the environment allows ends its episode by time.

    Such files set `terminals` there, or nothing.
    """
    offsets = _offsets(terminals)
    since = np.arange(len(terminals)) - np.repeat(offsets[:-1], np.diff(offsets))
    full = np.flatnonzero(since % horizon == horizon - 1)
    if len(full):
        terminals[full], timeouts[full] = False, True
        console.note(
            f"{origin}: {len(full)} episodes of {horizon} steps end at the time limit, not in a terminal state"
        )
