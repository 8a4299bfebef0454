"""Recorded data in blocks of whole episodes: D4RL's HDF5 layout, the same columns in an .npz, and Minari's HDF5 layout.

Variants met in real files: no `timeouts`, no `next_observations`, no `rewards`, no mark of an end at all; float64; an
extra axis on actions; `terminals` set at the time limit; a last episode that is cut short; nested `infos`, which are
not read. A row whose next state the file does not hold is left out, except after a true end, where nothing follows.

Minari's layout holds a group an episode with one observation more than actions. Of an observation that is a dictionary
(goal tasks) the environment's `observation_parts` are joined, in that order; by default only `observation`, since an
imitator has one goal and does not see it.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli.console import console
from smodice_cli.data import Transitions, concatenate
from smodice_cli.errors import InputError
from smodice_cli.parallel import cores
from smodice_cli.sources import chunks

BLOCK_ROWS = 1 << 16
EPISODE = "episode_"  # how Minari names its groups
SCALAR_COLUMNS = ("rewards", "terminals", "timeouts")
COLUMNS = ("observations", "actions", "next_observations", *SCALAR_COLUMNS)


def episodes(
    path: Path, horizon: int, *, states_only: bool = False, parts: Sequence[str] = ("observation",)
) -> Iterator[Transitions]:
    """The episodes of a file; `states_only` accepts files without actions, as an expert may come."""
    with _opened(path) as file:
        if _is_minari(file):
            yield from _from_groups(file, str(path), parts, states_only)
        else:
            with ThreadPoolExecutor(cores()) as pool:
                yield from _from_columns(_columns(file, str(path), pool), str(path), horizon, states_only)


def widths(path: Path, parts: Sequence[str] = ("observation",)) -> tuple[int, int]:
    """The dimensions of observations and actions (0 where there are none), read without reading the data."""
    with _opened(path) as file:
        if _is_minari(file):
            name = _episode_names(file)[0]
            first, origin = file[name], f"{path}: {name}"
            observed = _observation_parts(first, origin, parts)
            return sum(map(_width, observed)), _width(_array(first, "actions", origin)) if "actions" in first else 0
        if "observations" not in file:
            raise _not_d4rl(file, str(path), "observations")
        _check_columns(file, str(path))
        return _width(file["observations"]), _width(file["actions"]) if "actions" in file else 0


@dataclass(frozen=True)
class Contents:
    """What a file need not hold: rewards, and marks of where episodes end."""

    rewards: bool = True
    ends: bool = True


def contents(path: Path) -> Contents:
    """Whether a file holds rewards and marks of ends."""
    with _opened(path) as file:
        if _is_minari(file):
            return Contents(rewards="rewards" in file[_episode_names(file)[0]])
        marks = [_flags(file, name, len(file[name]), str(path)) for name in ("terminals", "timeouts") if name in file]
        return Contents("rewards" in file, any(flags.any() for flags in marks))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The columns or groups of an HDF5 or .npz file, by name."""
    import h5py

    if not path.is_file():
        raise InputError(f"{path} does not exist")
    with open(path, "rb") as handle:
        zipped = handle.read(2) == b"PK"
    try:
        if zipped:
            with np.load(path, allow_pickle=False) as archive:
                yield {name: archive[name] for name in COLUMNS if name in archive} or dict.fromkeys(archive)
        else:
            with h5py.File(path, "r") as file:
                yield file
    # What h5py and numpy raise on files that are cut short or damaged.
    except (OSError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        kind = ".npz file of numbers" if zipped else "HDF5 file"
        raise InputError(f"{path} is not an {kind}, or is cut short ({str(error).splitlines()[0]})") from error


def _is_minari(file: Any) -> bool:
    return "observations" not in file and bool(_episode_names(file))


def _episode_names(file: Any) -> list[str]:
    """Minari's episode groups in the order of their numbers (as text, episode_10 would come before episode_2)."""
    names = [name for name in file if name.startswith(EPISODE) and name.removeprefix(EPISODE).isdecimal()]
    return sorted(names, key=lambda name: int(name.removeprefix(EPISODE)))


def _width(column: Any) -> int:
    return int(np.prod(column.shape[1:], dtype=np.int64))


def _array(group: Any, name: str, origin: str) -> Any:
    """An array with a row a step."""
    if not getattr(group[name], "shape", ()):
        raise InputError(f"{origin}: '{name}' is not an array with a row for each step")
    return group[name]


def _observation_parts(group: Any, origin: str, parts: Sequence[str]) -> list[Any]:
    """The arrays an episode's state is joined from."""
    if "observations" not in group:
        raise InputError(f"{origin}: {group.name} has no 'observations'")
    observed = group["observations"]
    if hasattr(observed, "shape"):
        return [_array(group, "observations", origin)]
    for part in parts:
        if part not in observed:
            raise InputError(
                f"{origin}: observations are a dictionary without '{part}' (it has: {', '.join(sorted(observed))})"
            )
    return [_array(observed, part, origin) for part in parts]


def _from_groups(file: Any, origin: str, parts: Sequence[str], states_only: bool) -> Iterator[Transitions]:
    """Minari's episodes, joined to blocks of at least BLOCK_ROWS rows."""
    waiting: list[Transitions] = []
    width = None
    for name in _episode_names(file):
        episode = _minari_episode(file[name], f"{origin}: {name}", parts, states_only)
        if episode is None:
            continue
        found = (episode.observations.shape[1], episode.actions.shape[1])
        if found != (width := width or found):
            raise InputError(
                f"{origin}: {name} has {found[0]} dimensions of state and {found[1]} of action, others {width}"
            )
        waiting.append(episode)
        if sum(block.rows for block in waiting) >= BLOCK_ROWS:
            yield concatenate(waiting)
            waiting = []
    if waiting:
        yield concatenate(waiting)


def _minari_episode(group: Any, origin: str, parts: Sequence[str], states_only: bool) -> Transitions | None:
    """One episode; None where it has no step."""
    joined = _observation_parts(group, origin, parts)
    rows = len(joined[0]) - 1
    if rows < 1:
        return None
    states = np.concatenate([_matrix(part, slice(0, rows + 1)) for part in joined], axis=1)
    if "actions" not in group and not states_only:
        raise InputError(f"{origin} has no 'actions'")
    for name in ("actions", "rewards", "terminations", "truncations"):
        if name in group and len(_array(group, name, origin)) != rows:
            raise InputError(f"{origin}: expected {rows} {name}, one fewer than observations")
    if "rewards" in group and group["rewards"].size != rows:
        raise InputError(f"{origin}: 'rewards' has more than one number a row")
    terminals = _flags(group, "terminations", rows, origin)
    last = np.arange(rows) == rows - 1
    if (terminals & ~last).any():
        raise InputError(f"{origin}: 'terminations' is set before the last step")
    return Transitions(
        observations=states[:-1],
        actions=_matrix(group["actions"], slice(0, rows)) if "actions" in group else np.zeros((rows, 0), np.float32),
        rewards=_rewards(group, slice(0, rows)),
        next_observations=states[1:],
        terminals=terminals,
        timeouts=last & ~terminals,
        offsets=np.array([0, rows]),
    )


def _columns(file: Any, origin: str, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """The columns that are read, those that are compressed in the quicker way."""
    found = {name: file[name] for name in COLUMNS if name in file}
    if not found:
        raise _not_d4rl(file, origin, "observations")
    return {name: chunks.column(item, pool) if hasattr(item, "chunks") else item for name, item in found.items()}


def _not_d4rl(file: Any, origin: str, missing: str) -> InputError:
    found = ", ".join(sorted(file)) or "nothing"
    return InputError(f"{origin} has no '{missing}': expected D4RL's or Minari's layout (it has: {found})")


def _from_columns(file: Any, origin: str, horizon: int, states_only: bool) -> Iterator[Transitions]:
    needed = ("observations",) if states_only else ("observations", "actions")
    missing = [name for name in needed if name not in file]
    if missing:
        raise _not_d4rl(file, origin, missing[0])
    rows = _check_columns(file, origin)
    terminals, timeouts = (_flags(file, name, rows, origin) for name in ("terminals", "timeouts"))
    timeouts[-1] |= not terminals[-1]  # a last episode that is cut short
    if "timeouts" not in file and "actions" in file:
        _mark_time_limits(terminals, timeouts, horizon, origin)
    offsets = _offsets(terminals | timeouts)
    known_next = "next_observations" in file
    first = 0
    while first < len(offsets) - 1:
        last = max(int(np.searchsorted(offsets, offsets[first] + BLOCK_ROWS, "right")) - 1, first + 1)
        window = slice(int(offsets[first]), int(offsets[last]))
        block = Transitions(
            observations=_matrix(file["observations"], window),
            actions=_actions(file, window),
            rewards=_rewards(file, window),
            next_observations=_matrix(file["next_observations"], window) if known_next else np.empty(0),
            terminals=terminals[window],
            timeouts=timeouts[window],
            offsets=offsets[first : last + 1] - offsets[first],
        )
        first = last
        block = block if known_next else _shifted(block, states_only)
        if block.episodes:
            yield block


def _check_columns(file: Any, origin: str) -> int:
    """The number of rows, which all columns must share; rows of flags and rewards hold one number each."""
    present = [name for name in COLUMNS if name in file]
    for name in present:
        column = file[name]
        if not hasattr(column, "dtype") or column.dtype.kind not in "biuf" or not column.shape:
            raise InputError(f"{origin}: '{name}' is not an array of numbers")
    rows = len(file["observations"])
    if rows == 0:
        raise InputError(f"{origin} has no rows")
    for name in present:
        if len(file[name]) != rows:
            raise InputError(f"{origin}: '{name}' has {len(file[name])} rows, 'observations' {rows}")
        if name in SCALAR_COLUMNS and file[name].size != rows:
            raise InputError(f"{origin}: '{name}' has more than one number a row")
    if "next_observations" in file and _width(file["next_observations"]) != _width(file["observations"]):
        raise InputError(f"{origin}: 'next_observations' and 'observations' differ in their dimensions")
    return rows


def _flags(file: Any, name: str, rows: int, origin: str) -> np.ndarray:
    if name not in file:
        return np.zeros(rows, bool)
    found = np.asarray(file[name][:]).reshape(-1)
    if len(found) != rows or not np.isin(found, (0, 1)).all():
        raise InputError(f"{origin}: '{name}' must be true or false, 1 or 0, for each row")
    return found.astype(bool)


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


def _matrix(column: Any, window: slice) -> np.ndarray:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return np.asarray(column[window], np.float32).reshape(window.stop - window.start, -1)


def _actions(file: Any, window: slice) -> np.ndarray:
    if "actions" not in file:
        return np.zeros((window.stop - window.start, 0), np.float32)
    return _matrix(file["actions"], window)


def _rewards(file: Any, window: slice) -> np.ndarray:
    if "rewards" not in file:
        return np.zeros(window.stop - window.start, np.float32)
    return _matrix(file["rewards"], window).reshape(-1)


def _shifted(block: Transitions, states_only: bool) -> Transitions:
    """Next states from the following row; the last row of an episode stays only if the task ended there.

    Or, of states alone, if it is the only one.
    """
    ends = block.offsets[1:] - 1
    keep = np.ones(block.rows, bool)
    keep[ends] = block.terminals[ends] | (states_only & (np.diff(block.offsets) == 1))
    next_observations = np.roll(block.observations, -1, axis=0)
    next_observations[ends] = block.observations[ends]
    lengths = np.add.reduceat(keep, block.offsets[:-1]).astype(np.int64)
    timeouts = block.timeouts.copy()
    cut = ends[~keep[ends] & (np.diff(block.offsets) > 1)]
    timeouts[cut - 1] = True  # the row before a dropped one is now where the episode was cut
    return Transitions(
        observations=block.observations[keep],
        actions=block.actions[keep],
        rewards=block.rewards[keep],
        next_observations=next_observations[keep],
        terminals=block.terminals[keep],
        timeouts=timeouts[keep],
        offsets=np.concatenate([[0], np.cumsum(lengths[lengths > 0])]),
    )
