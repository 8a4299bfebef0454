"""Recorded data in D4RL's HDF5 layout and its real-world variants, in blocks of whole episodes.

Variants met in real files: no `timeouts`, no `next_observations`, no `rewards`; float64; an extra axis on actions;
`terminals` set at the time limit; a last episode that is cut short; nested `infos`, which are not read. A row whose
next state the file does not hold is left out, except after a true end, where nothing follows anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli.console import console
from smodice_cli.data import Transitions
from smodice_cli.errors import InputError

BLOCK_ROWS = 1 << 16


def episodes(path: Path, horizon: int, *, states_only: bool = False) -> Iterator[Transitions]:
    """The episodes of a file; `states_only` accepts files without actions, as an expert may come."""
    import h5py

    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        with h5py.File(path, "r") as file:
            yield from _from_columns(file, str(path), horizon, states_only)
    except OSError as error:
        raise InputError(f"{path} is not an HDF5 file, or is cut short ({str(error).splitlines()[0]})") from error


def _from_columns(file: Any, origin: str, horizon: int, states_only: bool) -> Iterator[Transitions]:
    needed = ("observations",) if states_only else ("observations", "actions")
    missing = [name for name in needed if name not in file]
    if missing:
        raise InputError(f"{origin} has no '{missing[0]}': expected D4RL's layout (it has: {', '.join(sorted(file))})")
    rows = len(file["observations"])
    for name in ("actions", "rewards", "terminals", "timeouts", "next_observations"):
        if name in file and len(file[name]) != rows:
            raise InputError(f"{origin}: '{name}' has {len(file[name])} rows, 'observations' {rows}")
    if rows == 0:
        raise InputError(f"{origin} has no rows")
    terminals, timeouts = (_flags(file, name, rows) for name in ("terminals", "timeouts"))
    offsets = _offsets(terminals | timeouts)
    if "timeouts" not in file:
        _mark_time_limits(terminals, timeouts, offsets, horizon, origin)
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
        block = block if known_next else _shifted(block)
        if block.episodes:
            yield block


def _flags(file: Any, name: str, rows: int) -> np.ndarray:
    return np.asarray(file[name][:]).reshape(rows).astype(bool) if name in file else np.zeros(rows, bool)


def _offsets(ends: np.ndarray) -> np.ndarray:
    offsets = np.concatenate([[0], np.flatnonzero(ends) + 1])
    return offsets if offsets[-1] == len(ends) else np.append(offsets, len(ends))


def _mark_time_limits(
    terminals: np.ndarray, timeouts: np.ndarray, offsets: np.ndarray, horizon: int, origin: str
) -> None:
    """Files without `timeouts` often set `terminals` at the time limit too: an episode of full length ends by time."""
    full = offsets[1:][np.diff(offsets) == horizon] - 1
    full = full[terminals[full]]
    if len(full):
        terminals[full], timeouts[full] = False, True
        console.note(
            f"{origin}: {len(full)} episodes of {horizon} steps end at the time limit, not in a terminal state"
        )


def _matrix(column: Any, window: slice) -> np.ndarray:
    return np.asarray(column[window], np.float32).reshape(window.stop - window.start, -1)


def _actions(file: Any, window: slice) -> np.ndarray:
    if "actions" not in file:
        return np.zeros((window.stop - window.start, 0), np.float32)
    return _matrix(file["actions"], window)


def _rewards(file: Any, window: slice) -> np.ndarray:
    if "rewards" not in file:
        return np.zeros(window.stop - window.start, np.float32)
    return np.asarray(file["rewards"][window], np.float32).reshape(-1)


def _shifted(block: Transitions) -> Transitions:
    """Next states from the following row; the last row of an episode stays only if the task ended there."""
    ends = block.offsets[1:] - 1
    keep = np.ones(block.rows, bool)
    keep[ends] = block.terminals[ends]
    next_observations = np.roll(block.observations, -1, axis=0)
    next_observations[ends] = block.observations[ends]
    lengths = np.add.reduceat(keep, block.offsets[:-1]).astype(np.int64)
    timeouts = block.timeouts.copy()
    timeouts[ends - 1] |= ~keep[ends]  # the row before a dropped one is now where the episode was cut
    return Transitions(
        observations=block.observations[keep],
        actions=block.actions[keep],
        rewards=block.rewards[keep],
        next_observations=next_observations[keep],
        terminals=block.terminals[keep],
        timeouts=timeouts[keep],
        offsets=np.concatenate([[0], np.cumsum(lengths[lengths > 0])]),
    )
